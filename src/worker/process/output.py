"""A process's output, as it arrives, into two files: `out` (the bytes) and `idx` (streams and times)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time

from worker.process.identity import LINUX
from worker.process.records import IDX, OUT, ROW

_CHUNK = 1 << 18
_FULL_PIPE = 1 << 16  # what a pipe holds at first
_LARGE_PIPE = 1 << 20  # what every user may ask for
_F_SETPIPE_SZ = 1031
_LONGEST_ROW = 1 << 30  # the row's length field has 32 bits


@functools.cache
def _buffer() -> memoryview:
    """One for all: a shim takes one chunk at a time, and is the shim of one job after the other."""
    return memoryview(bytearray(_CHUNK))


class Capture:
    """Never blocks the process and never fails: what the disk does not take is counted in `dropped`.

    Adjacent bytes of one stream share a row until `flush`, so a flood makes few rows.
    """

    def __init__(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._out = os.open(OUT, flags, 0o600)
        self._idx = os.open(IDX, flags, 0o600)
        self._large: set[int] = set()
        self._rows: list[tuple[int, int, int, float]] = []
        self.size = 0
        self.index_size = 0
        self.dropped = 0

    def take(self, pipe: int, stream: int) -> int | None:
        """Move what `pipe` holds, at most one chunk. The bytes taken; 0 at its end; None if it is empty now."""
        buffer = _buffer()
        try:
            count = os.readv(pipe, [buffer])
        except BlockingIOError:
            return None
        if count >= _FULL_PIPE and pipe not in self._large:
            self._enlarge(pipe)
        kept = self._keep(buffer[:count])
        self.dropped += count - kept
        if kept:
            self._note(stream, kept)
        return count

    def flush(self) -> None:
        """Write the rows of all that was taken."""
        rows = b"".join(ROW.pack(*row) for row in self._rows)
        self._rows.clear()
        with contextlib.suppress(OSError):
            written = os.write(self._idx, rows) if rows else 0
            if written % ROW.size:  # a full disk cut a row: half a row would shift all that follow
                written -= written % ROW.size
                os.ftruncate(self._idx, self.index_size + written)
            self.index_size += written

    def sync(self) -> None:
        self.flush()
        for fd, size in ((self._out, self.size), (self._idx, self.index_size)):
            with contextlib.suppress(OSError):
                if size:
                    os.fsync(fd)

    def _enlarge(self, pipe: int) -> None:
        """It was full: the process may have waited for us. A system that allows no more gives no more."""
        self._large.add(pipe)
        if LINUX:
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe, _F_SETPIPE_SZ, _LARGE_PIPE)

    def _keep(self, data: memoryview) -> int:
        kept = 0
        with contextlib.suppress(OSError):  # ENOSPC, EFBIG, EDQUOT, EIO
            while kept < len(data):
                kept += os.write(self._out, data[kept:])
        return kept

    def _note(self, stream: int, length: int) -> None:
        if self._rows:
            offset, so_far, last_stream, at = self._rows[-1]
            if last_stream == stream and so_far + length < _LONGEST_ROW:
                self._rows[-1] = (offset, so_far + length, stream, at)
                self.size += length
                return
        self._rows.append((self.size, length, stream, time.time()))
        self.size += length
