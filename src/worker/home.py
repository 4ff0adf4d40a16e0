"""The worker's own directory: who this worker is, and that it is the only one.

`<state>/worker/` holds `id` (made once), `epoch` (grows with each start, on disk before anyone hears of it) and
`lock` (held for the life of the process: two workers on one directory would both drive the same shims).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.places import private_directory
from worker.process.records import sync_directory


class HomeTaken(Exception):
    """Another worker holds this directory."""


PATIENCE_S = 0.5
"""The lock of a process that has just ended may be in the hands of a child that is about to exec."""


class Home:
    """Taken by `Home.take()`, given back by `close()` or by the end of the process, however it ends."""

    def __init__(self, directory: Path, lock: int, worker_id: str, epoch: int) -> None:
        self.directory = directory
        self.worker_id = worker_id
        self.epoch = epoch
        self._lock = lock

    @classmethod
    def take(cls, directory: Path) -> Self:
        """Make the directory if need be, lock it, and begin a new epoch. Raises HomeTaken."""
        private_directory(directory)
        # Not inheritable: a shim that outlives this process must not keep the next one out.
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(lock, PATIENCE_S):
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise HomeTaken(
                f"another worker{f' (pid {holder})' if holder else ''} uses {directory}; "
                "stop it, or set JOBD_WORKER_NAME or JOBD_STATE_DIR to run a second one"
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        worker_id = _read(directory / "id") or _write(directory / "id", uuid.uuid4().hex)
        epoch = int(_read(directory / "epoch") or "0") + 1
        _write(directory / "epoch", str(epoch))
        return cls(directory, lock, worker_id, epoch)

    def scratch(self, key: str) -> Path:
        """The scratch directory of an assignment such as `42.1`; removed with it."""
        return self.directory / "scratch" / key

    def outbox(self, key: str) -> Path:
        """Where it leaves what its submitter is to have; removed with it, once the broker has all."""
        return self.directory / "outbox" / key

    def remove_rooms(self, key: str) -> None:
        """Remove both whole, also where the job took away its own rights to write; links are not followed."""
        with contextlib.suppress(OSError):
            (self.outbox(key) / "artifacts").rmdir()
        for room in (self.scratch(key), self.outbox(key)):
            try:
                room.rmdir()  # most jobs leave nothing there
            except FileNotFoundError:
                continue
            except OSError:
                shutil.rmtree(room, onerror=_with_rights)

    def remove_rooms_except(self, keys: Iterable[str]) -> None:
        """What a crash left between the end of an assignment and the removal of its directories."""
        kept = set(keys)
        for rooms in ("scratch", "outbox"):
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(self.directory / rooms):
                    if entry.name not in kept:
                        self.remove_rooms(entry.name)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _with_rights(again: Callable[[str], object], path: str, error: object) -> None:
    """Give the parent and the entry back to their owner, and try once more; what still stays is left there."""
    del error
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            again(path)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str) -> str:
    """Replace a small file so that a power loss leaves the old or the new text, never half of one."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(str(path.parent))
    return text


def _locked(lock: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True
