"""The demonstration shows what it says, and leaves nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.installation import Ended, Installation
from support.processes import processes_of
from support.waiting import eventually_sync

SECOND_WORKER_MISSING = """
import sys
from pathlib import Path
from jobd_mcp.demo import DemoFailed, main
try:
    main(Path(sys.argv[1]), workers=["anna"], limit_s=8)
except DemoFailed as failure:
    sys.exit(f"failed: {failure}")
"""


def with_a_missing_worker(installation: Installation, place: Path) -> Ended:
    done = subprocess.run(
        [sys.executable, "-c", SECOND_WORKER_MISSING, str(place)],
        env=installation.environ,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.serial
def test_the_demonstration_shows_a_job_that_survives_the_death_of_a_machine_and_leaves_nothing(
    installation: Installation,
) -> None:
    # Long, so that no socket fits into it: one elsewhere must go as well.
    place = installation.directory / ("demo" + "-" * 100)
    elsewhere = installation.directory / "run"
    elsewhere.mkdir(mode=0o700)
    done = installation.job("demo", "--directory", str(place), extra={"XDG_RUNTIME_DIR": str(elsewhere)})
    shown = done.text
    assert done.code == 0, shown + done.err
    assert done.err == ""
    assert max(map(len, shown.splitlines())) < 100 + len(place.name)
    assert "state=completed exit_code=0" in shown
    assert "progress: 1 running on" in shown
    assert "| epoch 3 of 3" in shown
    assert "resumed after step" in shown
    timeline = [line.split()[2] for line in shown.splitlines() if re.match(r" +\d+\.\d\d s  ", line)]
    assert timeline == [
        *("job_submitted", "job_assigned", "assignment_acked", "job_started"),
        *("--", "assignment_expired", "job_requeued"),
        *("job_assigned", "assignment_acked", "job_started", "job_completed"),
    ]
    dead, alive = re.findall(r"assignment 2\.[12]: (?:expired|succeeded) on (\w+)", shown)
    assert {dead, alive} == {"anna", "boris"}
    assert "No process is left" in shown
    assert not place.exists()
    assert not list(elsewhere.iterdir())
    assert not processes_of(installation.directory)


def test_a_demonstration_without_its_second_worker_fails_in_time_and_clears_what_a_killed_one_left(
    installation: Installation,
) -> None:
    place = installation.directory / "demo"
    first = installation.start("demo", "--directory", str(place))
    eventually_sync((place / "boris" / "worker.log").exists, within_s=30)
    first.kill()
    first.communicate()
    assert processes_of(place)

    began = time.monotonic()
    failed = with_a_missing_worker(installation, place)
    assert failed.code == 1
    assert "failed: it was not over within 8 s" in failed.err
    assert "-- the end of anna/worker.log\n" in failed.err
    assert "registered" in failed.err
    assert time.monotonic() - began < 45
    assert not place.exists()
    assert not processes_of(installation.directory)


def test_the_demonstration_refuses_a_directory_that_is_none_of_its_own(installation: Installation) -> None:
    refused = installation.job("demo", "--directory", str(installation.directory))
    assert refused.code == 125
    assert "exists" in refused.err
    assert installation.directory.exists()
