"""Opening the database file: who may read it, what SQLite promises, and whole functions on a connection's own thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, cast

import aiosqlite

from broker.places import NETWORK_FILE_SYSTEMS, file_system_of
from broker.store.contract import StorageFailed, StoreUnusable

T = TypeVar("T")

WRITES = "PRAGMA journal_mode = WAL"
READS = "PRAGMA query_only = ON"

_WAL_LIMIT_BYTES = 64 << 20
_STARTING_S = 10.0
# At most, and only as far as it is used. The writer keeps the inner pages of all indexes, and what one group changes:
# a page that does not fit is written to the WAL before its time, and read again.
_WRITER_CACHE_KIB = 24 << 10
_READER_CACHE_KIB = 6 << 10

# Exactly one connection writes and moves the WAL into the database: SQLite before 3.51.3 can corrupt a database when
# two do. Hence no automatic checkpoints anywhere. What is replaced or deleted is overwritten: environment values, and
# what is pruned, are gone from the file, too.
_ALL = f"""
PRAGMA busy_timeout = 5000
PRAGMA synchronous = FULL
PRAGMA foreign_keys = ON
PRAGMA wal_autocheckpoint = 0
PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}
PRAGMA trusted_schema = OFF
PRAGMA cell_size_check = ON
PRAGMA fullfsync = ON
PRAGMA secure_delete = ON
"""


class Caller(Protocol):
    """Runs whole functions on one connection, one after the other. `pending`: how many were asked for and not answered."""

    pending: int

    async def call(self, fn: Callable[[sqlite3.Connection], T], /) -> T: ...

    async def close(self) -> None: ...


class Connection(aiosqlite.Connection):
    """A connection that runs whole functions on its thread, so that no await can come between two statements."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._thread.daemon = True  # a broker that dies of something else must not hang on a store nobody closed
        self.pending = 0

    async def call(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        if not self._running or self._connection is None:
            raise StorageFailed("the store is closed")
        self.pending += 1
        try:
            return cast(T, await self._execute(fn, self._connection))  # type: ignore[no-untyped-call]
        finally:
            self.pending -= 1

    async def thread_ended(self) -> None:
        """Wait for the thread of a connection that could not be opened: it still answers on this loop."""
        await asyncio.to_thread(self._thread.join, _STARTING_S)


def check_place(path: Path) -> None:
    """Refuse a network file system: there the WAL's shared memory and locks do not work."""
    kind = file_system_of(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{path.parent} is on a network file system ({kind}), where SQLite loses data; "
            "set JOBD_STATE_DIR to a directory on a disk of this machine"
        )


async def open_writer(path: Path) -> Connection:
    return await _opened(path, WRITES, _WRITER_CACHE_KIB)


async def open_reader(path: Path) -> Connection:
    return await _opened(path, READS, _READER_CACHE_KIB)


async def _opened(path: Path, own_pragma: str, cache_kib: int) -> Connection:
    connection = Connection(partial(connect, path, own_pragma, cache_kib))
    try:
        await connection
    except BaseException:
        await connection.thread_ended()
        raise
    return connection


def connect(path: Path, own_pragma: str, cache_kib: int) -> sqlite3.Connection:
    """A bare connection with all that is asked of each."""
    # Made here so that it is never readable by others, not even for a moment; WAL and index inherit its mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=512)
    try:
        for pragma in _ALL.strip().splitlines():
            connection.execute(pragma).fetchall()
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        _patiently(connection, own_pragma)
    except BaseException:
        connection.close()
        raise
    return connection


def _patiently(connection: sqlite3.Connection, pragma: str) -> None:
    """Switching to WAL needs the file alone and does not wait by itself: several starters would fail at random."""
    deadline = time.monotonic() + _STARTING_S
    while True:
        try:
            connection.execute(pragma).fetchall()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
