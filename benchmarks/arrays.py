"""An array of 10,000 members: its submit, questions about it while it runs, and its cancel.

    python benchmarks/arrays.py [--members 10000] [--workers 5] [--asks 200] [--runs 3]

Simulated workers with ten slots each run members as fast as they are given, while one client asks one question after
the other and submits jobs of its own. Then the array is cancelled: how long the answer takes, and how long after it the
last member starts (0: none does).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from cycle import SimulatedWorker
from figures import Table, percentile
from private import Private
from raw_http import Connection

SLOTS = 10
LISTENS_FOR_S = 2.5
SUBMITS: dict[str, dict[str, Any]] = {
    "submit, count": {"argv": ["/bin/true"]},
    "submit, words of its own": {"command": "train --seed {i} --out run_{i}", "name": "run-{i}", "cwd": "/tmp"},
}
QUESTIONS = {
    "list": "/v1/jobs?limit=20",
    "list of the members": "/v1/jobs?array={array}",
    "aggregate": "/v1/jobs/wait?array={array}&timeout_s=0",
}


@dataclass
class Runner(SimulatedWorker):
    """A worker that goes on when it is told to stop, and remembers when it was last allowed to start something."""

    started_at: float = 0.0

    async def _report(self, kind: str, given: list[dict[str, Any]], **fields: Any) -> None:
        named = [{"kind": kind, **{name: one[name] for name in ("job", "attempt", "token")}, **fields} for one in given]
        answer = await self._exchange("report", transitions=named)
        if kind == "ack" and any(verdict["verdict"] == "accepted" for verdict in answer["verdicts"]):
            self.started_at = time.perf_counter()


async def timed(call: Awaitable[Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = await call
    return (time.perf_counter() - began) * 1e3, answer


async def measure(own: Private, members: int, workers: int, asks: int, table: Table) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Connection(own.socket))
        for row, spec in SUBMITS.items():
            took_ms, array = await timed(client.call("POST", "/v1/jobs", {**spec, "count": members}))
            table.add(row, ms=took_ms)
            if row != next(iter(SUBMITS)):
                await client.call("POST", "/v1/jobs/cancel", {"array": array["array"]})
        fleet = [
            Runner(await stack.enter_async_context(Connection(own.socket)), f"r{n}", SLOTS) for n in range(workers)
        ]
        for worker in fleet:
            await worker.register()
        running = [asyncio.create_task(live(worker)) for worker in fleet]
        await ask(client, 1, asks, table)
        await cancel(client, 1, fleet, table)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def live(worker: Runner) -> None:
    while True:
        await worker.run(await worker.poll())


async def ask(client: Connection, array: int, asks: int, table: Table) -> None:
    took: dict[str, list[float]] = {}
    for _ in range(asks):
        for name, path in QUESTIONS.items():
            took.setdefault(name, []).append((await timed(client.call("GET", path.format(array=array))))[0])
        other = client.call("POST", "/v1/jobs", {"argv": ["/bin/true"], "needs": ["nobody-has-this"]})
        took.setdefault("submit of another job", []).append((await timed(other))[0])
    for name, ms in took.items():
        table.add(f"{name}, while it runs", p50_ms=percentile(ms, 0.5), p99_ms=percentile(ms, 0.99))


async def cancel(client: Connection, array: int, fleet: list[Runner], table: Table) -> None:
    took_ms, _ = await timed(client.call("POST", "/v1/jobs/cancel", {"array": array, "force": True}))
    answered_at = time.perf_counter()
    await asyncio.sleep(LISTENS_FOR_S)
    last_s = max(worker.started_at for worker in fleet) - answered_at
    table.add("cancel", ms=took_ms, last_start_s=max(0.0, last_s))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--asks", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(f"an array of {arguments.members:,} members, {arguments.workers} simulated workers")
    for _ in range(arguments.runs):
        async with Private() as own:
            await measure(own, arguments.members, arguments.workers, arguments.asks, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
