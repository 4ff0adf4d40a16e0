"""A copy of the database while it is used, and a copy made ready to go on from. One file, which only its owner reads.

What a backup forgets must not come back under the same names: ids of jobs, assignments and events go on above
everything that was ever given, and whoever reads events on from then is told of the gap.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from broker.store import migrate
from broker.wire.events import EventType

BUSY_S = 30.0
# Where nobody can say which ids were given after the backup: more than any installation gave meanwhile.
JUMPS: Mapping[str, int] = {"jobs": 1_000_000, "assignments": 1_000_000, "events": 10_000_000}


class NoBackup(Exception):
    """The file can't be used as a backup, or can't be made. The text says why."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a database of ours holds."""

    installation: str
    schema: int
    jobs: int
    backed_up_at: int | None


@dataclass(frozen=True, slots=True)
class Given:
    """What an installation has given out: the largest ids by table, and the tokens that it refuses by their hashes."""

    installation: str
    numbers: Mapping[str, int]
    revoked: Mapping[str, int]


def copy(source: Path, target: Path, now_ms: int | None = None) -> Contents:
    """Copy the database at `source`, as it stands in one moment, to the new file `target`; checked, synced, 0600.

    Others may write to `source` meanwhile. `now_ms` is noted in the copy as its time.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    try:
        with _reading(source) as original, _opened(target) as made:
            original.backup(made)
            made.execute("PRAGMA journal_mode = DELETE").fetchall()
            _check(made, source)
            if now_ms is not None:
                made.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('backed_up_at', ?)", (str(now_ms),))
            held = contents(made)
        sync(target)
        sync(target.parent)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return held


def contents(connection: sqlite3.Connection) -> Contents:
    """Raises NoBackup for a database of another program, or of a newer version of this one."""
    try:
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        schema, installation = int(meta["schema"]), str(meta["installation"])
        (jobs,) = connection.execute("SELECT count(*) FROM jobs").fetchone()
    except (sqlite3.OperationalError, KeyError, ValueError):
        raise NoBackup("it is no database of jobd's") from None
    newest = migrate.load()[-1].number
    if schema > newest:
        raise NoBackup(f"it has schema {schema} and this program knows {newest}: install the version that it is of")
    at = meta.get("backed_up_at")
    return Contents(installation, schema, jobs, int(at) if at is not None else None)


def given_by(database: Path) -> Given | None:
    """What the installation of this database has given out; None if it can't be read any more."""
    try:
        with _reading(database) as connection:
            numbers = dict(connection.execute("SELECT name, seq FROM sqlite_sequence"))
            revoked = dict(connection.execute("SELECT hash, revoked_at FROM tokens WHERE revoked_at IS NOT NULL"))
            installation = contents(connection).installation
            return Given(installation, {table: int(numbers.get(table, 0)) for table in JUMPS}, revoked)
    except (sqlite3.Error, NoBackup, ValueError):
        return None


def go_on(database: Path, before: Given | None, last_job: int, now_ms: int) -> int:
    """Make a copy ready to go on from, after `before`: what was given out by the database that it replaces, None if
    nobody knows. `last_job`: an id that is known to have been given. The first id that a job will have."""
    with _opened(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        last = dict(connection.execute("SELECT name, seq FROM sqlite_sequence"))
        for table, jump in JUMPS.items():
            own = int(last.get(table, 0))
            last[table] = max(own, before.numbers[table]) if before is not None else own + jump
        last["jobs"] = max(last["jobs"], last_job)
        for table in JUMPS:
            connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, last[table]))
        if before is not None:
            connection.executemany(
                "UPDATE tokens SET revoked_at = ? WHERE hash = ? AND revoked_at IS NULL",
                [(at, hash_) for hash_, at in before.revoked.items()],
            )
        (text,) = connection.execute("SELECT max(value) FROM meta WHERE key = 'backed_up_at'").fetchone()
        data = {"backed_up_at": int(text) if text is not None else None, "next_job": last["jobs"] + 1}
        connection.execute(
            "INSERT INTO events (at, type, data) VALUES (?, ?, ?)",
            (now_ms, EventType.RESTORED.value, json.dumps(data, separators=(",", ":"))),
        )
        for key, value in (("events_pruned_to", last["events"]), ("restored_at", now_ms)):
            connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, str(value)))
        connection.execute("COMMIT")
    sync(database)
    sync(database.parent)
    return int(last["jobs"]) + 1


def deliveries(database: Path) -> set[tuple[int, int]]:
    """Job and attempt of every assignment that it knows."""
    with _reading(database) as connection:
        return set(connection.execute("SELECT job, attempt FROM assignments"))


@contextlib.contextmanager
def _reading(database: Path) -> Iterator[sqlite3.Connection]:
    """One snapshot, on a connection that changes nothing and moves no WAL."""
    address = f"file:{quote(str(database))}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_S)) as connection:
        yield connection


@contextlib.contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA synchronous = FULL").fetchall()
        connection.execute("PRAGMA secure_delete = ON").fetchall()
        yield connection


def _check(connection: sqlite3.Connection, source: Path) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise NoBackup(f"{source} is damaged: {found}")


def sync(place: Path) -> None:
    """A file, or a directory, is on the disk as it is now."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
