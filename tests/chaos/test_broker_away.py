"""The broker's whole host sleeps, or the broker is down: longer than any lease, and nothing is taken away for it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from broker.client import BrokerClient
from broker.wire.events import EventType
from support.fleet import Fleet, ended, submit
from support.processes import processes_of
from support.waiting import eventually

LEASE_S = 3.0
AWAY_S = 3 * LEASE_S
POLICIES = {"a": "requeue", "b": "requeue_exclusive", "c": "orphan"}


@pytest.fixture
async def whole_fleet(fleet: Fleet) -> Fleet:
    fleet.settings |= {"lease_s": f"{LEASE_S:g}", "sweep_s": "0.3", "heartbeat_s": "0.5", "poll_s": "3"}
    await fleet.start_broker()
    for name in POLICIES:
        await fleet.start_worker(name, slots=1)
    return fleet


async def freeze(fleet: Fleet) -> None:
    assert fleet.broker is not None
    fleet.broker.send_signal(signal.SIGSTOP)
    await asyncio.sleep(AWAY_S)
    fleet.broker.send_signal(signal.SIGCONT)


async def stop_and_start(fleet: Fleet) -> None:
    assert fleet.broker is not None
    fleet.broker.send_signal(signal.SIGTERM)
    fleet.broker.wait(15)
    await asyncio.sleep(AWAY_S)
    await fleet.start_broker()


async def kill_and_start(fleet: Fleet) -> None:
    fleet.kill_broker()
    await asyncio.sleep(AWAY_S)
    await fleet.start_broker()


@pytest.mark.trial("B11")
@pytest.mark.parametrize("away", [freeze, stop_and_start, kill_and_start])
@pytest.mark.guarantee("G10")
async def test_a_broker_that_was_away_for_three_leases_takes_nothing_from_anybody(whole_fleet: Fleet, away) -> None:
    gate = whole_fleet.directory / "gate"
    async with whole_fleet.client() as client:
        command = f"while ! test -e {gate}; do sleep 0.1; done; exit 7"
        jobs = [await submit(client, command, worker=name, on_worker_lost=how) for name, how in POLICIES.items()]
        await eventually(lambda: all_run(client, jobs), within_s=30)
        # The third one can't be heard before the first pass: it has no chance but the broker's patience. (The shim of
        # an orphan waits for nobody.)
        silent = [process.pid for process in processes_of(whole_fleet.directory / "c")]
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        await away(whole_fleet)
        suppressed = await eventually(lambda: held_back(client), within_s=30)
        for pid in silent:
            os.kill(pid, signal.SIGCONT)

        assert suppressed >= AWAY_S - 2.0
        gate.touch()
        for job in jobs:
            done = await ended(client, job)
            assert (done.state.value, done.exit_code, len(done.assignments or [])) == ("failed", 7, 1)
        kinds = {event.type for event in (await client.job_events(limit=500)).events}
        assert not kinds & {EventType.ASSIGNMENT_EXPIRED, EventType.JOB_ORPHANED, EventType.JOB_REQUEUED}
        assert EventType.WORKER_LOST not in kinds


async def all_run(client: BrokerClient, jobs: list[int]) -> bool:
    return all([(await client.job_get(job)).state.value == "running" for job in jobs])


async def held_back(client: BrokerClient) -> float | None:
    """The time that the first pass left out, once that pass is over."""
    said = (await client.job_events(type=EventType.RECLAIM_SUPPRESSED)).events
    return max((float(event.data["gap_s"]) for event in said if event.data), default=None)
