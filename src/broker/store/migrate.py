"""Brings a database to the schema that this program knows: `migrations/NNNN_name.sql`, in order, each once.

All steps that are missing run in one transaction: an interrupted migration leaves what was there before. References
between tables are checked at its end, not meanwhile, so that a step may make a table anew. Several
programs that start at once wait for the first one and then find nothing to do.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.failpoint import failpoint
from broker.store.contract import StoreUnusable

DIRECTORY = Path(__file__).with_name("migrations")

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_EMPTY = -1  # the version of a database without tables; the first migration is number 0


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    text: str


def load(directory: Path = DIRECTORY) -> list[Migration]:
    """The migrations of `directory`, numbered 0, 1, 2, … without a gap."""
    migrations = []
    for expected, file in enumerate(sorted(directory.glob("*.sql"))):
        match = _FILE_NAME.fullmatch(file.name)
        if match is None or int(match[1]) != expected:
            raise StoreUnusable(f"migration {expected:04d}_….sql is missing: found {file.name}")
        migrations.append(Migration(expected, file.name, file.read_text(encoding="utf-8")))
    return migrations


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> int:
    """Apply what is missing; the schema's version afterwards. Raises StoreUnusable for a newer or a foreign database."""
    newest = migrations[-1].number
    enforced = connection.execute("PRAGMA foreign_keys").fetchone()[0]
    connection.execute("PRAGMA foreign_keys = OFF")  # has no effect within a transaction
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > newest:
            raise StoreUnusable(
                f"the database has schema {version} and this program knows {newest}: it was used by a newer version; "
                "install that version, or set JOBD_STATE_DIR to another directory"
            )
        for migration in migrations[version + 1 :]:
            for statement in _statements(migration.text):
                connection.execute(statement)
            connection.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('schema', ?)", (str(migration.number),)
            )
            failpoint("migrating")
        if version < newest:
            _check_references(connection)
        connection.execute("COMMIT")
        failpoint("migrated")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA foreign_keys = {enforced}")
    return newest


def _check_references(connection: sqlite3.Connection) -> None:
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StoreUnusable(f"a row of {broken[0]} refers to a row of {broken[2]} that is not there")


def _version(connection: sqlite3.Connection) -> int:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return _EMPTY
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() if "meta" in tables else None
    if row is None:
        raise StoreUnusable("the file is a database of some other program")
    return int(row[0])


def _statements(text: str) -> Iterator[str]:
    """Split a script where SQLite itself sees a statement end: executescript would commit first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in statement.splitlines()):
        raise StoreUnusable(f"a migration ends in the middle of a statement: {statement.strip()[:60]}")
