"""A process's output, as it arrives, into two files: `out` (the bytes) and `idx` (streams and times)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time

from worker.process.identity import LINUX
from worker.process.records import IDX, OUT, ROW, STDERR, STDOUT
from worker.process.sentinel import Sentinel
from worker.process.tail import Tail

_CHUNK = 1 << 18
_FULL_PIPE = 1 << 16  # what a pipe holds at first
_LARGE_PIPE = 1 << 20  # what every user may ask for
_F_SETPIPE_SZ = 1031
_LONGEST_ROW = 1 << 30  # the row's length field has 32 bits
_TAIL_SHARE = 8
_NEWLINE = ord("\n")
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


@functools.cache
def _buffer() -> memoryview:
    """One for all: a shim takes one chunk at a time, and is the shim of one job after the other."""
    return memoryview(_bytes())


@functools.cache
def _bytes() -> bytearray:
    return bytearray(_CHUNK)


class Capture:
    """Never blocks the process and never fails: what is not kept is counted in `dropped`.

    Adjacent bytes of one stream share a row until `flush`, so a flood makes few rows. Log and index together are no
    larger than `cap`, but for the notes that say so: beyond seven eighths of it only the last eighth is kept, apart,
    and follows when all is over. What stands in `out` never changes, so that it can be sent while it grows.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._tail: Tail | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._out = os.open(OUT, flags, 0o600)
        self._idx = os.open(IDX, flags, 0o600)
        self._large: set[int] = set()
        self._rows: list[tuple[int, int, int, float]] = []
        self.size = os.fstat(self._out).st_size  # more than nothing where another shim began it
        self.index_size = os.fstat(self._idx).st_size
        self.dropped = 0
        self._last = _NEWLINE
        self.sentinel = Sentinel()

    def take(self, pipe: int, stream: int) -> int | None:
        """Move what `pipe` holds, at most one chunk. The bytes taken; 0 at its end; None if it is empty now."""
        buffer = _buffer()
        try:
            count = os.readv(pipe, [buffer])
        except BlockingIOError:
            return None
        if count >= _FULL_PIPE and pipe not in self._large:
            self._enlarge(pipe)
        if count:
            self.sentinel.look(stream, _bytes(), count)
        if count and self._tail is None:
            self._take_in(stream, buffer[:count])
        elif count and self._tail is not None:
            self._tail.add(stream, buffer[:count])
        return count

    def complete(self) -> None:
        """All is over: add what was kept apart, and give it all to the disk."""
        if self._tail is not None:
            self._add_tail(self._tail)
        self._sync()

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

    def _take_in(self, stream: int, data: memoryview) -> None:
        room = self._cap - self._cap // _TAIL_SHARE - self.size - self.index_size
        if len(data) <= room:
            self._append(stream, data)
            return
        whole_lines = bytes(data[: max(0, room)]).rfind(b"\n") + 1
        self._append(stream, data[:whole_lines])
        self.say(
            stream,
            f"the log is at its limit of {_megabytes(self._cap)}: "
            f"of what follows the last {_megabytes(self._cap // _TAIL_SHARE)} are kept, and shown here at the end",
        )
        self._tail = Tail(self._cap // _TAIL_SHARE)
        self._tail.add(stream, data[whole_lines:])

    def _add_tail(self, tail: Tail) -> None:
        tail.begin_with_a_line()
        lost = {stream: tail.lost(stream) for stream in (STDOUT, STDERR)}
        for stream, count in lost.items():
            self.dropped += count
            if count:
                self.say(stream, f"{count} bytes of {_NAMES[stream]} were dropped here")
        if not any(lost.values()):
            self.say(STDOUT, "nothing was dropped")
        for row, data in tail.pieces():
            self._append(row.stream, memoryview(data), row.at)
            self.dropped += row.length - len(data)
        tail.close()
        self._tail = None

    def _append(self, stream: int, data: memoryview, at: float | None = None) -> None:
        kept = self._keep(data)
        self.dropped += len(data) - kept
        if kept:
            self._note(stream, kept, at if at is not None else time.time())
            self._last = data[kept - 1]

    def say(self, stream: int, text: str) -> None:
        """A line of ours, in the place that it speaks of."""
        line = f"[jobd: {text}]\n".encode()
        if self.size and self._last != _NEWLINE:
            line = b"\n" + line
        kept = self._keep(memoryview(line))
        if kept:
            self._note(stream, kept, time.time())
            self._last = line[kept - 1]

    def _sync(self) -> None:
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

    def _note(self, stream: int, length: int, at: float) -> None:
        if self._rows:
            offset, so_far, last_stream, since = self._rows[-1]
            if last_stream == stream and so_far + length < _LONGEST_ROW:
                self._rows[-1] = (offset, so_far + length, stream, since)
                self.size += length
                return
        self._rows.append((self.size, length, stream, at))
        self.size += length


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):g} MB"
