"""What a job leaves for its submitter, read from the files that it was told of.

A job may put anything there: links, pipes, a million files, nothing. Only regular files are read, no link is followed,
and each read is bounded. What can't be kept is a warning, never a failed job.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from broker.wire.jobs import Artifact, Progress, clean
from broker.wire.outcomes import (
    MOST_RESULT_BYTES,
    MOST_WARNINGS,
    BadResult,
    Left,
    OutcomeLimits,
    artifact_name,
    progress_of,
    result_text,
)

PROGRESS_BYTES = 8192
"""So much of the end of a progress file is looked at: a line that is longer says nothing."""
MOST_LOOKED_AT = 100_000
LONGEST_SHOWN = 60
MIB = 1 << 20


@dataclass(frozen=True)
class Collected:
    """What is there at the end. Artifacts are names and sizes: their bytes are read when they are sent."""

    result: bytes | None = None
    artifacts: tuple[tuple[str, int], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def left(self) -> Left | None:
        """As it is told with the end; None: nothing."""
        if not self.artifacts and not self.warnings:
            return None
        total = sum(size for _, size in self.artifacts)
        return Left(artifacts=len(self.artifacts), artifacts_bytes=total, warnings=list(self.warnings[:MOST_WARNINGS]))


class Outbox:
    """The directory of one delivery: `result.json`, `progress` and `artifacts/`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.result = directory / "result.json"
        self.progress = directory / "progress"
        self.artifacts = directory / "artifacts"
        self._seen: tuple[int, int] | None = None
        self._progress: Progress | None = None

    def make(self) -> None:
        self.artifacts.mkdir(parents=True, exist_ok=True, mode=0o700)

    def how_far(self, *, at_the_end: bool = False) -> Progress | None:
        """What the last whole line says; at the end also one without its newline. Cheap where nothing has changed."""
        try:
            found = os.lstat(self.progress)
        except OSError:
            return self._progress
        seen = (found.st_size, found.st_mtime_ns)
        if seen == self._seen and not at_the_end:
            return self._progress
        self._seen = seen
        with contextlib.suppress(OSError):
            self._progress = self._last_said(at_the_end=at_the_end) or self._progress
        return self._progress

    def _last_said(self, *, at_the_end: bool) -> Progress | None:
        with _regular(self.progress) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - PROGRESS_BYTES)
            file.seek(start)
            lines = file.read(PROGRESS_BYTES).decode("utf-8", "replace").split("\n")
        if start:
            lines = lines[1:]  # its beginning is not here
        if not at_the_end:
            lines = lines[:-1]  # it is being written
        return next((said for line in reversed(lines) if (said := progress_of(line)) is not None), None)

    def is_empty(self) -> bool:
        """Whether a job left nothing, as most do."""
        try:
            return {*os.listdir(self.directory)} <= {"artifacts", "progress"} and not os.listdir(self.artifacts)
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def collect(self, limits: OutcomeLimits) -> Collected:
        """All that is kept of it, and what is not, and why. For a thread: there may be much to look at."""
        warnings: list[str] = []
        result = self._result(warnings)
        artifacts = self._chosen(limits, warnings)
        if len(warnings) > MOST_WARNINGS:
            more = len(warnings) - MOST_WARNINGS + 1
            warnings = [*warnings[: MOST_WARNINGS - 1], f"{more} more files are not kept, likewise"]
        return Collected(result, tuple(artifacts), tuple(warnings))

    def _result(self, warnings: list[str]) -> bytes | None:
        try:
            with _regular(self.result) as file:
                data = file.read(MOST_RESULT_BYTES + 1)
            if not data.strip():
                raise BadResult("empty")
            return result_text(data).encode()
        except FileNotFoundError:
            return None
        except (BadResult, OSError) as why:
            warnings.append(f"JOBD_RESULT_FILE is not kept: it is {_why(why)}")
            return None

    def _chosen(self, limits: OutcomeLimits, warnings: list[str]) -> list[tuple[str, int]]:
        found = self._found(warnings)
        chosen: list[tuple[str, int]] = []
        total = 0
        for name, size in found:
            shown = clean(name, LONGEST_SHOWN)
            if size > limits.artifact_bytes:
                warnings.append(f"artifact {shown} is not kept: {size} bytes, at most {limits.artifact_bytes} are kept")
            elif len(chosen) >= limits.artifacts:
                warnings.append(f"artifact {shown} is not kept: a run may leave {limits.artifacts} files")
            elif total + size > limits.artifacts_bytes:
                warnings.append(
                    f"artifact {shown} is not kept: of a run {limits.artifacts_bytes // MIB} MiB are kept in all"
                )
            else:
                chosen.append((name, size))
                total += size
        return chosen

    def _found(self, warnings: list[str]) -> list[tuple[str, int]]:
        """Regular files that can be read, by name."""
        found: list[tuple[str, int]] = []
        directories = [""]
        looked_at = 0
        while directories:
            below = directories.pop()
            try:
                with _directory(self.artifacts, below) as handle, os.scandir(handle) as entries:
                    for entry in entries:
                        looked_at += 1
                        if looked_at > MOST_LOOKED_AT:
                            warnings.append(f"of more than {MOST_LOOKED_AT} artifacts not all were looked at")
                            return sorted(found)
                        self._sort_in(f"{below}{entry.name}", entry, found, directories, warnings)
            except OSError as error:
                warnings.append(f"artifacts in {clean(below, LONGEST_SHOWN) or 'JOBD_ARTIFACTS_DIR'}: {_why(error)}")
        return sorted(found)

    def _sort_in(
        self,
        name: str,
        entry: os.DirEntry[str],
        found: list[tuple[str, int]],
        directories: list[str],
        warnings: list[str],
    ) -> None:
        try:
            artifact_name(name)
            if entry.is_dir(follow_symlinks=False):
                directories.append(f"{name}/")
                return
            with self.opened(name) as file:
                found.append((name, os.fstat(file.fileno()).st_size))
        except (ValueError, OSError) as why:
            warnings.append(f"artifact {clean(name, LONGEST_SHOWN)} is not kept: {_why(why)}")

    def opened(self, name: str) -> BufferedReader:
        """An artifact, for reading. Raises OSError, also for a link anywhere on the way."""
        parent, _, last = name.rpartition("/")
        with _directory(self.artifacts, f"{parent}/" if parent else "") as handle:
            return _regular(last, handle)

    def measured(self, name: str) -> Artifact:
        """Its size and checksum now. Reads all of it: for a thread."""
        with self.opened(name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return Artifact(name=name, size=file.tell(), sha256=digest)

    def read(self, name: str, offset: int, limit: int) -> bytes:
        with self.opened(name) as file:
            file.seek(offset)
            return file.read(limit)


@contextlib.contextmanager
def _directory(root: Path, below: str) -> Iterator[int]:
    """A directory below the root, each part opened below the one before, and none of them a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(root, flags)
    try:
        for part in below.split("/")[:-1]:
            inner = os.open(part, flags, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _regular(path: str | Path, directory: int | None = None) -> BufferedReader:
    """A regular file, for reading. A pipe would block its reader, a link lead out: both are refused."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "no regular file")
    return os.fdopen(handle, "rb")


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return "a link" if error.errno in (errno.ELOOP, errno.EMLINK) else clean(error.strerror or "unreadable", 100)
    return clean(str(error), 150)
