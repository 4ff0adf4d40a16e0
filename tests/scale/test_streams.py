"""Many who follow the same story: each hears all of it, once, and it is read once for all."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker.wire.jobs import CancelRequest
from support.waiting import eventually

STREAMS = 40
EVENTS = 900
ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


async def heard(socket: Path, *, since: int, last: int) -> list[int]:
    """The numbers of all events on one stream, up to `last`: none is missing, none comes twice."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=4 << 20)
    writer.write(f"GET /v1/events/stream?since={since} HTTP/1.1\r\nHost: jobd\r\n\r\n".encode())
    got: list[int] = []
    kept = b""
    try:
        async with asyncio.timeout(60):
            while not got or got[-1] < last:
                data = await reader.read(1 << 16)
                assert data, "the stream ended"
                whole, _, kept = (kept + data).rpartition(b"\n")
                got += [int(number) for number in ID.findall(whole)]
                assert got == list(range(since + 1, since + 1 + len(got)))
        return got
    finally:
        writer.close()


async def happen(counted, events: int) -> None:
    """So many: an array is submitted with one, and its members are cancelled with one each."""
    array = await counted.submit(count=events - 1)
    await counted.client.job_cancel(CancelRequest(array=array))


async def test_a_crowd_hears_every_event_once_and_in_order_and_reads_it_together(counted, short_dir: Path) -> None:
    socket = short_dir / "state" / "broker.sock"

    async def crowd() -> list[list[int]]:
        streams = [asyncio.create_task(heard(socket, since=n % 3, last=EVENTS)) for n in range(STREAMS)]
        for _ in range(EVENTS // 30):
            await happen(counted, 30)
        return await asyncio.gather(*streams)

    told: list[list[int]] = []

    async def act() -> None:
        told.extend(await crowd())

    spent = await counted.spent(act)

    assert [numbers[:EVENTS] for numbers in told] == [list(range(n % 3 + 1, EVENTS + 1)) for n in range(STREAMS)]
    pages = [statement for statement in spent.statements if "FROM events WHERE seq > " in statement]
    assert len(pages) < EVENTS // 30 * 8  # a read of its own for each stream and commit would be a thousand


@pytest.mark.trial("B103")
async def test_streams_that_stay_open_hold_no_transaction_and_a_stranger_that_does_is_outlived(
    counted, short_dir: Path
) -> None:
    """The write-ahead log is emptied under ten streams; while another program reads it waits, and then it is too."""
    state = short_dir / "state"
    wal = state / "jobd.sqlite3-wal"
    streams = []
    for _ in range(10):
        reader, writer = await asyncio.open_unix_connection(str(state / "broker.sock"))
        writer.write(b"GET /v1/events/stream?since=0 HTTP/1.1\r\nHost: jobd\r\n\r\n")
        streams.append((reader, writer))
    with closing(sqlite3.connect(state / "jobd.sqlite3", isolation_level=None)) as stranger:
        await counted.submit(count=EVENTS)
        for reader, _ in streams:
            await reader.readuntil(b"id: 1\n")
        await eventually(lambda: wal.stat().st_size == 0, within_s=30)

        stranger.execute("BEGIN")
        stranger.execute("SELECT count(*) FROM jobs").fetchone()
        await counted.submit(count=EVENTS)
        held = wal.stat().st_size
        assert (await counted.client.job_list()).total == 2 * EVENTS
        stranger.execute("COMMIT")

    await eventually(lambda: wal.stat().st_size == 0, within_s=30)
    assert held > 0
    for _, writer in streams:
        writer.close()


async def test_one_that_comes_late_reads_the_whole_story_from_the_beginning(counted, short_dir: Path) -> None:
    await happen(counted, EVENTS)

    told = await heard(short_dir / "state" / "broker.sock", since=0, last=EVENTS)

    assert told == list(range(1, EVENTS + 1))


async def test_what_a_busy_broker_keeps_in_memory_does_not_grow_with_what_it_did(counted) -> None:
    """Who waited for what is forgotten with the wait."""
    worker = await counted.registered("w1")
    for _ in range(20):
        job = await counted.submit()
        waits = asyncio.create_task(counted.client.job_wait([job], timeout_s=20))
        delivery = await worker.running()
        await worker.finish(delivery)
        assert (await waits).done

    wake, feed = counted.broker.wake, counted.broker.feed
    kept = [wake._jobs, wake._events, wake._parked, wake._ready_shapes, wake._roomy_workers, feed._reading, feed._turns]
    assert [len(one) for one in kept] == [0] * len(kept)
    assert list(wake._marks) in ([], [worker.id])
