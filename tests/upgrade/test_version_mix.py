"""A worker and a broker of different releases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support.installation import Installation
from support.releases import Release
from support.running_job import begin_job, end_well
from support.waiting import eventually_sync

Use = Callable[[Release], Installation]


def worker_of(release: Release, broker: Installation) -> tuple[subprocess.Popen[bytes], Path]:
    """`job worker` of another release, which finds the broker by its socket; and where it writes what it says."""
    home = broker.directory / "elsewhere"
    home.mkdir()
    said = broker.directory / "said"
    mine = replace(
        broker,
        program=release.command("job"),
        settings={
            "JOBD_STATE_DIR": str(home),
            "JOBD_URL": f"unix://{broker.state}/broker.sock",
            "JOBD_WORKER_NAME": "other",
        },
    )
    with said.open("wb") as file:
        process = subprocess.Popen(
            [mine.program, "worker"], env=mine.environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    return process, said


@contextmanager
def served(broker: Installation, worker: Release) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A broker in the foreground, and a worker of another release."""
    serving = broker.start("broker")
    eventually_sync((broker.state / "broker.sock").exists, within_s=30)
    process, said = worker_of(worker, broker)
    try:
        yield process, said
    finally:
        end(process, serving)


def end(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.trial("B120")
@pytest.mark.guarantee("G23")
def test_a_worker_that_is_too_old_is_told_so_and_jobs_go_elsewhere(use: Use, older: Release, newer: Release) -> None:
    with served(use(newer), older) as (worker, said):
        assert worker.wait(60) == 3
        assert (
            "a worker of version 0.1.0 does not understand this broker of version 0.2.0: upgrade other"
            in said.read_text()
        )


@pytest.mark.trial("B120")
@pytest.mark.guarantee("G23")
def test_a_worker_that_the_broker_has_outgrown_ends_its_jobs_and_is_given_no_new_one(
    use: Use, older: Release, newer: Release
) -> None:
    """Another machine's worker stays as it is when the broker is upgraded."""
    before = use(older)
    serving = before.start("broker")
    eventually_sync((before.state / "broker.sock").exists, within_s=30)
    worker, said = worker_of(older, before)
    try:
        first = begin_job(before)
        end(serving)
        after = use(newer)
        serving = after.start("broker")
        second = after.submit("--worker", "other", "--", "true")
        end_well(after, first)
        assert worker.poll() is None, said.read_text()
        [shown] = [one for one in after.ask("/v1/workers").json()["workers"] if one["name"] == "other"]
        assert shown["state"] == "outdated"
        told = after.ask(f"/v1/jobs/{second}/explain").json()
        assert told["placement"][0]["reasons"][0]["message"] == "other is outdated"
        assert told["suggestion"] == "install this broker's version on other, and start its worker again"
        after.good("cancel", str(second))
    finally:
        end(worker, serving)


@pytest.mark.trial("B120")
def test_a_worker_that_is_newer_than_its_broker_says_which_is_to_be_upgraded(
    use: Use, older: Release, newer: Release
) -> None:
    with served(use(older), newer) as (worker, said):
        assert worker.wait(60) == 3
        assert "the broker is older than this worker: upgrade the broker first, then its workers" in said.read_text()
