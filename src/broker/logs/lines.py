"""From bytes to lines in bounded memory: a line of any length keeps its two ends and the count of what lies between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker.logs import index
from broker.logs.files import Snapshot
from broker.logs.index import Stream

KEPT_BYTES = 4096  # of each end of a line
_BLOCK_BYTES = 1 << 16


class Line(NamedTuple):
    """A line of output. Its bytes are `head`, then `skipped` bytes that are not kept here, then `tail`.

    `start` and `end` are offsets in the log (of a stream: with bytes of the other between). `ended`: a newline, which
    is not part of head or tail, ends it. `whole`: `start` is the beginning of the line. `rewrites`: carriage returns
    among the skipped bytes.
    """

    start: int
    end: int
    head: bytes
    tail: bytes = b""
    skipped: int = 0
    rewrites: int = 0
    ended: bool = True
    whole: bool = True


def forward(snapshot: Snapshot, start: int, end: int, stream: Stream | None, *, whole: bool = True) -> Iterator[Line]:
    """The lines in [start, end). `whole`: a line begins at `start`. The last one may lack its newline."""
    building: _Building | None = None
    for offset, data in blocks(snapshot, start, end, stream):
        at = 0
        while (newline := data.find(b"\n", at)) >= 0:
            if building is None and newline - at <= KEPT_BYTES:  # nearly every line: short, and whole in this block
                yield Line(offset + at, offset + newline + 1, data[at:newline], whole=whole)
            else:
                building = building or _Building(offset + at, whole)
                building.add(data[at:newline], offset + newline)
                yield building.line(offset + newline + 1, ended=True)
            at, building, whole = newline + 1, None, True
        if at < len(data):
            building = building or _Building(offset + at, whole)
            building.add(data[at:], offset + len(data))
    if building is not None:
        yield building.line(building.end, ended=False)


def blocks(snapshot: Snapshot, start: int, end: int, stream: Stream | None) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a stream in [start, end), in blocks."""
    for offset, length in index.forward(snapshot, start, end, stream):
        for at in range(offset, offset + length, _BLOCK_BYTES):
            yield at, snapshot.read(at, min(_BLOCK_BYTES, offset + length - at))


def start_of_last(snapshot: Snapshot, count: int, start: int, end: int, stream: Stream | None) -> tuple[int, bool]:
    """Where the last `count` lines before `end` begin, looking back no further than `start`; whether a line begins there.

    A newline at the very end closes the last line and begins none.
    """
    wanted = count + 1
    at_end = True
    if count <= 0:
        return end, True
    for offset, data in _blocks_backward(snapshot, start, end, stream):
        if at_end and not data.endswith(b"\n"):
            wanted -= 1
        at_end = False
        newlines = data.count(b"\n")
        if newlines < wanted:
            wanted -= newlines
            continue
        at = len(data)
        for _ in range(wanted):
            at = data.rfind(b"\n", 0, at)
        return offset + at + 1, True
    return start, start == 0 or at_end


def _blocks_backward(snapshot: Snapshot, start: int, end: int, stream: Stream | None) -> Iterable[tuple[int, bytes]]:
    for offset, length in index.backward(snapshot, start, end, stream):
        last = offset + length
        while last > offset:
            first = max(offset, last - _BLOCK_BYTES)
            yield first, snapshot.read(first, last - first)
            last = first


class _Building:
    """A line that is being read."""

    def __init__(self, start: int, whole: bool) -> None:
        self.end = start
        self._start = start
        self._whole = whole
        self._head = bytearray()
        self._tail = bytearray()
        self._skipped = 0
        self._rewrites = 0

    def add(self, data: bytes, end: int) -> None:
        """More of the line, which ends at this offset of the log now."""
        self.end = end
        room = KEPT_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * KEPT_BYTES:
            self._forget(len(self._tail) - KEPT_BYTES)

    def _forget(self, count: int) -> None:
        self._rewrites += self._tail.count(b"\r", 0, count)
        self._skipped += count
        del self._tail[:count]

    def line(self, end: int, *, ended: bool) -> Line:
        if self._skipped and len(self._tail) > KEPT_BYTES:
            self._forget(len(self._tail) - KEPT_BYTES)
        return Line(
            self._start,
            end,
            bytes(self._head),
            bytes(self._tail),
            self._skipped,
            self._rewrites,
            ended,
            self._whole,
        )
