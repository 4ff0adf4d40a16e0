"""Workers that stay up go on taking work, whatever became of the broker or of the line that work comes by."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.client import BrokerClient
from support.fleet import Fleet, ended, submit
from support.lossy_proxy import LossyProxy
from support.waiting import eventually

WORKERS = ("a", "b", "c")
POLL_S = 1.0


@pytest.fixture
async def lines(fleet: Fleet) -> AsyncIterator[dict[str, LossyProxy]]:
    """Three idle workers, each behind a line of its own."""
    fleet.settings |= {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": f"{POLL_S:g}"}
    await fleet.start_broker()
    async with AsyncExitStack() as stack:
        made = {}
        for name in WORKERS:
            socket = fleet.directory / f"{name}.sock"
            proxy = LossyProxy(socket, fleet.state / "broker.sock", random.Random(3))
            made[name] = await stack.enter_async_context(proxy)
            await fleet.start_worker(name, url=f"unix://{socket}")
        yield made


async def all_take_work(fleet: Fleet, client: BrokerClient) -> None:
    for job in [await submit(client, "echo ok", worker=name) for name in WORKERS]:
        assert (await ended(client, job)).state.value == "completed"


async def told(fleet: Fleet, lines: dict[str, LossyProxy]) -> None:
    assert fleet.broker is not None
    fleet.broker.terminate()
    await asyncio.to_thread(fleet.broker.wait, 20)
    await fleet.start_broker()


async def killed(fleet: Fleet, lines: dict[str, LossyProxy]) -> None:
    fleet.kill_broker()
    await fleet.start_broker()


async def away(fleet: Fleet, lines: dict[str, LossyProxy]) -> None:
    fleet.kill_broker()
    await asyncio.sleep(3 * POLL_S)
    await fleet.start_broker()


async def polls_reset(fleet: Fleet, lines: dict[str, LossyProxy]) -> None:
    for line in lines.values():
        line.cut_off()
        line.be_honest()


async def moved(fleet: Fleet, lines: dict[str, LossyProxy]) -> None:
    """Behind the name that the workers know there is another address."""
    here = fleet.state / "broker.sock"
    there = here.rename(fleet.state / "moved.sock")
    here.symlink_to(there)  # for the test's own client
    for line in lines.values():
        line.cut_off()
        line.broker = there
        line.be_honest()


@pytest.mark.trial("B20")
async def test_workers_take_work_again_however_the_broker_went_away(fleet: Fleet, lines) -> None:
    epochs = {name: fleet.epoch(name) for name in WORKERS}
    async with fleet.client() as client:
        for goes in (told, killed, away, polls_reset, moved):
            await goes(fleet, lines)
            await all_take_work(fleet, client)
    assert {name: fleet.epoch(name) for name in WORKERS} == epochs, "no worker had to be started again"
    assert "the broker is not reachable" in (fleet.directory / "a.log").read_text()


@pytest.mark.trial("B21")
async def test_a_worker_whose_polls_vanish_is_heard_and_takes_work_when_they_pass_again(fleet: Fleet, lines) -> None:
    """Its heartbeats arrive all the time: only the channel that work comes by is dead."""
    async with fleet.client() as client:
        lines["a"].hole = b"/poll "
        await eventually(lambda: lines["a"].lost)
        job = await submit(client, "echo ok", worker="a")
        lost = lines["a"].lost
        # The worker gives such a poll up by itself, and tries another one.
        await eventually(lambda: lines["a"].lost > lost, within_s=60)
        seen = next(worker for worker in (await client.worker_list()).workers if worker.name == "a")
        assert (seen.state, (await client.job_get(job)).state.value) == ("online", "queued")
        lines["a"].be_honest()
        assert (await ended(client, job, within_s=60)).state.value == "completed"
