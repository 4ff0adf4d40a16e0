"""The broker's disk: the real SQLite and its real statements, each group run in one piece, with modelled waits.

A crash comes before a group, or after its commit and before anybody hears of it. There is nothing between: a group is
one transaction.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from broker.store import connection
from broker.store.sqlite import Connect

T = TypeVar("T")

_CACHE_KIB = 2048


class Disk:
    """`slow_s`: how long each operation may take, at most. `crash_at`: asked before and after each group."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.slow_s = 0.004
        self.crash_at: Callable[[str], bool] = lambda where: False
        self.opened: Callable[[sqlite3.Connection], None] = lambda connection: None
        self.committed: Callable[[sqlite3.Connection], None] = lambda connection: None
        self._full = False
        self._connections: list[sqlite3.Connection] = []
        self.connect = Connect(self._writer, self._reader)

    async def wait(self) -> None:
        await asyncio.sleep(self.slow_s * self._chance.random() ** 4)

    def limit(self, *, full: bool) -> None:
        """Full: the database may not grow. What is in it already can be changed, as far as no page is needed."""
        self._full = full
        for one in self._connections[:1]:
            self._limit(one)

    def _limit(self, one: sqlite3.Connection) -> None:
        (pages,) = one.execute("PRAGMA page_count").fetchone()
        one.execute(f"PRAGMA max_page_count = {pages if self._full else 1 << 30}")

    def let_go(self) -> None:
        """Its process is dead: no transaction is open, since each ran in one piece."""
        for one in self._connections:
            one.close()
        self._connections.clear()

    async def _writer(self, path: Path) -> _Lane:
        one = self._open(path, connection.WRITES)
        return _Writer(self, one)

    async def _reader(self, path: Path) -> _Lane:
        return _Lane(self, self._open(path, connection.READS))

    def _open(self, path: Path, pragma: str) -> sqlite3.Connection:
        one = connection.connect(path, pragma, _CACHE_KIB)
        one.execute("PRAGMA synchronous = OFF")  # the crash is a model; this is memory
        self._connections.append(one)
        return one

    def forget(self, one: sqlite3.Connection) -> None:
        self._connections.remove(one)


class _Lane:
    """One connection: what is asked of it runs whole, one after the other."""

    def __init__(self, disk: Disk, one: sqlite3.Connection) -> None:
        self.pending = 0
        self._disk, self._one = disk, one

    async def call(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        self.pending += 1
        try:
            await self._disk.wait()
            return fn(self._one)
        finally:
            self.pending -= 1

    async def close(self) -> None:
        while self.pending:  # a thread closes its connection after what was asked of it before
            await asyncio.sleep(0.001)
        self._disk.forget(self._one)
        self._one.close()


class _Writer(_Lane):
    def __init__(self, disk: Disk, one: sqlite3.Connection) -> None:
        super().__init__(disk, one)
        self._watched = False

    async def call(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        disk = self._disk
        await disk.wait()
        if disk.crash_at("before a commit"):
            await asyncio.Future()  # nothing of this process runs again
        done = fn(self._one)
        if not self._watched and _has_tables(self._one):
            self._watched = True
            disk.opened(self._one)
            disk._limit(self._one)
        if self._watched:
            disk.committed(self._one)
        if disk.crash_at("after a commit"):
            await asyncio.Future()
        await disk.wait()
        return done


def _has_tables(one: sqlite3.Connection) -> bool:
    """It has been migrated."""
    names = one.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {("jobs",), ("assignments",), ("dependencies",)} <= set(names)
