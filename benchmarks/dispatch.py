"""What a claim costs among many kinds of jobs, and far behind a queue for other machines.

    python benchmarks/dispatch.py [--shapes 200] [--queued 100000] [--workers 50] [--claims 2000] [--behind 100000]

"claims": workers with different tags take jobs of many distinct requirements; each has one job for some tenths of a
second and then asks for the next, as workers do. Seconds from a worker's poll to the job in its hands, among all the
other requests. "behind": a worker without GPUs is parked while jobs for GPUs are queued, all before the one job that it
can run: seconds from that job's submit to its delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import dataclass, field

from cycle import SimulatedWorker, fill
from figures import Table, percentile
from private import Private, cpu_s
from raw_http import Connection

HOLDS_S = (0.2, 0.8)
TAGS_OF_A_WORKER = 0.5


@dataclass
class Claims:
    left: int
    took_s: list[float] = field(default_factory=list)


async def live(worker: SimulatedWorker, claims: Claims, chance: random.Random) -> None:
    """Ask, hold, end, ask again; polls that come back empty say nothing of a claim. Not all begin in the same instant."""
    await asyncio.sleep(chance.uniform(0, 2 * HOLDS_S[1]))
    while claims.left > 0:
        asked = time.perf_counter()
        given = await worker.poll()
        if not given:
            continue
        claims.took_s.append(time.perf_counter() - asked)
        claims.left -= len(given)
        await worker.run(given, chance.uniform(*HOLDS_S))


async def measure_claims(shapes: int, queued: int, workers: int, number: int, table: Table) -> None:
    chance = random.Random(1)
    tags = [f"tag-{n}" for n in range(shapes)]
    async with Private() as own:
        for tag in tags:
            await fill(own, queued // shapes, needs=[tag])
        connections = [Connection(own.socket) for _ in range(workers)]
        for connection in connections:
            await connection.__aenter__()
        fleet = [
            SimulatedWorker(one, f"w{n}", 1, tuple(chance.sample(tags, int(shapes * TAGS_OF_A_WORKER))))
            for n, one in enumerate(connections)
        ]
        for worker in fleet:
            await worker.register()
        claims = Claims(number)
        began, before_s = time.perf_counter(), cpu_s(own.broker_pid)
        await asyncio.gather(*(live(worker, claims, chance) for worker in fleet))
        table.add(
            f"{workers} workers, {shapes} shapes, {queued:,} queued",
            p50_ms=percentile(claims.took_s, 0.5) * 1e3,
            p99_ms=percentile(claims.took_s, 0.99) * 1e3,
            claims_per_s=len(claims.took_s) / (time.perf_counter() - began),
            broker_CPU_ms_per_claim=(cpu_s(own.broker_pid) - before_s) * 1e3 / len(claims.took_s),
        )
        for connection in connections:
            await connection.__aexit__(None, None, None)


async def measure_behind(behind: int, number: int, table: Table) -> None:
    took_s: list[float] = []
    async with Private() as own, Connection(own.socket) as mine, Connection(own.socket) as its:
        await fill(own, behind, gpus=1, priority=10)
        worker = SimulatedWorker(its, "no-gpus", 1)
        await worker.register()
        for _ in range(number):
            parked = asyncio.create_task(worker.poll())
            await asyncio.sleep(0.1)
            asked = time.perf_counter()
            await mine.call("POST", "/v1/jobs", {"argv": ["/bin/true"]})
            given = await parked
            took_s.append(time.perf_counter() - asked)
            await worker.run(given, 0)
    table.add(
        f"one job behind {behind:,} for GPUs",
        p50_ms=percentile(took_s, 0.5) * 1e3,
        p99_ms=percentile(took_s, 0.99) * 1e3,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--claims", type=int, default=2000)
    parser.add_argument("--behind", type=int, default=100_000)
    parser.add_argument("--tries", type=int, default=100, help="jobs behind the others, one after the other")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("dispatch: from poll, or from submit, to the job in a worker's hands")
    for _ in range(arguments.runs):
        await measure_claims(arguments.shapes, arguments.queued, arguments.workers, arguments.claims, table)
        await measure_behind(arguments.behind, arguments.tries, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
