"""Group commit on one SQLite connection: many functions, each under a savepoint, one COMMIT.

Synchronous and without a loop or a thread of its own: `sqlite.py` calls it on the writer's thread.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker.failpoint import failpoint
from broker.store.contract import StorageBusy, StorageError, StorageFailed, StorageFull, Tx
from broker.store.reserve import Reserve
from broker.store.statements import Statements
from broker.store.transaction import SqliteTx, translated

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """A function to run. `admits`: it lets new work in, and gets no share of the reserve."""

    fn: Callable[[Tx], object]
    admits: bool


@dataclass(frozen=True, slots=True)
class Done:
    value: object
    notices: Sequence[object]


@dataclass(frozen=True, slots=True)
class Failed:
    error: BaseException


Outcome = Done | Failed


class _Lost(Exception):
    """The whole transaction is gone, for this reason."""

    def __init__(self, reason: StorageError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Committer:
    """Runs functions on a connection. Whatever a function or the disk does, `commit` answers for each function and leaves no transaction."""

    def __init__(self, statements: Statements, clock_ms: Callable[[], int], reserve: Reserve) -> None:
        self._statements = statements
        self._clock_ms = clock_ms
        self._reserve = reserve

    def commit(self, connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
        """The outcomes, in the order of `batch`, all of them on disk. Where that can't be had for all, one by one."""
        self._reserve.restore()
        try:
            return self._together(connection, batch)
        except _Lost as lost:
            if _is_busy(lost):
                return [Failed(StorageBusy("another program holds the broker's database")) for _ in batch]
            if isinstance(lost.reason, StorageFull):
                self._empty_wal(connection)
            return [self._alone(connection, work) for work in batch]

    @property
    def has_room(self) -> bool:
        """The reserve is in place."""
        return self._reserve.held

    def read(self, fn: Callable[[Tx], T], connection: sqlite3.Connection) -> T:
        """Run `fn` on a snapshot, on a connection that can't write."""
        tx = SqliteTx(connection, self._statements, self._clock_ms(), writes=False)
        try:
            connection.execute("BEGIN")
            return fn(tx)
        except (sqlite3.Error, MemoryError) as error:
            raise translated(error) or error from error
        finally:
            tx.end()
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _together(self, connection: sqlite3.Connection, batch: Sequence[Work]) -> list[Outcome]:
        """One transaction for all. Raises _Lost, with nothing kept, if SQLite gives it up."""
        try:
            with _telling_what_was_lost():
                connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._under_savepoint(connection, work) for work in batch]
            failpoint("writing")
            with _telling_what_was_lost():
                connection.execute("COMMIT")
            failpoint("committed")
            return outcomes
        finally:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    def _under_savepoint(self, connection: sqlite3.Connection, work: Work) -> Outcome:
        """Run one function; what it raises undoes its own changes only."""
        if work.admits and not self._reserve.held:
            return Failed(StorageFull("the disk of the broker's database is full: no new work is taken"))
        tx = SqliteTx(connection, self._statements, self._clock_ms(), writes=True)
        with _telling_what_was_lost():
            connection.execute("SAVEPOINT fn")
        outcome: Outcome
        try:
            outcome = Done(work.fn(tx), tx.notices)
        except BaseException as error:  # the caller's own: it goes to the caller, and the thread lives on
            outcome = Failed(error)
        tx.end()
        if tx.lost is not None:
            raise _Lost(tx.lost)
        with _telling_what_was_lost():
            if isinstance(outcome, Failed):
                connection.execute("ROLLBACK TO fn")
            connection.execute("RELEASE fn")
        return outcome

    def _alone(self, connection: sqlite3.Connection, work: Work) -> Outcome:
        """A transaction of its own; on a full disk once more with the reserve, unless it lets new work in."""
        outcome = self._once(connection, work)
        if _is_full(outcome) and not work.admits and self._reserve.give_up():
            outcome = self._once(connection, work)
        return outcome

    def _once(self, connection: sqlite3.Connection, work: Work) -> Outcome:
        try:
            return self._together(connection, [work])[0]
        except _Lost as lost:
            if isinstance(lost.reason, StorageFull):
                self._empty_wal(connection)
            return Failed(lost.reason)

    def _empty_wal(self, connection: sqlite3.Connection) -> None:
        """Give back what the WAL took for a transaction that is undone now: it may be all the room there was.

        What is committed moves into the database first, which may have to grow: hence with the reserve.
        """
        self._reserve.give_up()
        checkpoint(connection, "TRUNCATE")
        self._reserve.restore()


def checkpoint(connection: sqlite3.Connection, mode: str) -> None:
    """Move what the WAL holds into the database. Best effort: a disk that refuses will be asked again."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout = 50")  # a reader in its snapshot must not hold the writer up
        connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    connection.execute("PRAGMA busy_timeout = 5000")


@contextlib.contextmanager
def _telling_what_was_lost() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, MemoryError) as error:
        raise _Lost(translated(error) or StorageFailed(str(error))) from error


def _is_full(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, StorageFull)


def _is_busy(lost: _Lost) -> bool:
    """Another program holds the database: each try waits its 5 s, so one try must do for the whole batch."""
    code: int = getattr(lost.__cause__, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF == sqlite3.SQLITE_BUSY
