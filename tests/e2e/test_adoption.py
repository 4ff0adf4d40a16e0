"""Processes that were started by hand become jobs: real ones, under a real broker and worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.places import machine_identity
from broker.wire.adoptions import AdoptRequest
from broker.wire.jobs import CancelRequest
from support.adoptee import Adoptee, close
from support.fleet import Fleet, ended, output_of, submit
from support.installation import Installation
from support.processes import processes_of
from support.waiting import eventually, eventually_sync

UNTIL_GO = "until test -e go; do sleep 0.05; done"
Hand = Callable[..., Adoptee]


@pytest.fixture
def by_hand(short_dir: Path) -> Iterator[Hand]:
    made: list[Adoptee] = []

    def start(script: str, **options: object) -> Adoptee:
        made.append(Adoptee(script, short_dir, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    close(made)


def seen(start: int) -> str:
    return f"{machine_identity()}:{start}"


async def adopted(client: BrokerClient, process: Adoptee, **spec: object) -> int:
    """Its job, once its worker has confirmed it."""
    said = await client.job_adopt(
        AdoptRequest(pid=process.pid, start=seen(process.start), worker="w1", spec=spec or None)
    )
    assert said.id is not None
    assert said.state.value == "running"
    await eventually(lambda: _confirmed(client, said.id or 0))
    return said.id


async def _confirmed(client: BrokerClient, job: int) -> bool:
    full = await client.job_get(job, detail="full")
    return [one.state.value for one in full.assignments or []] == ["started"]


@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (42, "failed")])
async def test_the_exit_code_of_a_process_that_is_no_child_of_ours_is_its_own(
    fleet_with_worker: Fleet, by_hand: Hand, code: int, state: str
) -> None:
    process = by_hand(f"{UNTIL_GO}; exit {code}")
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process)
        (fleet_with_worker.directory / "go").touch()
        got = await ended(client, job)

    assert (got.state.value, got.exit_code, got.kind, got.attempt) == (state, code, "adopted", 1)


async def test_its_files_are_followed_from_the_adoption_on(fleet_with_worker: Fleet, by_hand: Hand) -> None:
    path = fleet_with_worker.directory / "train.log"
    process = by_hand(f"echo early; touch said; {UNTIL_GO}; echo late; echo error >&2", output=path)
    await eventually((fleet_with_worker.directory / "said").exists)
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process, name="by hand")
        (fleet_with_worker.directory / "go").touch()
        await ended(client, job)
        lines = (await output_of(client, job)).decode().splitlines()

    assert lines[0].startswith(f"[jobd: adopted process {process.pid}: bash -c echo early")
    assert lines[1] == f"[jobd: its output is followed from byte 6 of {path}]"
    assert lines[2:] == ["late", "error"]


async def test_a_log_says_where_its_output_goes_if_that_is_no_file(fleet_with_worker: Fleet, by_hand: Hand) -> None:
    process = by_hand(UNTIL_GO)
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process)
        (fleet_with_worker.directory / "go").touch()
        await ended(client, job)
        log = await output_of(client, job)

    assert b"its output goes to /dev/null, and not to a file: nothing of it is shown here" in log


STUBBORN = "trap '' TERM; (trap '' TERM; setsid bash -c \"trap '' TERM; touch up; while :; do sleep 0.1; done\") & wait"


@pytest.mark.parametrize("way", ["cancel", "preempt", "max_wall"])
@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_a_stop_ends_the_process_and_all_below_it_and_it_is_never_run_again(
    fleet_with_worker: Fleet, by_hand: Hand, way: str
) -> None:
    process = by_hand(STUBBORN)
    await eventually((fleet_with_worker.directory / "up").exists)
    limits = {"max_wall_s": 0.5} if way == "max_wall" else {}
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process, checkpoint_grace_s=0.3, preemptible=True, **limits)
        if way == "cancel":
            await client.job_cancel(CancelRequest(job=[job]))
        if way == "preempt":
            await client.job_preempt(job)
        got = await ended(client, job)

    expected = {"cancel": "cancelled", "preempt": "preempted", "max_wall": "failed"}[way]
    assert (got.state.value, got.attempt) == (expected, 1)
    assert not [one for one in processes_of(fleet_with_worker.directory) if "TERM" in one.command]


@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_a_worker_that_starts_again_goes_on_looking_after_it(fleet_with_worker: Fleet, by_hand: Hand) -> None:
    process = by_hand(f"{UNTIL_GO}; exit 7")
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process)
        fleet_with_worker.kill_worker("w1")
        await fleet_with_worker.start_worker("w1")
        assert (await client.job_get(job)).state.value == "running"
        (fleet_with_worker.directory / "go").touch()
        got = await ended(client, job)

    assert (got.state.value, got.exit_code, got.attempt) == ("failed", 7, 1)


@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_one_whose_worker_is_lost_is_orphaned_and_comes_back_with_it(fleet: Fleet, by_hand: Hand) -> None:
    fleet.settings |= {"lease_s": "2", "sweep_s": "0.2", "heartbeat_s": "0.3", "poll_s": "3"}
    await fleet.start_broker()
    await fleet.start_worker("w1")
    process = by_hand(f"{UNTIL_GO}; exit 7")
    async with fleet.client() as client:
        job = await adopted(client, process)
        fleet.kill_worker("w1")
        await ended(client, job)
        lost = await client.job_get(job)
        assert process.alive
        await fleet.start_worker("w1")
        await eventually(lambda: _runs(client, job))
        (fleet.directory / "go").touch()
        got = await ended(client, job)

    assert (lost.state.value, lost.exit_code) == ("orphaned", None)
    assert (got.state.value, got.exit_code, got.attempt) == ("failed", 7, 1)


async def _runs(client: BrokerClient, job: int) -> bool:
    return (await client.job_get(job)).state.value == "running"


@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_an_end_that_nobody_asked_about_is_unknown_and_no_exit_code_is_made_up(
    fleet_with_worker: Fleet, by_hand: Hand
) -> None:
    parent = by_hand("(touch begun; until test -e go; do sleep 0.05; done; exit 3) & echo $! > pid; exec sleep 600")
    await eventually((fleet_with_worker.directory / "begun").exists)
    pid = int((fleet_with_worker.directory / "pid").read_text())
    async with fleet_with_worker.client() as client:
        job = (await client.job_adopt(AdoptRequest(pid=pid))).id or 0
        await eventually(lambda: _confirmed(client, job))
        (fleet_with_worker.directory / "go").touch()
        got = await ended(client, job)

    assert parent.alive, "it is the parent that never asks how its child ended"
    assert (got.state.value, got.exit_code, got.attempt) == ("orphaned", None, 1)
    assert got.reason is not None
    assert got.reason.code == "exit_code_unobservable"


async def _refused(client: BrokerClient, request: AdoptRequest) -> tuple[str, str]:
    job = (await client.job_adopt(request)).id or 0
    got = await ended(client, job, within_s=15)
    assert got.reason is not None
    assert [one.state.value for one in got.assignments or []] == ["refused"]
    return got.state.value, got.reason.code


@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_another_process_than_the_one_named_is_not_touched(fleet_with_worker: Fleet, by_hand: Hand) -> None:
    process = by_hand(UNTIL_GO)
    ended_one = by_hand("true")
    await eventually(lambda: not ended_one.alive)
    async with fleet_with_worker.client() as client:
        later = AdoptRequest(pid=process.pid, start=seen(process.start - 1), worker="w1")
        assert await _refused(client, later) == ("failed", "adopt_pid_mismatch")
        assert await _refused(client, AdoptRequest(pid=ended_one.pid)) == ("failed", "adopt_pid_gone")
        assert process.alive


@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_processes_of_jobd_itself_and_of_its_jobs_are_left_as_they_are(
    fleet_with_worker: Fleet, by_hand: Hand
) -> None:
    fleet = fleet_with_worker
    assert fleet.broker is not None
    async with fleet.client() as client:
        own = await submit(client, "echo $$ > pid; exec sleep 600", cwd=str(fleet.directory))
        await eventually(lambda: (fleet.directory / "pid").exists() and (fleet.directory / "pid").read_text().strip())
        of_a_job = int((fleet.directory / "pid").read_text())
        for pid in (1, fleet.broker.pid, fleet.workers["w1"].pid):
            assert await _refused(client, AdoptRequest(pid=pid)) == ("failed", "adopt_protected")
        told = await client.job_adopt(AdoptRequest(pid=of_a_job))
        got = await ended(client, told.id or 0)
        assert got.reason is not None
        assert (got.reason.code, str(own) in got.reason.message) == ("adopt_of_a_job", True)
        assert (await client.job_get(own)).state.value == "running"
        await client.job_cancel(CancelRequest(job=[own]))
        await ended(client, own)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may be another user")
@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_a_process_of_another_user_is_not_adopted(fleet_with_worker: Fleet) -> None:
    process = subprocess.Popen(["sleep", "600"], user=65534)
    try:
        async with fleet_with_worker.client() as client:
            assert await _refused(client, AdoptRequest(pid=process.pid)) == ("failed", "adopt_uid_mismatch")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


async def the_shim_of(fleet: Fleet, job: int) -> int:
    record = fleet.directory / "w1" / "workers" / "w1" / "assignments" / f"{job}.1" / "start.json"
    return int(json.loads(record.read_text())["shim"]["pid"])


@pytest.mark.trial("B98")
@pytest.mark.guarantee("G43")
async def test_it_outlives_what_looks_after_it_and_is_looked_after_again(
    fleet_with_worker: Fleet, by_hand: Hand
) -> None:
    path = fleet_with_worker.directory / "train.log"
    process = by_hand(f"{UNTIL_GO}; echo late; exit 7", output=path)
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process)
        first = await the_shim_of(fleet_with_worker, job)
        os.kill(first, signal.SIGKILL)

        async def another_one() -> bool:
            return await the_shim_of(fleet_with_worker, job) != first

        await eventually(another_one)
        (fleet_with_worker.directory / "go").touch()
        got = await ended(client, job)
        lines = (await output_of(client, job)).decode().splitlines()

    assert (got.state.value, got.exit_code, got.attempt) == ("failed", 7, 1)
    assert lines[-1] == "late"
    assert [line for line in lines if "looked after it was killed" in line]


async def test_a_limit_on_its_silence_goes_by_the_file_that_it_writes(fleet_with_worker: Fleet, by_hand: Hand) -> None:
    process = by_hand("while :; do sleep 0.1; done", output=fleet_with_worker.directory / "train.log")
    mute = by_hand(UNTIL_GO)
    async with fleet_with_worker.client() as client:
        got = await ended(client, await adopted(client, process, idle_timeout_s=0.5))
        assert got.reason is not None
        assert (got.state.value, got.reason.code) == ("failed", "idle_timeout")
        unseen = AdoptRequest(pid=mute.pid, spec={"idle_timeout_s": 0.5})
        assert await _refused(client, unseen) == ("failed", "adopt_output_elsewhere")
        assert mute.alive


def test_the_command_knows_which_process_is_meant_and_names_it(installation: Installation) -> None:
    installation.good("up")
    process = Adoptee(f"cd {installation.directory}; {UNTIL_GO}; exit 5", installation.directory)
    try:
        eventually_sync(lambda: b"online" in installation.good("workers").out)
        told = installation.good("adopt", str(process.pid), "--max-wall-s", "60").text
        job = told.split()[1]
        assert told == f"job {job} running\n"
        shown = installation.ask(f"/v1/jobs/{job}").json()
        assert (shown["kind"], shown["name"].startswith("bash -c")) == ("adopted", True)
        assert "is job" in installation.job("adopt", str(process.pid)).err
        (installation.directory / "go").touch()
        assert installation.job("wait", job).code == 5
        assert "there is no process 4194305 here" in installation.job("adopt", "4194305").err
    finally:
        process.close()
