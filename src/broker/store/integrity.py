"""Is the database whole? Looked at once, at the start: damage must be said before anything is written on top of it."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

from broker.store.contract import StoreUnusable

CHECK_LIMIT_S = 5.0
_AGAIN_S = 0.02
_LASTING = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_log = logging.getLogger(__name__)


def check(connection: sqlite3.Connection, path: Path, limit_s: float = CHECK_LIMIT_S) -> None:
    """Raises StoreUnusable for a damaged database. What can't be read within `limit_s` is passed by, and that is logged."""
    over = threading.Event()
    watch = threading.Thread(target=_interrupt_after, args=(connection, limit_s, over), daemon=True)
    watch.start()
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_INTERRUPT:
            raise
        _log.warning("%s is too large to be checked whole within %g s", path, limit_s)
        return
    finally:
        over.set()
        watch.join()
    if found is None or found[0] != "ok":
        raise damaged(path, str(found[0]) if found is not None else "no answer")


def _interrupt_after(connection: sqlite3.Connection, limit_s: float, over: threading.Event) -> None:
    """Again and again: an interrupt that comes before the statement has begun does nothing."""
    wait_s = limit_s
    while not over.wait(wait_s):
        connection.interrupt()
        wait_s = _AGAIN_S


def is_damage(error: sqlite3.Error) -> bool:
    """What another try, or a restart, can't mend."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in _LASTING


def damaged(path: Path, why: str) -> StoreUnusable:
    return StoreUnusable(
        f"{path} is damaged ({' '.join(why.split())}). Put a backup in its place: job restore FILE --force; what is there "
        'now is kept beside it. Without a backup: docs/operating.md, "A damaged database"'
    )
