"""The end of an output that is larger than its log may be: a ring in a file, told apart by stream."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from worker.process.records import STDERR, STDOUT, TAIL

_MOST_ROWS = 1 << 15  # streams that alternate byte by byte shorten the tail, rather than fill the memory
_ROW_S = 1.0  # what comes later gets a row of its own, with its own time
_BLOCK = 1 << 20
_NO_FILE = -1  # writing to it fails: nothing is kept
_LONGEST_CUT = 1 << 16  # how far the first whole line of the tail is looked for


class Row(NamedTuple):
    """Bytes of one stream, counted from the first that the tail was given."""

    offset: int
    length: int
    stream: int
    at: float

    @property
    def end(self) -> int:
        return self.offset + self.length

    def after(self, offset: int) -> Row:
        """What of it lies after `offset`."""
        first = max(self.offset, offset)
        return self._replace(offset=first, length=self.end - first)


class Tail:
    """Keeps the last `limit` bytes that it is given."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._file = _NO_FILE
        with contextlib.suppress(OSError):
            self._file = os.open(TAIL, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._start = self._end = 0
        self._rows: deque[Row] = deque()
        self._given = {STDOUT: 0, STDERR: 0}

    def add(self, stream: int, data: memoryview) -> None:
        """Never fails. What the disk does not take is a hole: the tail begins after it."""
        self._given[stream] += len(data)
        kept = data[-self._limit :]
        if len(kept) < len(data):
            self._forget(self._end)
        if self._write(kept):
            self._note(stream, len(kept))
        else:
            self._forget(self._end)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
            os.unlink(TAIL)

    def begin_with_a_line(self) -> None:
        """Where something was lost: forget the rest of a line whose beginning is lost, if its end is near."""
        if not any(self.lost(stream) for stream in self._given):
            return
        newline = self._read(self._start, min(_LONGEST_CUT, self._end - self._start)).find(b"\n")
        if newline >= 0 and self._start + newline + 1 < self._end:
            self._forget(self._start + newline + 1)

    def lost(self, stream: int) -> int:
        """Bytes of this stream that are not here any more."""
        return self._given[stream] - sum(row.length for row in self._rows if row.stream == stream)

    def pieces(self) -> Iterator[tuple[Row, bytes]]:
        """All that is here, in order, in blocks."""
        for row in self._rows:
            for at in range(row.offset, row.end, _BLOCK):
                length = min(_BLOCK, row.end - at)
                yield Row(at, length, row.stream, row.at), self._read(at, length)

    def _write(self, data: memoryview) -> bool:
        """At the end of the ring, over its beginning. False: not all of it, and the end is where it was."""
        at = self._end % self._limit
        first = data[: self._limit - at]
        try:
            for position, part in ((at, first), (0, data[len(first) :])):
                written = 0
                while written < len(part):
                    written += os.pwrite(self._file, part[written:], position + written)
        except OSError:  # ENOSPC, EFBIG, EDQUOT, EIO
            return False
        return True

    def _note(self, stream: int, length: int) -> None:
        last = self._rows[-1] if self._rows else None
        now = time.time()
        if last is not None and last.stream == stream and now - last.at < _ROW_S:
            self._rows[-1] = last._replace(length=last.length + length)
        else:
            self._rows.append(Row(self._end, length, stream, now))
        self._end += length
        self._forget(self._end - self._limit)
        if len(self._rows) > _MOST_ROWS:
            self._forget(self._rows[1].offset)

    def _forget(self, offset: int) -> None:
        """What lies before `offset`."""
        self._start = max(self._start, offset)
        while self._rows and self._rows[0].end <= self._start:
            self._rows.popleft()
        if self._rows:
            self._rows[0] = self._rows[0].after(self._start)

    def _read(self, offset: int, length: int) -> bytes:
        at = offset % self._limit
        first = min(length, self._limit - at)
        try:
            data = os.pread(self._file, first, at)
            return data + os.pread(self._file, length - first, 0) if first < length else data
        except OSError:
            return b""
