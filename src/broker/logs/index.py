"""The index of a log: which bytes came from stdout and which from stderr, and when.

Rows of 24 bytes in order of their offset. The last may be torn, and the index may lag behind the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from broker.logs.files import Snapshot

ROW = struct.Struct("<QIBxxxd")
_ROWS_AT_ONCE = 2048


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"

    @property
    def number(self) -> int:
        """How the stream stands in the index: the file descriptor."""
        return 1 if self is Stream.STDOUT else 2


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` bytes of the log from `offset`. `stream`: 1 stdout, 2 stderr. `at`: seconds since the epoch."""

    offset: int
    length: int
    stream: int
    at: float

    @property
    def end(self) -> int:
        return self.offset + self.length


def row(segment: Segment) -> bytes:
    return ROW.pack(segment.offset, segment.length, segment.stream, segment.at)


def covered(snapshot: Snapshot) -> int:
    """Up to where the index tells the streams apart, never beyond the log's end."""
    rows = snapshot.index_size // ROW.size
    return min(_rows(snapshot, rows - 1, 1)[0].end, snapshot.size) if rows else 0


def forward(snapshot: Snapshot, start: int, end: int, stream: Stream | None) -> Iterator[tuple[int, int]]:
    """(offset, length) of the bytes of `stream` in [start, end), in order. None: all of them, in one piece."""
    if stream is None:
        if start < end:
            yield start, end - start
        return
    for at in range(_first_row(snapshot, start), snapshot.index_size // ROW.size, _ROWS_AT_ONCE):
        for segment in _rows(snapshot, at, _ROWS_AT_ONCE):
            if segment.offset >= end:
                return
            if piece := _piece(segment, start, end, stream):
                yield piece


def backward(snapshot: Snapshot, start: int, end: int, stream: Stream | None) -> Iterator[tuple[int, int]]:
    """As `forward`, from the end to the start."""
    if stream is None:
        if start < end:
            yield start, end - start
        return
    stop = _first_row(snapshot, end)  # the first row that ends beyond: it may begin before
    for at in range(min(stop, snapshot.index_size // ROW.size - 1), -1, -_ROWS_AT_ONCE):
        first = max(0, at - _ROWS_AT_ONCE + 1)
        for segment in reversed(_rows(snapshot, first, at - first + 1)):
            if segment.end <= start:
                return
            if piece := _piece(segment, start, end, stream):
                yield piece


def _piece(segment: Segment, start: int, end: int, stream: Stream) -> tuple[int, int] | None:
    first, last = max(segment.offset, start), min(segment.end, end)
    return (first, last - first) if segment.stream == stream.number and first < last else None


def _first_row(snapshot: Snapshot, offset: int) -> int:
    """Number of the first row that ends beyond `offset`, by bisection."""
    low, high = 0, snapshot.index_size // ROW.size
    while low < high:
        middle = (low + high) // 2
        if _rows(snapshot, middle, 1)[0].end <= offset:
            low = middle + 1
        else:
            high = middle
    return low


def _rows(snapshot: Snapshot, first: int, count: int) -> list[Segment]:
    data = snapshot.read_index(first * ROW.size, count * ROW.size)
    return [Segment(*fields) for fields in ROW.iter_unpack(data[: len(data) - len(data) % ROW.size])]
