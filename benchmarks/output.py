"""A job's output on its way to the broker's file: MB/s, and how much memory broker and worker take for it.

    python benchmarks/output.py [--megabytes 200] [--runs 3]

The job writes lines as fast as it can. The time is that from its start to the moment when the broker has everything.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from figures import Table
from private import Private, cpu_s, pss_mb

from broker.client import BrokerClient
from broker.wire.jobs import JobSpec

LINE = "step 001234 loss 0.123456 lr 3.0e-04 tokens/s 12345"


class Most:
    """The most memory that was seen so far."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.before_mb = self.mb = pss_mb(*pids)

    def look(self) -> None:
        self.mb = max(self.mb, pss_mb(*self._pids))

    @property
    def growth_mb(self) -> float:
        return self.mb - self.before_mb


async def arrived(client: BrokerClient, job: int) -> bool:
    deliveries = (await client.job_get(job, detail="full")).assignments
    return bool(deliveries and deliveries[0].log_complete)


async def measure(megabytes: int, table: Table) -> None:
    async with Private() as own, own.client() as client:
        worker = await own.start_worker()
        broker_most, worker_most = Most(own.broker_pid), Most(worker)
        used_before_s = cpu_s(own.broker_pid), cpu_s(worker)
        began = time.perf_counter()
        job = (await client.job_submit(JobSpec(command=f"yes '{LINE}' | head -c {megabytes}M"))).id
        assert job is not None
        while not await arrived(client, job):
            broker_most.look()
            worker_most.look()
            await asyncio.sleep(0.05)
        passed_s = time.perf_counter() - began
        size = (await client.job_get(job)).log_bytes
        assert size == megabytes << 20, size
        table.add(
            f"{megabytes} MB",
            MB_per_s=megabytes / passed_s,
            broker_growth_MB=broker_most.growth_mb,
            worker_growth_MB=worker_most.growth_mb,
            broker_CPU_ms_per_MB=(cpu_s(own.broker_pid) - used_before_s[0]) * 1e3 / megabytes,
            worker_CPU_ms_per_MB=(cpu_s(worker) - used_before_s[1]) * 1e3 / megabytes,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("output: from the job to the broker's file")
    for _ in range(arguments.runs):
        await measure(arguments.megabytes, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
