"""Where a broker keeps snapshots: a file each, named by its sha256. One that is not whole has another name."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from broker.places import private_directory

PART = ".part"


class SnapshotFiles:
    """`changing` is held by whoever changes a file and its row, so that neither is seen without the other for long."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.changing = asyncio.Lock()

    def path(self, sha256: str) -> Path:
        return self._root / sha256

    def begin(self) -> Upload:
        private_directory(self._root)
        return Upload(self._root)

    def remove(self, sha256: str) -> None:
        self.path(sha256).unlink(missing_ok=True)

    def older_than(self, at_s: float) -> list[str]:
        """Names of what was written before, parts too: what a crash left is among them."""
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self._root) if entry.stat().st_mtime < at_s]
        return []


class Upload:
    """A snapshot that is coming in. `discard()` in any case: after `keep()` there is nothing to discard."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / f"{secrets.token_hex(8)}{PART}"
        self._file = open(self._path, "xb")  # noqa: SIM115 - it is written by many calls
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        return self._file.write(data)

    def keep(self) -> int:
        """On disk, under the name that its content gives it; its size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._path.replace(self._root / self.sha256)
        directory = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return size

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
