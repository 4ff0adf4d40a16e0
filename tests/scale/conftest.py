"""A broker whose statements and steps can be counted: what grows with the number of jobs shows, whatever the load."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.service.context import Broker
from broker.store.connection import Connection
from broker.wire.jobs import JobSpec
from broker.wire.settings import BrokerSettings
from support.scripted_worker import ScriptedWorker

INSTRUCTIONS_A_COUNT = 20


@dataclass
class Spent:
    """Statements that were run, and instructions of SQLite's machine in units of `INSTRUCTIONS_A_COUNT`."""

    statements: list[str] = field(default_factory=list)
    steps: int = 0


@dataclass
class Counted:
    broker: Broker
    client: BrokerClient

    async def registered(self, name: str, **fields: object) -> ScriptedWorker:
        worker = ScriptedWorker(self.client, name, **fields)
        await worker.register()
        return worker

    async def submit(self, **fields: object) -> int:
        said = await self.client.job_submit(JobSpec.model_validate({"command": "true", **fields}))
        return said.id or said.array or 0

    async def spent(self, act: Callable[[], Awaitable[object]]) -> Spent:
        """What the store does while `act` runs."""
        spent = Spent()
        connections: list[Connection] = [self.broker.store._writer, *self.broker.store._readers]
        for connection in connections:
            await connection.call(lambda raw: _count(raw, spent))
        try:
            await act()
        finally:
            for connection in connections:
                await connection.call(_stop_counting)
        return spent


def _count(raw: sqlite3.Connection, spent: Spent) -> None:
    def step() -> None:
        spent.steps += 1

    raw.set_progress_handler(step, INSTRUCTIONS_A_COUNT)
    raw.set_trace_callback(spent.statements.append)


def _stop_counting(raw: sqlite3.Connection) -> None:
    raw.set_progress_handler(None, 0)
    raw.set_trace_callback(None)


@pytest.fixture
async def counted(short_dir: Path) -> AsyncIterator[Counted]:
    async with AsyncExitStack() as stack:
        state = short_dir / "state"
        settings = BrokerSettings.model_validate({"sweep_s": 3600, "poll_s": 30})
        broker = await stack.enter_async_context(run_broker(settings, state, {}))
        client = await stack.enter_async_context(BrokerClient(f"unix://{state}/broker.sock"))
        yield Counted(broker, client)
