"""A live job is declared dead, and its worker says otherwise: both are believed, each in its time."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from broker.wire.jobs import CancelRequest
from support.fleet import Fleet, ended, output_of, starts_in, submit
from support.processes import Process, processes_of
from support.waiting import eventually

SMALL = {"lease_s": "2", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": "3"}


@pytest.fixture
async def quick(fleet: Fleet) -> Fleet:
    fleet.settings |= SMALL
    await fleet.start_broker()
    await fleet.start_worker("a")
    return fleet


async def in_state(client, job: int, state: str) -> None:
    async def check() -> bool:
        return (await client.job_get(job)).state.value == state

    await eventually(check, within_s=30)


def command(quick: Fleet) -> str:
    return f"echo + >> {quick.directory}/starts; until test -e {quick.directory}/go; do sleep 0.1; done; echo whole"


def lives(quick: Fleet) -> bool:
    return any("until test" in process.command for process in processes_of(quick.directory / "a"))


@pytest.mark.trial("B12")
@pytest.mark.guarantee("G8", "G12", "G24")
async def test_a_job_that_was_written_off_comes_back_with_the_children_that_it_took_along(quick) -> None:
    async with quick.client() as client:
        job = await submit(client, command(quick), on_worker_lost="orphan")
        child = await submit(client, "echo child", depends_on=[job])
        await in_state(client, job, "running")
        quick.workers["a"].send_signal(signal.SIGSTOP)
        await in_state(client, job, "orphaned")
        taken_along = await client.job_get(child)
        quick.workers["a"].send_signal(signal.SIGCONT)
        await in_state(client, job, "running")
        restored = await client.job_get(child)
        (quick.directory / "go").touch()

        assert (taken_along.state.value, restored.state.value) == ("cancelled", "queued")
        done = await ended(client, job)
        assert (done.state.value, [a.state.value for a in done.assignments]) == ("completed", ["succeeded"])
        assert await output_of(client, job) == b"whole\n"
        assert (await ended(client, child)).state.value == "completed"
        kinds = [event.type.value for event in (await client.job_events(job=child)).events]
        assert kinds[:3] == ["job_submitted", "job_cancelled", "job_uncancelled"]
    assert starts_in(quick.directory / "starts") == 1


@pytest.mark.trial("B12")
@pytest.mark.guarantee("G14")
async def test_a_job_that_was_cancelled_while_its_worker_was_frozen_is_stopped_when_it_thaws(quick) -> None:
    async with quick.client() as client:
        job = await submit(client, command(quick), on_worker_lost="orphan")
        await in_state(client, job, "running")
        quick.workers["a"].send_signal(signal.SIGSTOP)
        await client.job_cancel(CancelRequest(job=[job]))
        await in_state(client, job, "cancelled")  # the worker is lost; the word given stands
        alive = lives(quick)
        quick.workers["a"].send_signal(signal.SIGCONT)

        await eventually(lambda: not lives(quick))
        assert alive
        got = await client.job_get(job, detail="full")
        assert (got.state.value, [a.state.value for a in got.assignments]) == ("cancelled", ["expired"])


@pytest.mark.trial("B12")
@pytest.mark.guarantee("G14")
async def test_a_job_that_was_cancelled_after_it_was_lost_stays_cancelled(quick) -> None:
    async with quick.client() as client:
        job = await submit(client, command(quick))
        await in_state(client, job, "running")
        frozen = processes_of(quick.directory / "a")
        send(frozen, signal.SIGSTOP)
        await in_state(client, job, "queued")
        await client.job_cancel(CancelRequest(job=[job]))
        alive = lives(quick)
        send(frozen, signal.SIGCONT)

        await eventually(lambda: not lives(quick))
        await eventually(lambda: heard_again(client))
        assert alive
        assert (await client.job_get(job)).state.value == "cancelled"
    assert starts_in(quick.directory / "starts") == 1


def send(processes: list[Process], number: signal.Signals) -> None:
    """A short sleep of the job may have ended meanwhile."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def heard_again(client) -> bool:
    worker = (await client.worker_list()).workers[0]
    return worker.state == "online" and not worker.running


@pytest.mark.trial("B12")
@pytest.mark.guarantee("G12")
async def test_a_job_that_the_worker_does_not_have_is_not_believed_to_run(fleet: Fleet) -> None:
    """The other direction: its records are gone, and the worker comes back without it, long before its lease is over."""
    fleet.settings |= SMALL | {"lease_s": "120"}
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        job = await submit(client, command(fleet))
        await in_state(client, job, "running")
        fleet.kill_machine("a")
        for spec in (fleet.directory / "a").rglob("spec.json"):
            spec.unlink()
        (fleet.directory / "go").touch()
        await fleet.start_worker("a")
        done = await ended(client, job)

        assert [a.state.value for a in done.assignments] == ["expired", "succeeded"]
        assert done.assignments[0].reason.code == "worker_lost_it"
