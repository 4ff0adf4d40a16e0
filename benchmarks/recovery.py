"""Seconds from the kill of a worker, which nobody restarts, to the first instruction of its job on another one.

    python benchmarks/recovery.py [--kills 30] [--lease-s 2] [--sweep-s 0.5]
    python benchmarks/recovery.py --defaults [--kills 1]

Between the two lie: what is left of the lease that the last word renewed, the sweep that finds it over, and the start
elsewhere. `--defaults` takes the settings as shipped: more than a minute a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import datetime

from figures import Table
from private import Private

from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, Job, JobSpec
from broker.wire.settings import BrokerSettings

SMALL = (2.0, 0.5)
LIMIT_S = 300.0


async def kill_one(own: Private, client: BrokerClient, workers: dict[str, int]) -> tuple[float, float]:
    """Kill the worker that has the job: seconds to `expired`, and to the first instruction on the other one."""
    starts = own.directory / "starts"
    starts.unlink(missing_ok=True)
    command = f"date +%s.%N >> {starts}; exec sleep 3600"
    job = (await client.job_submit(JobSpec(command=command, checkpoint_grace_s=0))).id
    assert job is not None
    first = await _running(client, job, attempt=1)
    assert first.worker is not None
    await asyncio.sleep(0.1 + time.time() % 0.5)  # the kill falls anywhere between two heartbeats
    killed = time.time()
    own.kill_worker(workers.pop(first.worker))
    await _running(client, job, attempt=2)
    while len(starts.read_text().split()) < 2:  # noqa: ASYNC110 - a file has nothing to wait on
        await asyncio.sleep(0.01)
    [expired] = (await client.job_events(job=job, type=EventType.ASSIGNMENT_EXPIRED)).events
    await client.job_cancel(CancelRequest(job=[job]))
    while not (await client.job_wait([job])).done:
        continue
    return datetime.timestamp(expired.at) - killed, float(starts.read_text().split()[1]) - killed


async def _running(client: BrokerClient, job: int, *, attempt: int) -> Job:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        seen = await client.job_get(job)
        if seen.state.value == "running" and seen.attempt == attempt:
            return seen
        await asyncio.sleep(0.02)
    raise SystemExit(f"job {job} does not run for the {attempt}. time within {LIMIT_S:g} s")


async def measure(kills: int, settings: dict[str, str], table: Table) -> list[float]:
    elsewhere = []
    async with Private(settings) as own, own.client() as client:
        workers = {"w0": await own.start_worker("w0", slots=1)}
        for number in range(1, kills + 1):
            name = f"w{number}"
            workers[name] = await own.start_worker(name, slots=1)
            expired_s, elsewhere_s = await kill_one(own, client, workers)
            table.add("assignment expired", s=expired_s)
            table.add("runs elsewhere", s=elsewhere_s)
            elsewhere.append(elsewhere_s)
    return elsewhere


def bars(lease_s: float, sweep_s: float) -> dict[str, float]:
    """What is asked for: of the small settings more than of all others."""
    if (lease_s, sweep_s) == SMALL:
        return {"median": 3.2, "most": 8.0}
    return {"most": lease_s + sweep_s + 2.0}


def compared(took: Sequence[float], wanted: dict[str, float]) -> str:
    """Each bar, and whether it was met."""
    reached = {"median": statistics.median(took), "most": max(took)}
    return "; ".join(
        f"{name} {reached[name]:.2f} s of at most {bar:g} s: {'met' if reached[name] <= bar else 'MISSED'}"
        for name, bar in wanted.items()
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--lease-s", type=float, default=SMALL[0])
    parser.add_argument("--sweep-s", type=float, default=SMALL[1])
    parser.add_argument("--defaults", action="store_true", help="lease and sweep as shipped")
    arguments = parser.parse_args()
    shipped = BrokerSettings()
    lease_s, sweep_s = (
        (shipped.lease_s, shipped.sweep_s) if arguments.defaults else (arguments.lease_s, arguments.sweep_s)
    )
    kills = arguments.kills or (1 if arguments.defaults else 30)
    table = Table(f"from the kill of a worker, {kills} times, lease {lease_s:g} s, sweep {sweep_s:g} s")
    took = await measure(kills, {"lease_s": f"{lease_s:g}", "sweep_s": f"{sweep_s:g}"}, table)
    table.show()
    print(f"  {compared(took, bars(lease_s, sweep_s))}")


if __name__ == "__main__":
    asyncio.run(main())
