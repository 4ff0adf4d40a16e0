"""Another program holds the database: whoever asks meanwhile waits, and is not told of it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import JobSpec
from support.scripted_worker import ScriptedWorker

CLIENTS, ROUNDS, HELD_S = 12, 6, 1.0


@pytest.mark.trial("B49")
async def test_no_request_fails_while_another_program_holds_the_database_for_a_while(bench) -> None:
    answered = 0
    over = threading.Event()

    def holds_it_again_and_again() -> None:
        with sqlite3.connect(bench.directory / "jobd.sqlite3", timeout=30, isolation_level=None) as connection:
            while not over.is_set():
                connection.execute("BEGIN IMMEDIATE")
                over.wait(HELD_S)
                connection.execute("ROLLBACK")
                over.wait(HELD_S / 4)
        connection.close()

    async def asks(number: int) -> None:
        nonlocal answered
        async with BrokerClient(f"unix://{bench.directory}/broker.sock") as client:
            worker = ScriptedWorker(client, f"w{number}", slots=1)
            await worker.register()
            for _ in range(ROUNDS):
                job = (await client.job_submit(JobSpec(command="true", worker=worker.name))).id
                delivery = await worker.one()
                await worker.ack(delivery)
                await worker.start(delivery)
                await worker.write(delivery, b"line\n")
                await client.job_list()
                await worker.finish(delivery)
                assert (await client.job_get(job or 0)).state.value == "completed"
                answered += 1

    holder = asyncio.create_task(asyncio.to_thread(holds_it_again_and_again))
    try:
        await asyncio.gather(*(asks(number) for number in range(CLIENTS)))
    finally:
        over.set()
        await holder

    assert answered == CLIENTS * ROUNDS
    assert (await bench.client.job_list()).counts == {"completed": CLIENTS * ROUNDS}
