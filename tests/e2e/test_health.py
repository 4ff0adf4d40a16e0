"""What real workers notice: what jobs use, checkpoints that are safe, and a machine that starts nothing."""

from __future__ import annotations

import pytest

from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec
from broker.wire.states import JobState
from broker.wire.workers import WorkerState, WorkerUpdate
from jobd_mcp.cli import machines, rendering
from support.fleet import Fleet, ended, submit
from support.waiting import eventually

SAVED = "jobd-checkpoint-complete"


@pytest.fixture
async def quick(fleet: Fleet) -> Fleet:
    fleet.settings |= {"heartbeat_s": "0.3", "sweep_s": "0.3", "poll_s": "2", "probe_s": "0.2", "lease_s": "30"}
    fleet.settings["max_launch_failures"] = "3"
    await fleet.start_broker()
    await fleet.start_worker("w1")
    return fleet


async def delivery_of(client: BrokerClient, job: int):
    return ((await client.job_get(job, detail="full")).assignments or [])[-1]


async def shown(client: BrokerClient, job: int) -> str:
    return "\n".join(rendering.job((await client.job_get(job, detail="full")).model_dump(mode="json")))


async def test_a_safe_checkpoint_is_an_event_while_the_job_runs_and_once(quick: Fleet) -> None:
    async with quick.client() as client:
        job = await submit(client, f"echo begin; echo {SAVED}; sleep 900")

        async def told() -> bool:
            return bool((await client.job_events(job=job, type=EventType.CHECKPOINT_COMPLETE)).events)

        await eventually(told, within_s=30)
        assert (await client.job_get(job)).state is JobState.RUNNING
        assert (await delivery_of(client, job)).checkpoint_at is not None
        quick.kill_worker("w1")
        await quick.start_worker("w1")
        again = await submit(client, f"echo {SAVED}; echo {SAVED} no; exit 0")
        assert (await ended(client, again)).state is JobState.COMPLETED
        assert len((await client.job_events(job=again, type=EventType.CHECKPOINT_COMPLETE)).events) == 1
        assert len((await client.job_events(job=job, type=EventType.CHECKPOINT_COMPLETE)).events) == 1
        assert "checkpoint" in await shown(client, job)


async def test_what_short_and_long_jobs_used_is_there_at_the_end_and_the_long_ones_before(quick: Fleet) -> None:
    async with quick.client() as client:
        short = await submit(client, "true")
        await ended(client, short)
        peak = (await delivery_of(client, short)).peak
        assert peak is not None and peak.rss_mb and peak.cpu_s is not None
        assert (peak.vram_mb, peak.gpu) == (None, None)

        hog = "import time; held = bytearray(80 << 20); time.sleep(900)"
        long = await submit(client, f'python3 -c "{hog}"')

        async def seen() -> bool:
            deliveries = (await client.job_get(long, detail="full")).assignments or []
            return any(one.peak is not None and (one.peak.rss_mb or 0) >= 80 for one in deliveries)

        await eventually(seen, within_s=30)
        assert f"{long}.1 used: memory" in await shown(client, long)


@pytest.mark.guarantee("G32")
async def test_a_machine_on_which_no_program_is_found_is_cordoned_and_resumed_by_hand(quick: Fleet) -> None:
    async with quick.client() as client:
        for number in range(3):
            spec = JobSpec(argv=[f"/no/such/program-{number}"], project=f"p{number}")
            said = await client.job_submit(spec)
            assert said.id is not None
            assert (await ended(client, said.id)).reason.code == "launch_failed"  # type: ignore[union-attr]

        answer = await client.worker_list()
        assert [worker.state for worker in answer.workers] == [WorkerState.CORDONED]
        told = "\n".join(machines.workers(answer.model_dump(mode="json")))
        assert "w1 was cordoned by the broker: 3 starts in a row failed" in told
        assert "/no/such/program-2" in told
        waits = await submit(client, "true")
        assert "3 starts in a row" in (await client.job_get(waits)).waiting.message  # type: ignore[union-attr]
        await client.worker_update("w1", WorkerUpdate(resume=True))
        assert (await ended(client, waits)).state is JobState.COMPLETED
