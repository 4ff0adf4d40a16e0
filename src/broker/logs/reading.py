"""Views of one log: its end, its beginning, a page from a cursor, the lines that match, the bytes that are new.

Cursors are byte offsets. Every view says where it began and where it ended, so that a reader goes on without gap or
repeat; each is bounded in memory and in what it reads, whatever the size of the file and of its lines.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from broker.logs import cleaning, index, lines, utf8
from broker.logs.files import Snapshot
from broker.logs.index import Stream
from broker.logs.lines import Line

SCAN_BYTES = 16 << 20  # one view looks at no more than this, grep excepted
_KEPT_BYTES = 1 << 20  # and keeps no more than this


class Kind(StrEnum):
    TAIL = "tail"
    HEAD = "head"
    PAGE = "page"
    GREP = "grep"


@dataclass(frozen=True, slots=True)
class Shown:
    """A line of a view. `number` counts from 1, where it is known. `matches`: grep found it; else it is context."""

    line: Line
    number: int | None = None
    matches: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What was seen of the bytes from `start` to `end`, of `size`. `complete`: nothing will follow after `size`."""

    kind: Kind
    lines: tuple[Shown, ...]
    start: int
    end: int
    size: int
    complete: bool
    stream: Stream | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Bytes of a stream between two offsets of the log."""

    data: bytes
    start: int
    end: int


def tail(snapshot: Snapshot, count: int, *, stream: Stream | None = None, complete: bool = False) -> View:
    """The last `count` lines; fewer if they are very long."""
    end = _settled_end(snapshot, stream, complete)
    start, whole = lines.start_of_last(snapshot, count, max(0, end - SCAN_BYTES), end, stream)
    kept: deque[Line] = deque()
    bytes_kept = 0
    for line in lines.forward(snapshot, start, end, stream, whole=whole):
        kept.append(line)
        bytes_kept += len(line.head) + len(line.tail)
        while bytes_kept > _KEPT_BYTES and len(kept) > 1:
            first = kept.popleft()
            bytes_kept -= len(first.head) + len(first.tail)
            start = first.end
    shown = tuple(Shown(line) for line in kept)
    return View(Kind.TAIL, shown, start, end, snapshot.size, complete, stream)


def head(snapshot: Snapshot, count: int, *, stream: Stream | None = None, complete: bool = False) -> View:
    """The first `count` lines, numbered."""
    return _page(snapshot, Kind.HEAD, 0, count, stream=stream, complete=complete)


def page(snapshot: Snapshot, cursor: int, count: int, *, stream: Stream | None = None, complete: bool = False) -> View:
    """Up to `count` lines from `cursor` on. A cursor inside a character begins after that character."""
    return _page(snapshot, Kind.PAGE, cursor, count, stream=stream, complete=complete)


def grep(
    snapshot: Snapshot,
    pattern: re.Pattern[str],
    *,
    context: int = 0,
    cursor: int = 0,
    most: int = 100,
    stream: Stream | None = None,
    complete: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> View:
    """Up to `most` lines in which `pattern` is found, with `context` lines around each, numbered.

    Searched is the text as it is shown, of very long lines only their two ends. `enough` is asked now and then; when it
    says so the view ends there. An unfinished last line is searched too, and again when it has grown.
    """
    end = _settled_end(snapshot, stream, complete)
    start = min(cursor, end)
    whole = _begins_line(snapshot, start, stream)
    first = 1 + sum(data.count(b"\n") for _, data in lines.blocks(snapshot, 0, start, stream))
    search = _Search(pattern, context, most)
    for number, line in enumerate(lines.forward(snapshot, start, end, stream, whole=whole), first):
        search.look(line, number)
        if search.over or (number % 256 == 0 and enough()):
            end = search.searched
            break
        if not line.ended and not complete:
            end = line.start
    return View(Kind.GREP, tuple(search.found), start, end, snapshot.size, complete, stream)


class _Search:
    """grep, line by line. `over`: enough was found, with the context after it. `searched`: up to where."""

    def __init__(self, pattern: re.Pattern[str], context: int, most: int) -> None:
        self._pattern = pattern
        self._context = context
        self._most = most
        self._before: deque[Shown] = deque(maxlen=context)
        self._after = 0
        self.found: list[Shown] = []
        self.searched = 0

    @property
    def over(self) -> bool:
        return self._most == 0 and self._after == 0

    def look(self, line: Line, number: int) -> None:
        matches = False
        if self._most:
            self.searched = line.end
            text = cleaning.plain_text(line)
            matches = self._pattern.search(text if text is not None else cleaning.clean(line).text) is not None
        if matches:
            self._most -= 1
            self._after = self._context
            self.found += [*self._before, Shown(line, number, matches=True)]
            self._before.clear()
        elif self._after:
            self._after -= 1
            self.found.append(Shown(line, number))
        elif self._context:
            self._before.append(Shown(line, number))


def changes(
    snapshot: Snapshot, offset: int, limit: int, *, stream: Stream | None = None, complete: bool = False
) -> Changes:
    """Up to `limit` (at least 4) bytes from `offset` on, for whoever follows. They end between two characters."""
    end = _settled_end(snapshot, stream, complete)
    start = min(offset, end)
    pieces: list[tuple[int, int]] = []
    room = limit
    for at, length in index.forward(snapshot, start, end, stream):
        pieces.append((at, min(length, room)))
        room -= pieces[-1][1]
        if not room:
            break
    data = b"".join(snapshot.read(at, length) for at, length in pieces)
    if room:
        return Changes(data, start, end)
    cut = utf8.cut_at_end(data)
    return Changes(data[: len(data) - cut], start, _offset_before(pieces, cut))


def _page(snapshot: Snapshot, kind: Kind, cursor: int, count: int, *, stream: Stream | None, complete: bool) -> View:
    last = _settled_end(snapshot, stream, complete)
    start = min(_aligned(snapshot, cursor), last)
    bound = min(last, _aligned(snapshot, start + SCAN_BYTES))
    shown: list[Shown] = []
    end, kept = start, 0
    whole = _begins_line(snapshot, start, stream)
    for number, line in enumerate(lines.forward(snapshot, start, bound, stream, whole=whole), 1):
        if len(shown) == count or kept > _KEPT_BYTES:
            break
        shown.append(Shown(line, number if kind is Kind.HEAD else None))
        kept += len(line.head) + len(line.tail)
        end = line.end
    else:
        end = bound
    return View(kind, tuple(shown), start, end, snapshot.size, complete, stream)


def _settled_end(snapshot: Snapshot, stream: Stream | None, complete: bool) -> int:
    """The end of what can be shown: before a character whose rest may still arrive, and within what the index covers."""
    end = snapshot.size if stream is None else index.covered(snapshot)
    if complete:
        return end
    pieces: list[tuple[int, int]] = []
    for offset, length in index.backward(snapshot, 0, end, stream):
        pieces.insert(0, (offset, length))
        if sum(size for _, size in pieces) >= 3:
            break
    data = b"".join(snapshot.read(max(at, at + size - 3), min(size, 3)) for at, size in pieces)
    cut = utf8.cut_at_end(data)
    return _offset_before(pieces, cut) if cut else end


def _offset_before(pieces: list[tuple[int, int]], cut: int) -> int:
    """The offset in the log of the point `cut` bytes before the end of these pieces of a stream."""
    for offset, length in reversed(pieces):
        if cut <= length:
            return offset + length - cut
        cut -= length
    return pieces[0][0] if pieces else 0


def _aligned(snapshot: Snapshot, offset: int) -> int:
    """`offset`, or the end of the character in whose middle it lies."""
    before = snapshot.read(max(0, offset - 3), min(3, offset))
    return offset + utf8.cut_at_start(before, snapshot.read(offset, 3))


def _begins_line(snapshot: Snapshot, offset: int, stream: Stream | None) -> bool:
    for at, length in index.backward(snapshot, 0, offset, stream):
        return snapshot.read(at + length - 1, 1) == b"\n"
    return True
