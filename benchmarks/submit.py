"""Jobs a second that are accepted durably over HTTP, by one client and by many at once.

    python benchmarks/submit.py [--jobs 1000] [--clients 1 16] [--array 10000] [--runs 3]

Each request is one job, and is answered when it is on the disk. No worker is online. The clients run in this process,
on the same machine as the broker: their processor time is shown too.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from figures import Table, percentile
from private import Private, cpu_s
from raw_http import Connection

BODY = b'{"command":"python train.py --seed 1","cwd":"/tmp","name":"train"}'


async def measure(own: Private, clients: int, jobs: int, table: Table) -> None:
    took_s: list[float] = []

    async def client() -> None:
        async with Connection(own.socket) as connection:
            for _ in range(jobs // clients):
                began = time.perf_counter()
                await connection.call("POST", "/v1/jobs", BODY)
                took_s.append(time.perf_counter() - began)

    began, before_s, own_before_s = time.perf_counter(), cpu_s(own.broker_pid), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    passed_s = time.perf_counter() - began
    table.add(
        f"{clients} clients" if clients > 1 else "1 client",
        jobs_per_s=len(took_s) / passed_s,
        p50_ms=percentile(took_s, 0.5) * 1e3,
        p99_ms=percentile(took_s, 0.99) * 1e3,
        broker_CPU_ms_per_job=(cpu_s(own.broker_pid) - before_s) * 1e3 / len(took_s),
        client_CPU_ms_per_job=(time.process_time() - own_before_s) * 1e3 / len(took_s),
    )


async def measure_array(own: Private, count: int, table: Table) -> None:
    async with Connection(own.socket) as connection:
        began = time.perf_counter()
        await connection.call("POST", "/v1/jobs", {"argv": ["/bin/true"], "count": count})
        table.add(f"an array of {count:,} in one request", s=time.perf_counter() - began)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--array", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("submit: durable jobs over HTTP")
    for _ in range(arguments.runs):
        async with Private() as own:
            await measure(own, 4, 200, Table("warming up"))
            for clients in arguments.clients:
                await measure(own, clients, arguments.jobs, table)
            await measure_array(own, arguments.array, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
