"""A ballast file beside the database: given up on a full disk, so that work which was admitted can still end."""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_BYTES = 1 << 20
_MARGIN_BYTES = 1 << 20  # free space besides the ballast before it is made again: else it would fill the disk itself


class Reserve:
    """`held` while the ballast is on the disk. Random bytes: a file system that compresses would keep zeros for free."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size
        self.held = path.exists() and path.stat().st_size == size

    def give_up(self) -> bool:
        """Free the ballast's room; False where that was done before."""
        if not self.held:
            return False
        self._path.unlink(missing_ok=True)
        self.held = False
        return True

    def restore(self) -> None:
        """Make the ballast again as soon as there is room for it."""
        if self.held or self._free_bytes() < self._size + _MARGIN_BYTES:
            return
        unfinished = self._path.with_suffix(".new")
        try:
            handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(os.urandom(self._size))
                file.flush()
                os.fsync(handle)
            unfinished.replace(self._path)
            self.held = True
        except OSError:  # somebody else took the room: the next commit tries again
            unfinished.unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        try:
            info = os.statvfs(self._path.parent)
        except OSError:
            return 0
        return info.f_bavail * info.f_frsize
