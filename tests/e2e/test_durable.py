"""Accepted jobs are on disk before the answer: a broker that is killed in a storm of submits forgets none."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from broker.client import BrokerClient, Unreachable
from broker.wire.jobs import JobSpec
from broker.wire.problems import Refused

ROUNDS = 5
CLIENTS = 8


async def storm(fleet, seconds: float) -> set[str]:
    """Submit as fast as eight clients can, until the broker is killed; the names that were acknowledged."""
    acknowledged: set[str] = set()
    over = asyncio.Event()

    async def one(number: int) -> None:
        async with BrokerClient(fleet.url) as client:
            for n in range(100_000):
                if over.is_set():
                    return
                name = f"r{len(acknowledged)}-c{number}-{n}"
                with contextlib.suppress(Unreachable, Refused):
                    await client.job_submit(JobSpec(command="true", name=name, worker="nobody"))
                    acknowledged.add(name)

    clients = [asyncio.create_task(one(number)) for number in range(CLIENTS)]
    await asyncio.sleep(seconds)
    fleet.kill_broker()
    over.set()
    await asyncio.gather(*clients)
    return acknowledged


async def known_names(fleet) -> set[str]:
    async with fleet.client() as client:
        names: set[str] = set()
        cursor = None
        while True:
            page = await client.job_list(limit=200, cursor=cursor)
            names |= {job.name for job in page.jobs if job.name}
            cursor = page.next_cursor
            if cursor is None:
                assert page.total == sum(page.counts.values())
                return names


@pytest.mark.trial("B51")
@pytest.mark.guarantee("G1")
async def test_no_acknowledged_job_is_missing_after_a_kill_in_a_storm(fleet) -> None:
    acknowledged: set[str] = set()
    for _ in range(ROUNDS):
        await fleet.start_broker()
        new = await storm(fleet, random.uniform(0.5, 1.0))
        assert new, "the storm reached the broker"
        acknowledged |= new

    await fleet.start_broker()

    missing = acknowledged - await known_names(fleet)
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged jobs are missing"
