"""One function's view of a SQLite transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from broker.store.contract import ConstraintFailed, Params, Row, StorageError, StorageFailed, StorageFull, Value
from broker.store.statements import Statements

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
        rows, _ = self._execute(name, params)
        if len(rows) > 1:
            raise LookupError(f"{name} answered {len(rows)} rows where one was expected")
        return rows[0] if rows else None

    def all(self, name: str, /, **params: Value) -> list[Row]:
        rows: list[Row] = [*self._execute(name, params)[0]]
        return rows

    def run(self, name: str, /, **params: Value) -> int:
        return self._execute(name, params)[1].rowcount

    def insert(self, name: str, /, **params: Value) -> int:
        rows, cursor = self._execute(name, params)
        return int(next(iter(rows[0].values()))) if rows else cursor.lastrowid or 0

    def run_many(self, name: str, rows: Sequence[Params]) -> int:
        sql = self._sql(name)
        try:
            return self._connection.executemany(sql, rows).rowcount if rows else 0
        except (sqlite3.Error, MemoryError) as error:
            raise self._meaning(error) from error

    def tell(self, notice: object) -> None:
        if not self._writes:
            raise TypeError("a read has nothing to tell")
        self.notices.append(notice)

    def end(self) -> None:
        """The function returned: its `tx` must not be used again."""
        self._over = True

    def _execute(self, name: str, params: Params) -> tuple[list[dict[str, Any]], sqlite3.Cursor]:
        """One statement, run to its end: one left in the middle holds its snapshot, and with RETURNING has no count."""
        sql = self._sql(name)
        try:
            cursor = self._connection.execute(sql, params)
            rows = cursor.fetchall()
            if not rows:
                return [], cursor
            columns = [column[0] for column in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in rows], cursor
        except (sqlite3.Error, MemoryError) as error:
            raise self._meaning(error) from error

    def _sql(self, name: str) -> str:
        if self._over:
            raise RuntimeError("this transaction is over; tx lives only as long as its function")
        if self.lost is not None:
            raise self.lost
        return self._statements.sql(name)

    def _meaning(self, error: sqlite3.Error | MemoryError) -> Exception:
        meaning = translated(error)
        if not self._connection.in_transaction:
            # SQLITE_FULL, IOERR and NOMEM undo everything, not only this statement. Without this mark the next
            # statement would run, and commit, outside any transaction.
            self.lost = meaning or StorageFailed(str(error))
            return self.lost
        return meaning or error
