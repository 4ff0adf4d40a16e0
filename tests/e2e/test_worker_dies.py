"""What becomes of a job whose worker, machine or broker dies: the page `when-a-worker-dies`, as tests."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from broker.wire.jobs import CancelRequest
from support.fleet import ended, output_of, starts_in, submit
from support.ports import port_that_was_free
from support.processes import processes_of
from support.waiting import eventually
from worker.process.identity import identify, is_alive
from worker.process.tree import children

SMALL = {"lease_s": "2", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": "3"}
STARTS = 'echo "$JOBD_JOB_ID.$JOBD_ATTEMPT" >> {file}; '
UNTIL = "until test -e {file}; do sleep 0.1; done; "


@pytest.fixture
async def quick(fleet):
    fleet.settings |= SMALL
    await fleet.start_broker()
    return fleet


async def running(client, job: int, *, attempt: int = 1) -> None:
    async def check() -> bool:
        got = await client.job_get(job)
        return got.state.value == "running" and got.attempt == attempt

    await eventually(check, within_s=30)


@pytest.mark.trial("B14")
@pytest.mark.guarantee("G7")
async def test_a_dead_machines_job_runs_elsewhere_and_the_history_says_why(quick) -> None:
    file = quick.directory / "starts"
    await quick.start_worker("a")
    async with quick.client() as client:
        go = quick.directory / "go"
        job = await submit(client, STARTS.format(file=file) + "echo began; " + UNTIL.format(file=go) + "echo done")
        await running(client, job)
        await quick.start_worker("b")
        quick.kill_machine("a")
        go.touch()
        done = await ended(client, job)

        assert done.state.value == "completed"
        assert [(a.worker, a.state.value) for a in done.assignments] == [("a", "expired"), ("b", "succeeded")]
        kinds = [event.type.value for event in (await client.job_events(job=job)).events]
        assert kinds == [
            "job_submitted",
            *("job_assigned", "assignment_acked", "job_started"),
            *("assignment_expired", "job_requeued"),
            *("job_assigned", "assignment_acked", "checkpoint_left_behind", "job_started", "job_completed"),
        ]
        assert await output_of(client, job, attempt=2) == b"began\ndone\n"
    assert starts_in(file) == 2


@pytest.mark.guarantee("G4", "G11")
async def test_a_worker_that_is_killed_and_restarted_finds_its_job_as_if_nothing_had_happened(quick) -> None:
    file = quick.directory / "starts"
    await quick.start_worker("a")
    async with quick.client() as client:
        job = await submit(
            client, STARTS.format(file=file) + "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done; exit 7"
        )
        await running(client, job)
        quick.kill_worker("a")
        await quick.start_worker("a")
        done = await ended(client, job)

        assert (done.state.value, done.exit_code) == ("failed", 7)
        assert [a.state.value for a in done.assignments] == ["failed"]
        assert await output_of(client, job) == b"1\n2\n3\n4\n5\n6\n"
    assert starts_in(file) == 1


@pytest.mark.trial("B13")
@pytest.mark.guarantee("G11")
async def test_a_job_that_ended_while_its_worker_was_dead_is_reported_with_its_real_exit_code(quick) -> None:
    await quick.start_worker("a")
    async with quick.client() as client:
        job = await submit(client, "sleep 0.7; echo bye; exit 3")
        await running(client, job)
        quick.kill_worker("a")
        await eventually(lambda: _only_files_left(quick, "a"))
        await quick.start_worker("a")
        done = await ended(client, job)

        assert (done.state.value, done.exit_code, len(done.assignments)) == ("failed", 3, 1)
        assert await output_of(client, job) == b"bye\n"


def _only_files_left(quick, name: str) -> bool:
    return not [p for p in processes_of(quick.directory / name) if "sleep" in p.command or "bash" in p.command]


@pytest.mark.trial("B05", "B12")
@pytest.mark.guarantee("G5")
async def test_a_frozen_worker_changes_nothing_when_it_thaws(quick) -> None:
    file = quick.directory / "starts"
    await quick.start_worker("a")
    async with quick.client() as client:
        until = UNTIL.format(file=quick.directory / "go.$JOBD_ATTEMPT")
        job = await submit(client, STARTS.format(file=file) + f"echo from $JOBD_ATTEMPT; {until}echo end $JOBD_ATTEMPT")
        await running(client, job)
        for process in processes_of(quick.directory / "a"):
            os.kill(process.pid, signal.SIGSTOP)
        await quick.start_worker("b")
        await running(client, job, attempt=2)
        for process in processes_of(quick.directory / "a"):
            os.kill(process.pid, signal.SIGCONT)
        # The stale copy is stopped when its worker is heard again: it would go on for ever.
        await eventually(
            lambda: not [p for p in processes_of(quick.directory / "a") if "go.$JOBD_ATTEMPT" in p.command]
        )
        (quick.directory / "go.2").touch()
        done = await ended(client, job)

        assert done.worker == "b"
        assert [a.state.value for a in done.assignments] == ["expired", "succeeded"]
        assert await output_of(client, job, attempt=2) == b"from 2\nend 2\n"


@pytest.mark.guarantee("G8", "G12")
async def test_a_job_that_must_not_run_twice_comes_back_with_its_worker(quick) -> None:
    file = quick.directory / "starts"
    await quick.start_worker("a")
    async with quick.client() as client:
        go = quick.directory / "go"
        command = STARTS.format(file=file) + UNTIL.format(file=go) + "echo whole"
        job = await submit(client, command, on_worker_lost="orphan")
        await running(client, job)
        quick.kill_worker("a")

        async def orphaned() -> bool:
            return (await client.job_get(job)).state.value == "orphaned"

        await eventually(orphaned)
        await quick.start_worker("a")
        await running(client, job)
        go.touch()
        done = await ended(client, job)

        assert done.state.value == "completed"
        assert [a.state.value for a in done.assignments] == ["succeeded"]
        assert done.assignments[0].expired_at is not None and done.assignments[0].resumed_at is not None
    assert starts_in(file) == 1


@pytest.mark.guarantee("G9")
async def test_an_exclusive_job_never_has_two_copies(fleet) -> None:
    file = fleet.directory / "log"
    fleet.settings |= SMALL | {"exclusive_lease_s": "3", "exclusive_margin_s": "1"}
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        command = f"echo + $JOBD_ATTEMPT >> {file}; trap 'echo - $JOBD_ATTEMPT >> {file}; exit' TERM; sleep 30 & wait"
        job = await submit(client, command, on_worker_lost="requeue_exclusive", checkpoint_grace_s=1)
        await running(client, job)
        fleet.kill_worker("a")  # its shim lives on, and stops the job when its lease is over
        await fleet.start_worker("b")
        await running(client, job, attempt=2)
        await client.job_cancel(CancelRequest(job=[job]))
        await ended(client, job)

    assert file.read_text().split("\n")[:3] == ["+ 1", "- 1", "+ 2"]


async def test_with_its_worker_gone_a_shim_stops_its_job_after_a_whole_lease(quick) -> None:
    await quick.start_worker("a")
    async with quick.client() as client:
        job = await submit(client, "sleep 60")
        await running(client, job)
        quick.kill_worker("a")

        await eventually(lambda: not [p for p in processes_of(quick.directory / "a") if "sleep 60" in p.command])


@pytest.mark.guarantee("G10")
async def test_a_broker_that_is_away_for_more_than_a_lease_reclaims_nothing(quick) -> None:
    await quick.start_worker("a")
    async with quick.client() as client:
        jobs = [await submit(client, "sleep 5; echo ok") for _ in range(3)]
        for job in jobs:
            await running(client, job)
        assert quick.broker is not None
        quick.broker.send_signal(signal.SIGSTOP)
        await _pass(4)
        quick.broker.send_signal(signal.SIGCONT)

        for job in jobs:
            done = await ended(client, job)
            assert (done.state.value, len(done.assignments)) == ("completed", 1)


async def _pass(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


async def test_a_worker_goes_on_taking_work_however_the_broker_restarts(quick) -> None:
    await quick.start_worker("a")
    async with quick.client() as client:
        for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            assert quick.broker is not None
            quick.broker.send_signal(how)
            quick.broker.wait(15)
            await quick.start_broker()
            job = await submit(client, "echo again")

            assert (await ended(client, job)).state.value == "completed"


@pytest.mark.trial("B23")
@pytest.mark.guarantee("G13")
async def test_a_cancel_reaches_a_job_that_was_started_before_its_worker_restarted(quick) -> None:
    await quick.start_worker("a")
    async with quick.client() as client:
        job = await submit(client, "trap '' TERM; while true; do sleep 0.1; done", checkpoint_grace_s=0.5)
        await running(client, job)
        quick.kill_worker("a")
        await quick.start_worker("a")
        await client.job_cancel(CancelRequest(job=[job]))
        done = await ended(client, job)

        assert done.state.value == "cancelled"
        assert not [p for p in processes_of(quick.directory / "a") if "while true" in p.command]


@pytest.mark.trial("B129")
async def test_what_was_killed_starts_again_at_once_on_the_same_port_and_a_sibling_is_left_alone(fleet) -> None:
    port = port_that_was_free()
    fleet.settings |= SMALL | {"lease_s": "20", "listen": f"127.0.0.1:{port}"}
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        go = fleet.directory / "go"
        first, second = [await submit(client, "echo began; " + UNTIL.format(file=go)) for _ in range(2)]
        for job in (first, second):
            await running(client, job)
        forked = [identify(pid) for parent in (fleet.broker.pid, fleet.workers["a"].pid) for pid in children(parent)]

        fleet.kill_broker()
        fleet.kill_worker("a")
        await fleet.start_broker()  # whoever held the port, a lock or a socket would stop it
        await fleet.start_worker("a")

        await client.job_cancel(CancelRequest(job=[first]))
        assert (await ended(client, first)).state.value == "cancelled"
        go.touch()
        done = await ended(client, second)
        assert (done.state.value, done.attempt) == ("completed", 1)
        assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=20, trust_env=False).status_code == 200
        assert forked
        await eventually(lambda: not [process for process in forked if is_alive(process)])
