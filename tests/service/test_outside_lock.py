"""Another program holds the database for longer than SQLite itself waits: clients wait, and never hear of it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest, JobSpec
from support.folding import differences_in

HELD_S = 6.0  # one try of SQLite's own waits 5 s


@pytest.mark.trial("B49")
async def test_no_client_hears_that_the_database_is_locked(bench) -> None:
    database = bench.directory / "jobd.sqlite3"
    over = asyncio.Event()
    submitted: list[int] = []

    async def works(client: BrokerClient) -> int:
        rounds = 0
        while not over.is_set():
            job = (await client.job_submit(JobSpec(command="true"))).id
            submitted.append(job)
            await client.job_list(limit=5)
            await client.job_cancel(CancelRequest(job=[job]))
            rounds += 1
        return rounds

    async def reads(client: BrokerClient) -> int:
        rounds = 0
        while not over.is_set():
            await client.job_list(limit=5)
            await client.worker_list()
            rounds += 1
        return rounds

    worker = await bench.registered()
    clients = [BrokerClient(f"unix://{bench.directory}/broker.sock") for _ in range(8)]
    busy = [asyncio.create_task(works(client)) for client in clients[:6]]
    readers = [asyncio.create_task(reads(client)) for client in clients[6:]]
    polls = asyncio.create_task(worker.report())
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = len(submitted)
        await asyncio.sleep(HELD_S)  # the lock itself
        assert len(submitted) - before <= len(busy), "at most what was on its way: the lock was held"
        other.execute("ROLLBACK")
    await polls
    over.set()
    rounds = await asyncio.gather(*busy)  # raises what a client was refused with
    looked = await asyncio.gather(*readers)
    for client in clients:
        await client.aclose()

    assert min(rounds) >= 1 and min(looked) >= 10
    assert len(set(submitted)) == len(submitted) == sum(rounds)
    assert differences_in(database) == []
