"""Milliseconds from the sending of a submit to the job's first instruction, with an idle worker whose poll is parked.

    python benchmarks/submit_to_start.py [--jobs 40] [--runs 3]

The job is /bin/date, which prints when it runs. Between the two lie: the job on the disk, the claim on the disk, the
way to the worker, the shim on its disk, the accepted ack, and exec.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import datetime

from figures import Table, percentile
from private import Private

from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec


async def one(client: BrokerClient) -> tuple[float, dict[EventType, float]]:
    """Seconds to the first instruction, and to each event on the way."""
    sent = time.time()
    job = (await client.job_submit(JobSpec(argv=["/bin/date", "+%s.%N"]))).id
    assert job is not None
    while not (await client.job_wait([job])).done:
        continue
    while not (output := b"".join([p async for p in client.job_output(job)])):  # noqa: ASYNC110 - the tail may be late
        await asyncio.sleep(0.01)
    events = (await client.job_events(job=job)).events
    # The broker's events have whole milliseconds.
    return float(output) - sent, {event.type: datetime.timestamp(event.at) - sent for event in events}


async def measure(jobs: int, table: Table) -> None:
    async with Private() as own, own.client() as client:
        await own.start_worker()
        for _ in range(5):
            await one(client)
        took = [await one(client) for _ in range(jobs)]
    starts_ms = [start_s * 1e3 for start_s, _ in took]
    table.add("first instruction", p50_ms=percentile(starts_ms, 0.5), p99_ms=percentile(starts_ms, 0.99))
    for kind in (EventType.JOB_SUBMITTED, EventType.JOB_ASSIGNED, EventType.ASSIGNMENT_ACKED):
        table.add(f"  {kind.value}", p50_ms=percentile([events[kind] * 1e3 for _, events in took], 0.5))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("submit to start, from the sending of the submit")
    for _ in range(arguments.runs):
        await measure(arguments.jobs, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
