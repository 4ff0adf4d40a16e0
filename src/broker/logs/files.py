"""What jobs write, kept as files and addressed by byte offset.

`root/<job//1000>/<job>/<attempt>.log` has the bytes of its output, `<attempt>.idx` has rows that tell stdout from stderr. The length of
a file is the only cursor: a sender that asks for it and goes on from there can lose nothing and double nothing.
All functions are synchronous, to be called in a thread; those on one file wait for each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from broker.core.storage import StorageFailed, StorageFull
from broker.failpoint import failpoint

Part = Literal["log", "index"]

_SUFFIX: dict[Part, str] = {"log": "log", "index": "idx"}
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_LOCKS = 64
SPARE_BYTES = 64 << 20
"""Room that artifacts leave on the disk for what can't wait: ends of jobs, and their output."""


class Gap(Exception):
    """Bytes were offered beyond the end of the file. Send from `size` on."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes")
        self.size = size


@dataclass(frozen=True, slots=True)
class Appended:
    """`size`: where the file ends now. `duplicate`: all of it was there already."""

    size: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One assignment's output as it stood when it was opened; what is appended later is not seen."""

    log: int | None
    index: int | None
    size: int
    index_size: int

    def read(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`; less only at the end."""
        return _read(self.log, offset, min(limit, self.size - offset))

    def read_index(self, offset: int, limit: int) -> bytes:
        return _read(self.index, offset, min(limit, self.index_size - offset))


class JobFiles:
    """Files of jobs below `root`, a directory of this user alone: each job has a directory of its own."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def remove(self, job: int) -> None:
        """Delete all files of a job. A repeat does nothing."""
        with contextlib.suppress(FileNotFoundError), self._directories(job, make=False) as (_, thousand, own):
            for name in os.listdir(own):
                os.unlink(name, dir_fd=own)
            os.rmdir(str(job), dir_fd=thousand)

    def _append(self, job: int, name: str, offset: int, data: bytes) -> Appended:
        """Keep `data`, which begins at `offset`; what is there already is skipped, never rewritten.

        Raises Gap if it begins beyond the end. On StorageFull and StorageFailed the file ends where it ended before.
        """
        if offset < 0:
            raise ValueError("an offset is not negative")
        with self._lock(job, name), self._file(job, name, os.O_RDWR | os.O_CREAT) as file:
            size = os.fstat(file).st_size
            if offset > size:
                raise Gap(size)
            rest = memoryview(data)[size - offset :]
            if not rest:
                return Appended(size, duplicate=True)
            failpoint("append_torn", lambda: os.pwrite(file, rest[: len(rest) // 2], size))
            _write(file, size, rest)
            failpoint("appended")
            return Appended(size + len(rest), duplicate=False)

    def _size(self, job: int, name: str) -> int:
        try:
            with self._file(job, name, os.O_RDONLY) as file:
                return os.fstat(file).st_size
        except FileNotFoundError:
            return 0

    def _sync(self, job: int, name: str) -> int:
        """Make what is kept survive a power loss; how many bytes that is at least."""
        try:
            with self._directories(job, make=False) as directories:
                with self._file(job, name, os.O_RDONLY) as file:
                    size = os.fstat(file).st_size
                    failpoint("sync_next")
                    os.fsync(file)
                for directory in directories:
                    os.fsync(directory)
                failpoint("synced")
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _meaning(error) from error
        return size

    def _lock(self, job: int, name: str) -> threading.Lock:
        return self._locks[hash((job, name)) % _LOCKS]

    @contextlib.contextmanager
    def _file(self, job: int, name: str, flags: int) -> Iterator[int]:
        """The descriptor of a file whose path is made of numbers and words of ours only."""
        with self._directories(job, make=bool(flags & os.O_CREAT)) as (*_, own):
            handle = _open(name, flags, own)
        try:
            yield handle
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _directories(self, job: int, *, make: bool) -> Iterator[tuple[int, int, int]]:
        """Descriptors of the root, of a thousand jobs and of this job, each opened below the one before."""
        with contextlib.ExitStack() as stack:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, root)
            thousand = _directory(str(int(job) // 1000), root, make=make)
            stack.callback(os.close, thousand)
            own = _directory(str(int(job)), thousand, make=make)
            stack.callback(os.close, own)
            yield root, thousand, own


class LogFiles(JobFiles):
    """Logs, and what tells their streams apart."""

    def append(self, job: int, attempt: int, part: Part, offset: int, data: bytes) -> Appended:
        """Keep `data`, which begins at `offset`; what is there already is skipped, never rewritten.

        Raises Gap if it begins beyond the end. On StorageFull and StorageFailed the file ends where it ended before.
        """
        return self._append(job, _name(attempt, part), offset, data)

    def size(self, job: int, attempt: int, part: Part = "log") -> int:
        """Bytes kept; 0 where there is no file."""
        return self._size(job, _name(attempt, part))

    def exists(self, job: int, attempt: int) -> bool:
        """Some output arrived and was not removed since: tells pruned from empty."""
        try:
            with self._file(job, _name(attempt, "log"), os.O_RDONLY):
                return True
        except FileNotFoundError:
            return False

    def sync(self, job: int, attempt: int, part: Part = "log") -> int:
        """Make what is kept survive a power loss; how many bytes that is at least."""
        return self._sync(job, _name(attempt, part))

    def read(self, job: int, attempt: int, offset: int, limit: int, part: Part = "log") -> bytes:
        """At most `limit` bytes from `offset`; none at or beyond the end."""
        try:
            with self._file(job, _name(attempt, part), os.O_RDONLY) as file:
                return _read(file, offset, limit)
        except FileNotFoundError:
            return b""

    @contextlib.contextmanager
    def opened(self, job: int, attempt: int) -> Iterator[Snapshot]:
        """A fixed view of log and index for `reading`; empty where nothing arrived. It stays readable after `remove`."""
        with contextlib.ExitStack() as stack:
            handles: list[int | None] = []
            for part in ("index", "log"):  # the index first: it never speaks of bytes beyond the log's size
                try:
                    handles.append(stack.enter_context(self._file(job, _name(attempt, part), os.O_RDONLY)))
                except FileNotFoundError:
                    handles.append(None)
            index_size, size = (os.fstat(handle).st_size if handle is not None else 0 for handle in handles)
            yield Snapshot(handles[1], handles[0], size, index_size)


class ArtifactFiles(JobFiles):
    """Files that deliveries left behind. Their names are kept elsewhere: here each is a number."""

    def __init__(self, root: Path, spare_bytes: int = SPARE_BYTES) -> None:
        super().__init__(root)
        self._spare_bytes = spare_bytes

    def append(self, job: int, attempt: int, number: int, offset: int, data: bytes) -> Appended:
        """As of a log. StorageFull while the disk has little room: that is left to what can't wait."""
        if data and shutil.disk_usage(self._root).free - len(data) < self._spare_bytes:
            raise StorageFull("the broker's disk is nearly full: no files that jobs left behind are taken")
        return self._append(job, f"{int(attempt)}.{int(number)}", offset, data)

    def size(self, job: int, attempt: int, number: int) -> int:
        """Bytes kept; 0 where there is no file."""
        return self._size(job, f"{int(attempt)}.{int(number)}")

    def sync(self, job: int, attempt: int, number: int) -> None:
        """Make it survive a power loss."""
        self._sync(job, f"{int(attempt)}.{int(number)}")

    def sha256(self, job: int, attempt: int, number: int) -> str:
        """The checksum of all its bytes."""
        with self.opened(job, attempt, number) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def cut(self, job: int, attempt: int, number: int) -> None:
        """It begins anew."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._file(job, f"{int(attempt)}.{int(number)}", os.O_RDWR) as file,
        ):
            os.ftruncate(file, 0)

    @contextlib.contextmanager
    def opened(self, job: int, attempt: int, number: int) -> Iterator[BufferedReader]:
        """For reading; it stays readable after `remove`. Raises FileNotFoundError."""
        with (
            self._file(job, f"{int(attempt)}.{int(number)}", os.O_RDONLY) as handle,
            os.fdopen(os.dup(handle), "rb") as file,
        ):
            yield file


def _name(attempt: int, part: Part) -> str:
    return f"{int(attempt)}.{_SUFFIX[part]}"


def _directory(name: str, parent: int, *, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, mode=0o700, dir_fd=parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise _meaning(error) from error
    return _open(name, os.O_RDONLY | os.O_DIRECTORY, parent)


def _open(name: str, flags: int, directory: int) -> int:
    """openat; a link in its place is refused. What is absent stays FileNotFoundError."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _meaning(error) from error


def _write(file: int, end: int, data: memoryview) -> None:
    """Append all of `data` at `end`, or nothing: a torn write is cut off again."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(file, data[written:], end + written)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(file, end)
        raise _meaning(error) from error


def _read(file: int | None, offset: int, limit: int) -> bytes:
    """pread until `limit` or the end: one call may give less."""
    if file is None:
        return b""
    data = b""
    while limit > len(data):
        more = os.pread(file, limit - len(data), offset + len(data))
        if not more:
            break
        data = data + more if data else more
    return data


def _meaning(error: OSError) -> StorageFull | StorageFailed:
    if error.errno in _NO_ROOM:
        return StorageFull("the disk of the broker's logs is full")
    return StorageFailed(f"a log can't be kept or read: {error.strerror}")
