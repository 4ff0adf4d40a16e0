"""The store on SQLite: one connection writes in groups, two read. `architecture.md`, "The store takes whole transactions"."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from broker.failpoint import failpoint
from broker.store import migrate, statements
from broker.store.batch import Committer, Done, Failed, Outcome, Work, checkpoint
from broker.store.connection import Caller, check_place, open_reader, open_writer
from broker.store.contract import Listener, StorageBusy, StorageFailed, StorageFull, StoreUnusable, Tx
from broker.store.integrity import check, damaged, is_damage
from broker.store.migrate import Migration
from broker.store.reserve import Reserve
from broker.store.statements import Statements
from broker.store.transaction import translated

T = TypeVar("T")

LARGEST_BATCH = 256
READERS = 2

_IDLE_S = 2.0
_CHECKPOINT_FUNCTIONS = 500  # a function writes a few pages: between about 1,000 and 4,000 pages of WAL
_CHECKPOINT_BYTES = 4 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """`wal_bytes`: a larger WAL is emptied at the next chance, and said to grow if it can't be. `busy_s`: how long a
    commit waits for another program that holds the database, before it is refused."""

    wal_bytes: int = 64 << 20
    busy_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Schema:
    """What a database holds and what may be said to it."""

    migrations: Sequence[Migration]
    names: Statements


@dataclass(frozen=True, slots=True)
class Connect:
    """Opens the connection that writes, and one that reads."""

    writer: Callable[[Path], Awaitable[Caller]]
    reader: Callable[[Path], Awaitable[Caller]]


def own_schema() -> Schema:
    return Schema(migrate.load(), statements.load())


async def open_sqlite(
    path: Path,
    *,
    clock_ms: Callable[[], int],
    on_commit: Listener | None = None,
    schema: Schema | None = None,
    committer: type[Committer] = Committer,
    limits: Limits | None = None,
    connect: Connect | None = None,
) -> SqliteStore:
    """Open the database at `path`, making or migrating it. Raises StoreUnusable where that must not be done.

    `connect`: how connections are made and called; by default each has a thread of its own.
    """
    connect = connect or Connect(open_writer, open_reader)
    check_place(path)
    schema = schema or own_schema()
    reserve = Reserve(path.with_name(path.name + "-ballast"))
    try:
        try:
            connections = await _opened(path, schema, connect)
        except sqlite3.OperationalError as error:
            if not isinstance(translated(error), StorageFull) or not reserve.give_up():
                raise
            connections = await _opened(path, schema, connect)
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, sqlite3.Error) and is_damage(error):
            raise damaged(path, str(error)) from error
        raise StoreUnusable(f"{path} can't be opened: {error}", lasting=False) from error
    commit = committer(schema.names, clock_ms, reserve)
    return SqliteStore(path, connections[0], connections[1:], commit, on_commit, limits or Limits())


async def _opened(path: Path, schema: Schema, connect: Connect) -> list[Caller]:
    """The writer, with the schema brought up to date, and the readers."""
    connections: list[Caller] = []
    try:
        connections.append(await connect.writer(path))
        await connections[0].call(partial(check, path=path))
        await connections[0].call(partial(migrate.migrate, migrations=schema.migrations))
        for _ in range(READERS):
            connections.append(await connect.reader(path))  # each is closed if the next one fails
    except BaseException:
        for connection in connections:
            await connection.close()
        raise
    return connections


@dataclass(frozen=True, slots=True)
class _Asked:
    work: Work
    answer: asyncio.Future[object]


class SqliteStore:
    """`contract.Store`. Made by `open_sqlite`; belongs to the event loop on which it was made."""

    def __init__(
        self,
        path: Path,
        writer: Caller,
        readers: Sequence[Caller],
        committer: Committer,
        on_commit: Listener | None,
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._wal_warned_bytes = 0
        self._wal = path.with_name(path.name + "-wal")
        self._writer = writer
        self._readers = readers
        self._committer = committer
        self._on_commit = on_commit
        self._queue: deque[_Asked] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._since_checkpoint = 0
        self._wal_bytes_seen = 0
        self.commits = 0
        self._loop = asyncio.get_running_loop().create_task(self._write(), name="store writer")

    async def run(self, fn: Callable[[Tx], T], *, admits: bool = False) -> T:
        if self._closing or self._loop.done():
            raise StorageFailed("the store is closed")
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._queue.append(_Asked(Work(fn, admits), answer))
        self._wake.set()
        return cast(T, await answer)

    async def read(self, fn: Callable[[Tx], T]) -> T:
        if self._closing:
            raise StorageFailed("the store is closed")
        reader = min(self._readers, key=lambda connection: connection.pending)
        return await reader.call(partial(self._committer.read, fn))

    def listen(self, on_commit: Listener | None) -> None:
        self._on_commit = on_commit

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._loop])
        self._refuse_queued()
        for reader in self._readers:  # before the writer: the last one to close moves the WAL
            await reader.close()
        await self._writer.call(partial(checkpoint, mode="TRUNCATE"))
        await self._writer.close()

    async def _write(self) -> None:
        """Commit what is queued, group after group, until the store closes. Between bursts, empty the WAL."""
        try:
            while not (self._closing and not self._queue):
                if self._queue:
                    await self._commit_group()
                    await self._checkpoint_when_due()
                elif not await self._woken():
                    await self._when_idle()
        finally:
            self._refuse_queued()

    async def _commit_group(self) -> None:
        group = [self._queue.popleft() for _ in range(min(len(self._queue), LARGEST_BATCH))]
        batch = [asked.work for asked in group]
        try:
            outcomes = await self._committed(batch)
        except Exception as error:  # whatever it was, these callers get an answer and the next group its turn
            _log.exception("a group of %d transactions failed", len(batch))
            outcomes = [Failed(StorageFailed(f"the store failed: {error}")) for _ in group]
        except BaseException:
            self._queue.extendleft(reversed(group))
            raise
        self.commits += 1
        self._since_checkpoint += len(group)
        self._publish(outcomes)
        failpoint("published")
        for asked, outcome in zip(group, outcomes, strict=True):
            _answer(asked.answer, outcome)

    async def _committed(self, batch: Sequence[Work]) -> Sequence[Outcome]:
        """The outcomes of a group. While another program holds the database, nothing is done, and it is tried again."""
        until = time.monotonic() + self._limits.busy_s
        while True:
            outcomes = await self._writer.call(lambda connection: self._committer.commit(connection, batch))
            busy = isinstance(outcomes[0], Failed) and isinstance(outcomes[0].error, StorageBusy)
            if not busy or time.monotonic() >= until:
                return outcomes
            _log.warning("another program holds %s; waiting for it", self._wal.with_suffix(""))

    def _publish(self, outcomes: Sequence[Outcome]) -> None:
        notices = [notice for outcome in outcomes if isinstance(outcome, Done) for notice in outcome.notices]
        if not notices or self._on_commit is None:
            return
        try:
            self._on_commit(notices)
        except Exception:  # what is committed stays so: a listener that fails must not fail the writers
            _log.exception("the listener of the store failed")

    async def _woken(self) -> bool:
        """Wait for work; False if none came for a while."""
        self._wake.clear()
        if self._queue or self._closing:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_S):
                await self._wake.wait()
            return True
        return False

    async def _checkpoint_when_due(self) -> None:
        grown = self._wal_bytes() - self._wal_bytes_seen
        short = not self._committer.has_room  # a WAL that starts again at its beginning needs no new room
        if short or self._since_checkpoint >= _CHECKPOINT_FUNCTIONS or grown >= _CHECKPOINT_BYTES:
            await self._checkpoint("TRUNCATE" if self._wal_bytes() > self._limits.wal_bytes else "PASSIVE")

    async def _when_idle(self) -> None:
        if self._wal_bytes():
            await self._checkpoint("TRUNCATE")

    async def _checkpoint(self, mode: str) -> None:
        failpoint("checkpoint_next")
        await self._writer.call(partial(checkpoint, mode=mode))
        self._since_checkpoint = 0
        self._wal_bytes_seen = self._wal_bytes()
        self._warn_of_a_reader()

    def _warn_of_a_reader(self) -> None:
        """A WAL that stays large after it should have been emptied: once, and again with each doubling."""
        if self._wal_bytes_seen <= self._limits.wal_bytes:
            self._wal_warned_bytes = 0
        elif self._wal_bytes_seen >= 2 * self._wal_warned_bytes:
            self._wal_warned_bytes = self._wal_bytes_seen
            _log.warning(
                "%s has %d MiB and can't be emptied: another program reads the database for long",
                self._wal,
                self._wal_bytes_seen >> 20,
            )

    def _wal_bytes(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _refuse_queued(self) -> None:
        while self._queue:
            _answer(self._queue.popleft().answer, Failed(StorageFailed("the store is closed")))


def _answer(answer: asyncio.Future[object], outcome: Outcome) -> None:
    if answer.done():  # its waiter was cancelled; the transaction stands
        return
    if isinstance(outcome, Done):
        answer.set_result(outcome.value)
    elif isinstance(outcome.error, StopIteration) or not isinstance(outcome.error, Exception):
        # A future refuses the first; the others would end the loop of whoever waits, though nobody meant that.
        mistake = RuntimeError(f"a transaction raised {outcome.error!r}")
        mistake.__cause__ = outcome.error
        answer.set_exception(mistake)
    else:
        answer.set_exception(outcome.error)
