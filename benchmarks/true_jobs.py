"""Real jobs a second, end to end: /bin/true through the whole product, on one worker.

    python benchmarks/true_jobs.py [--jobs 300] [--slots 4] [--runs 3]

The time is that from the submit of an array to the end of its last job.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from figures import Table
from private import Private, cpu_s, tree

from broker.wire.jobs import JobSpec


async def measure(jobs: int, slots: int, table: Table) -> None:
    async with Private() as own, own.client() as client:
        worker = await own.start_worker(slots=slots)
        began = time.perf_counter()
        used_before_s = (cpu_s(own.broker_pid), cpu_s(*tree(worker)))
        array = (await client.job_submit(JobSpec(argv=["/bin/true"], count=jobs))).array
        assert array is not None
        while (counts := (await client.job_list(array=array, limit=1)).counts) != {"completed": jobs}:
            assert counts.keys() <= {"queued", "assigned", "running", "completed"}, counts
            await asyncio.sleep(0.05)
        passed_s = time.perf_counter() - began
        used_after_s = (cpu_s(own.broker_pid), cpu_s(*tree(worker)))
    broker_s, worker_s = (after - before for before, after in zip(used_before_s, used_after_s, strict=True))
    table.add(
        f"{slots} slots",
        jobs_per_s=jobs / passed_s,
        broker_CPU_ms_per_job=broker_s * 1e3 / jobs,
        worker_and_shims_CPU_ms_per_job=worker_s * 1e3 / jobs,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("true jobs: /bin/true from submit to end")
    for _ in range(arguments.runs):
        await measure(arguments.jobs, arguments.slots, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
