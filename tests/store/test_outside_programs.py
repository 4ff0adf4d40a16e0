"""Other programs on the database file, for as long as they like: a shell left open, a backup, a lock held. And damage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store import integrity
from broker.store.contract import StorageBusy, StoreUnusable
from broker.store.sqlite import Limits, SqliteStore
from support.waiting import eventually

MIB = 1 << 20
ROW = 16 << 10


@contextlib.contextmanager
def outsider(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def wal_bytes(path: Path) -> int:
    wal = path.with_name(path.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0


async def write(store: SqliteStore, count: int, bytes_: int = ROW) -> None:
    await asyncio.gather(
        *(store.run(lambda tx: tx.insert("add", word=os.urandom(8).hex(), bytes=bytes_)) for _ in range(count))
    )


# ---- a program that holds the lock


@pytest.mark.trial("B49")
async def test_a_lock_held_for_longer_than_one_try_is_waited_for(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    await store.run(lambda tx: tx.all("wait_briefly"))  # so that one try takes a moment only
    with outsider(tmp_path / "jobd.db") as other:
        other.execute("BEGIN IMMEDIATE")
        asked = [
            asyncio.create_task(store.run(lambda tx: tx.insert("add_returning", word=os.urandom(8).hex())))
            for _ in range(20)
        ]
        done, _ = await asyncio.wait(asked, timeout=1.0)
        assert not done
        other.execute("COMMIT")

        assert sorted(await asyncio.gather(*asked)) == list(range(1, 21))


async def test_a_lock_held_for_ever_is_refused_in_our_own_words(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db", limits=Limits(busy_s=0.3))
    await store.run(lambda tx: tx.all("wait_briefly"))
    with outsider(tmp_path / "jobd.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageBusy) as busy:
            await store.run(lambda tx: tx.insert("add", word="a", bytes=1))
        assert "locked" not in str(busy.value)
        assert await store.read(lambda tx: tx.all("count")) is not None
        other.execute("ROLLBACK")
    assert await store.run(lambda tx: tx.insert("add", word="a", bytes=1)) == 1


# ---- a program that reads for long


@pytest.mark.trial("B103")
async def test_the_wal_stays_small_under_our_own_readers(open_store, tmp_path: Path) -> None:
    """48 MiB of rows, read all the while: the WAL never has more than 16 MiB."""
    path = tmp_path / "jobd.db"
    store = await open_store(path)
    largest, over = 0, asyncio.Event()

    async def reads() -> None:
        while not over.is_set():
            await store.read(lambda tx: tx.all("count"))

    readers = [asyncio.create_task(reads()) for _ in range(4)]
    for _ in range(96):
        await write(store, 32)
        largest = max(largest, wal_bytes(path))
    over.set()
    await asyncio.gather(*readers)

    assert path.stat().st_size > 40 * MIB
    assert 0 < largest <= 16 * MIB


@pytest.mark.trial("B103")
async def test_behind_an_outside_reader_the_wal_grows_is_told_and_shrinks_when_it_leaves(
    open_store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobd.db"
    store = await open_store(path, limits=Limits(wal_bytes=4 * MIB))
    with outsider(path) as other, caplog.at_level(logging.WARNING):
        other.execute("BEGIN")
        before = other.execute("SELECT count(*) FROM things").fetchone()
        for _ in range(40):
            await write(store, 32)
        grown = wal_bytes(path)
        assert grown > 16 * MIB
        assert other.execute("SELECT count(*) FROM things").fetchone() == before
        other.execute("COMMIT")
    told = [record for record in caplog.records if "another program reads" in record.getMessage()]
    assert 1 <= len(told) <= 6, "once, and with each doubling"

    await write(store, 300)  # work goes on: nobody waits for a pause

    assert wal_bytes(path) <= 9 * MIB < grown
    await eventually(lambda: wal_bytes(path) == 0)  # and in a pause it is empty


# ---- damage


def spoil(path: Path, at: int, size: int = 4096) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(os.urandom(size))


async def filled(open_store, path: Path) -> None:
    store = await open_store(path)
    await write(store, 200, 2000)
    await store.close()


@pytest.mark.parametrize("where", ["header", "first page", "in the middle", "cut off"])
async def test_a_damaged_database_is_refused_with_what_to_do(open_store, tmp_path: Path, where: str) -> None:
    path = tmp_path / "jobd.db"
    await filled(open_store, path)
    size = path.stat().st_size
    match where:
        case "header":
            spoil(path, 0, 100)
        case "first page":
            spoil(path, 100, 3000)
        case "in the middle":
            for at in range(4096 * 4, size - 4096, 4096):
                spoil(path, at)
        case _:
            os.truncate(path, size // 2)
    was = path.read_bytes()

    with pytest.raises(StoreUnusable, match=r"is damaged.*job restore FILE --force") as refused:
        await open_store(path)

    assert refused.value.lasting
    assert path.read_bytes() == was


async def test_a_database_that_takes_too_long_to_check_is_opened_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "large.db"
    with outsider(path) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) "
            "INSERT INTO t SELECT randomblob(3000) FROM n"
        )
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        with caplog.at_level(logging.WARNING):
            integrity.check(connection, path, limit_s=0.001)
        assert "too large to be checked whole" in caplog.text
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (40000,)


async def test_a_lock_at_the_start_is_no_damage(open_store, tmp_path: Path) -> None:
    """Another try may open it: a service manager should make one."""
    path = tmp_path / "jobd.db"
    await filled(open_store, path)
    with outsider(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnusable) as refused:
            await open_store(path)
    assert not refused.value.lasting
