"""Whole lives of jobs over HTTP, without processes: claim, ack, start, finish, by simulated workers.

    python benchmarks/cycle.py [--cycles 1000] [--workers 16] [--depths 1000 100000] [--ineligible 50000] [--runs 3]

"one by one": a worker holds one job, and each transition is a request. "batches of 8": a worker holds eight, and
reports what happened to all of them at once. The depth is how many jobs stay queued all the while, `--ineligible` how
many more stand before all others with a higher priority: half of them need a tag that no worker has, half a directory
that every worker has refused. What a claim costs must depend on neither.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from figures import Table
from private import Private, cpu_s
from raw_http import Connection

from broker.wire.workers import PROTOCOL

MOST_IN_AN_ARRAY = 10_000
Key = tuple[int, int]


@dataclass
class Left:
    """Cycles that are still to be done, by whoever comes first."""

    cycles: int

    def done(self, number: int) -> bool:
        self.cycles -= number
        return self.cycles <= 0


@dataclass
class SimulatedWorker:
    """Says what a worker would say, and runs nothing."""

    connection: Connection
    name: str
    slots: int
    tags: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    seq: int = 0
    seen: int = 0
    held: dict[Key, dict[str, Any]] = field(default_factory=dict)

    async def register(self) -> None:
        said = {
            "name": self.name,
            "epoch": 1,
            "machine": self.id,
            "host": "simulated",
            "version": "0",
            "protocol": PROTOCOL,
        }
        await self.connection.call(
            "POST", f"/v1/workers/{self.id}/register", {**said, "slots": self.slots, "tags": self.tags}
        )

    async def refuse_first(self) -> None:
        """Say no to the places of the jobs that come first."""
        given = await self.poll()
        for one in given:
            del self.held[one["job"], one["attempt"]]
        final = {"outcome": "refused", "reason_code": "cwd_missing", "reason": "for the benchmark"}
        await self._report("finish", given, final=final)

    async def live(self, left: Left) -> None:
        """Cycle after cycle, until none is left."""
        while left.cycles > 0:
            given = await self.poll()
            await self.run(given)
            if left.done(len(given)):
                return

    async def run(self, given: list[dict[str, Any]], for_s: float = 0) -> None:
        """All transitions of these, to their ends."""
        await self._report("ack", given, shim="one")
        for one in given:
            self.held[one["job"], one["attempt"]]["phase"] = "running"
        await self._report("start", given, pid=1)
        if for_s:
            await asyncio.sleep(for_s)
        final = {"outcome": "exited", "exit_code": 0}
        for one in given:
            self.held[one["job"], one["attempt"]] |= {"phase": "ended", "final": final}
        await self._report("finish", given, final=final)
        for one in given:
            del self.held[one["job"], one["attempt"]]

    async def rest(self) -> None:
        """One poll that stays parked as long as the broker lets it."""
        await self._exchange("poll", wait_s=25)

    async def poll(self) -> list[dict[str, Any]]:
        answer = await self._exchange("poll", wait_s=5)
        self.seen = max(self.seen, answer.get("number") or 0)
        given: list[dict[str, Any]] = answer.get("deliveries") or []
        for one in given:
            self.held[one["job"], one["attempt"]] = {**_named(one), "phase": "preparing"}
        return given

    async def _report(self, kind: str, given: list[dict[str, Any]], **fields: Any) -> None:
        said = [{"kind": kind, **_named(one), **fields} for one in given]
        answer = await self._exchange("report", transitions=said)
        words = [verdict["verdict"] for verdict in answer["verdicts"] if verdict["kind"] == kind]
        if words != ["accepted"] * len(given):
            raise SystemExit(f"{kind} of {len(given)}: {words}")

    async def _exchange(self, what: str, **fields: Any) -> dict[str, Any]:
        self.seq += 1
        said = {"epoch": 1, "seq": self.seq, "seen": self.seen, "recovered": True, "held": list(self.held.values())}
        return await self.connection.call("POST", f"/v1/workers/{self.id}/{what}", {**said, **fields})


def _named(delivery: dict[str, Any]) -> dict[str, Any]:
    return {name: delivery[name] for name in ("job", "attempt", "token")}


async def fill(own: Private, jobs: int, **fields: Any) -> None:
    async with Connection(own.socket) as connection:
        while jobs > 0:
            count = min(jobs, MOST_IN_AN_ARRAY)
            await connection.call("POST", "/v1/jobs", {"argv": ["/bin/true"], "count": count, **fields})
            jobs -= count


async def measure(
    own: Private,
    workers: int,
    slots: int,
    cycles: int,
    row: str,
    table: Table,
    *,
    tags: tuple[str, ...] = (),
    refusing: bool = False,
) -> float:
    """Cycles a second. `refusing`: each worker refuses what it is given first."""
    connections = [Connection(own.socket) for _ in range(workers)]
    for connection in connections:
        await connection.__aenter__()
    fleet = [SimulatedWorker(one, f"{uuid.uuid4().hex[:8]}", slots, tags) for one in connections]
    for worker in fleet:
        await worker.register()
        if refusing:
            await worker.refuse_first()
    left = Left(cycles)
    began, before_s, own_before_s = time.perf_counter(), cpu_s(own.broker_pid), time.process_time()
    await asyncio.gather(*(worker.live(left) for worker in fleet))
    passed_s, done = time.perf_counter() - began, cycles - left.cycles
    table.add(
        row,
        jobs_per_s=done / passed_s,
        broker_CPU_ms_per_job=(cpu_s(own.broker_pid) - before_s) * 1e3 / done,
        generator_CPU_ms_per_job=(time.process_time() - own_before_s) * 1e3 / done,
    )
    for connection in connections:
        await connection.__aexit__(None, None, None)
    return done / passed_s


async def measure_behind(ineligible: int, workers: int, cycles: int, table: Table) -> None:
    """Batches only: they have the least else to pay for."""
    async with Private() as own:
        await fill(own, ineligible // 2, priority=50, cwd="/not/here")
        await fill(own, ineligible - ineligible // 2, priority=49, needs=["nobody-has-this"])
        await fill(own, cycles + 1000)
        row = f"1,000 queued behind {ineligible:,}, batches of 8"
        await measure(own, workers, 8, cycles, row, table, refusing=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--depths", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--ineligible", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(f"cycle: claim, ack, start, finish by {arguments.workers} simulated workers")
    for _ in range(arguments.runs):
        for depth in arguments.depths:
            async with Private() as own:
                await fill(own, depth)
                for slots, how in ((1, "one by one"), (8, "batches of 8")):
                    await fill(own, arguments.cycles + arguments.workers * slots)
                    row = f"{depth:,} queued, {how}"
                    await measure(own, arguments.workers, slots, arguments.cycles, row, table)
        if arguments.ineligible:
            await measure_behind(arguments.ineligible, arguments.workers, arguments.cycles, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
