"""A state directory: what lies in it, and the lock of the one program that may change it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker import places

LOCK_NAME = "broker.lock"
DATABASE_NAME = "jobd.sqlite3"
DATABASE_FILES = (DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-shm")
RESTORED_NAME = f"{DATABASE_NAME}-restored"
"""The database of a restore that has yet to take its place: while it is there, no broker starts."""
LOGS_NAME = "logs"
ARTIFACTS_NAME = "artifacts"
SNAPSHOTS_NAME = "snapshots"
REPLACED_NAME = "replaced"
INSTALLATION_NAME = "installation"


class AlreadyRunning(Exception):
    """Another broker holds the lock of this state directory."""


@contextmanager
def state_lock(state: Path) -> Iterator[None]:
    """The one flock of a state directory, taken before the database is opened. Raises AlreadyRunning."""
    places.private_directory(state)
    handle = os.open(state / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(f"a broker is running on {state} already") from None
        yield
    finally:
        os.close(handle)
