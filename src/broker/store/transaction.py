"""One function's view of a SQLite transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

from broker.store.contract import ConstraintFailed, Params, Row, StorageError, StorageFailed, StorageFull, Value
from broker.store.statements import Statements

R = TypeVar("R")

# SQLITE_FULL, and what the file of the WAL's index says when the disk is full: SQLITE_IOERR_SHMSIZE.
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})


def translated(error: sqlite3.Error | MemoryError) -> StorageError | None:
    """What a driver's error means to a caller; None for a mistake in a statement or its parameters."""
    if isinstance(error, sqlite3.IntegrityError):
        return ConstraintFailed(str(error))
    if isinstance(error, MemoryError):
        return StorageFailed("SQLite has no memory left")
    code = getattr(error, "sqlite_errorcode", None)
    if code in _FULL:
        return StorageFull("the disk of the broker's database is full")
    if code is None or code & 0xFF == sqlite3.SQLITE_ERROR:
        return None
    return StorageFailed(f"the broker's database failed: {error} ({getattr(error, 'sqlite_errorname', code)})")


class SqliteTx:
    """`contract.Tx` over one connection. `lost` is set once SQLite took the whole transaction away."""

    def __init__(self, connection: sqlite3.Connection, statements: Statements, now_ms: int, *, writes: bool) -> None:
        self._connection = connection
        self._statements = statements
        self._now_ms = now_ms
        self._writes = writes
        self._over = False
        self.notices: list[object] = []
        self.lost: StorageError | None = None

    @property
    def now_ms(self) -> int:
        return self._now_ms

    def one(self, name: str, /, **params: Value) -> Row | None:
        rows = self.all(name, **params)
        if len(rows) > 1:
            raise LookupError(f"{name} answered {len(rows)} rows where one was expected")
        return rows[0] if rows else None

    def all(self, name: str, /, **params: Value) -> list[Row]:
        return self._execute(name, lambda cursor, sql: cursor.execute(sql, params).fetchall())

    def run(self, name: str, /, **params: Value) -> int:
        def count(cursor: sqlite3.Cursor, sql: str) -> int:
            cursor.execute(sql, params).fetchall()  # with RETURNING the count stands only after the last row
            return cursor.rowcount

        return self._execute(name, count)

    def insert(self, name: str, /, **params: Value) -> int:
        def new_id(cursor: sqlite3.Cursor, sql: str) -> int:
            rows = cursor.execute(sql, params).fetchall()
            return int(rows[0][0]) if rows else cursor.lastrowid or 0

        return self._execute(name, new_id)

    def run_many(self, name: str, rows: Sequence[Params]) -> int:
        return self._execute(name, lambda cursor, sql: cursor.executemany(sql, rows).rowcount if rows else 0)

    def tell(self, notice: object) -> None:
        if not self._writes:
            raise TypeError("a read has nothing to tell")
        self.notices.append(notice)

    def end(self) -> None:
        """The function returned: its `tx` must not be used again."""
        self._over = True

    def _execute(self, name: str, use: Callable[[sqlite3.Cursor, str], R]) -> R:
        if self._over:
            raise RuntimeError("this transaction is over; tx lives only as long as its function")
        if self.lost is not None:
            raise self.lost
        sql = self._statements.sql(name)
        try:
            with closing(self._connection.cursor()) as cursor:
                return use(cursor, sql)
        except (sqlite3.Error, MemoryError) as error:
            meaning = translated(error)
            if not self._connection.in_transaction:
                # SQLITE_FULL, IOERR and NOMEM undo everything, not only this statement. Without this mark the next
                # statement would run, and commit, outside any transaction.
                self.lost = meaning or StorageFailed(str(error))
                raise self.lost from error
            if meaning is None:
                raise
            raise meaning from error
