"""Milliseconds of `job_get` and of `job_list` of 50, with each of its filters, among many jobs.

    python benchmarks/queries.py [--jobs 100000] [--asks 300] [--runs 3]

One client asks one question after the other on a kept connection. A tenth of the jobs is in another project, has a
name of its own, and was cancelled: so each filter has to find few among many.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from figures import Table, percentile
from private import Private, cpu_s
from raw_http import Connection

MOST_IN_AN_ARRAY = 10_000
QUESTIONS = {
    "job_get": "/v1/jobs/{job}",
    "job_get, full": "/v1/jobs/{job}?detail=full",
    "job_list": "/v1/jobs?limit=50",
    "job_list, deep page": "/v1/jobs?limit=50&cursor={job}",
    "job_list, state": "/v1/jobs?limit=50&state=cancelled",
    "job_list, project": "/v1/jobs?limit=50&project=rare",
    "job_list, project and state": "/v1/jobs?limit=50&project=rare&state=cancelled",
    "job_list, array": "/v1/jobs?limit=50&array=1",
    "job_list, name": "/v1/jobs?limit=50&name=rare",
    "job_list, name of most": "/v1/jobs?limit=50&name=common",
}


async def fill(connection: Connection, jobs: int) -> None:
    left = jobs
    while left > 0:
        count = min(left, MOST_IN_AN_ARRAY)
        rare = left <= jobs // 10
        word = "rare" if rare else "common"
        said = {"argv": ["/bin/true"], "count": count, "name": word, "project": word}
        await connection.call("POST", "/v1/jobs", said)
        left -= count
    await connection.call("POST", "/v1/jobs/cancel", {"project": "rare", "reason": "for the benchmark"})


async def measure(own: Private, jobs: int, asks: int, table: Table) -> None:
    async with Connection(own.socket) as connection:
        await fill(connection, jobs)
        for name, path in QUESTIONS.items():
            took_s, before_s = [], cpu_s(own.broker_pid)
            for n in range(asks):
                began = time.perf_counter()
                await connection.call("GET", path.format(job=1 + n * 7919 % jobs))
                took_s.append(time.perf_counter() - began)
            table.add(
                name,
                p50_ms=percentile(took_s, 0.5) * 1e3,
                p99_ms=percentile(took_s, 0.99) * 1e3,
                broker_CPU_ms=(cpu_s(own.broker_pid) - before_s) * 1e3 / asks,
            )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--asks", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(f"queries among {arguments.jobs:,} jobs")
    for _ in range(arguments.runs):
        async with Private() as own:
            await measure(own, arguments.jobs, arguments.asks, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
