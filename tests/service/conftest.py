from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.service import sweeps
from broker.service.context import Broker
from broker.wire.jobs import JobSpec
from broker.wire.settings import BrokerSettings
from support.scripted_worker import ScriptedWorker, SteppedClock


@dataclass
class Bench:
    """A real broker on its private socket, with a clock that the test moves."""

    broker: Broker
    client: BrokerClient
    clock: SteppedClock
    directory: Path

    def worker(self, name: str = "w1", **fields: object) -> ScriptedWorker:
        return ScriptedWorker(self.client, name, **fields)

    async def registered(self, name: str = "w1", **fields: object) -> ScriptedWorker:
        worker = self.worker(name, **fields)
        await worker.register()
        return worker

    async def submit(self, **fields: object) -> int:
        said = await self.client.job_submit(JobSpec.model_validate({"command": "true", **fields}))
        return said.id or said.array or 0

    async def state(self, job: int) -> str:
        return (await self.client.job_get(job)).state.value

    async def assignments(self, job: int) -> list[str]:
        full = await self.client.job_get(job, detail="full")
        return [assignment.state.value for assignment in full.assignments or []]

    async def sweep(self, after_s: float = 0) -> None:
        self.clock.pass_s(after_s)
        for sweep in sweeps.SWEEPS:
            await sweep.run(self.broker)

    async def kinds(self, job: int) -> list[str]:
        return [event.type.value for event in (await self.client.job_events(job=job)).events]


@pytest.fixture
async def make_bench(short_dir: Path) -> AsyncIterator[Callable[..., AsyncIterator[Bench]]]:
    async with AsyncExitStack() as stack:

        async def make(**settings: object) -> Bench:
            clock = SteppedClock()
            state = short_dir / "state"
            known = BrokerSettings.model_validate({"lease_s": 60, "sweep_s": 3600, "poll_s": 5, **settings})
            broker = await stack.enter_async_context(run_broker(known, state, {}, clock=clock))
            client = await stack.enter_async_context(BrokerClient(f"unix://{state}/broker.sock"))
            return Bench(broker, client, clock, state)

        yield make


@pytest.fixture
async def bench(make_bench: Callable[..., AsyncIterator[Bench]]) -> Bench:
    return await make_bench()
