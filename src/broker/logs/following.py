"""What is new in a log, told apart by stream, for whoever follows it byte for byte."""

from __future__ import annotations

from dataclasses import dataclass

from broker.logs import index
from broker.logs.files import Snapshot
from broker.logs.index import Stream


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of one stream, without a gap: from `start` up to, not including, `end`."""

    start: int
    end: int
    stream: Stream


def runs(snapshot: Snapshot, offset: int, limit: int, *, whole: bool) -> list[Run]:
    """The bytes from `offset` on, at most `limit`, in the order of arrival.

    Bytes that the index does not tell apart yet are held back; with `whole` (nothing more will come) they
    count as stdout.
    """
    end = min(index.covered(snapshot), offset + limit)
    found = [
        Run(at, at + length, stream)
        for stream in Stream
        for at, length in (index.forward(snapshot, offset, end, stream) if end > offset else ())
    ]
    ordered = sorted(found, key=lambda run: run.start)
    reached = ordered[-1].end if ordered else offset
    if whole and reached < min(snapshot.size, offset + limit):
        ordered.append(Run(reached, min(snapshot.size, offset + limit), Stream.STDOUT))
    return _merged(ordered)


def _merged(ordered: list[Run]) -> list[Run]:
    merged: list[Run] = []
    for run in ordered:
        if merged and merged[-1].stream is run.stream and merged[-1].end == run.start:
            merged[-1] = Run(merged[-1].start, run.end, run.stream)
        else:
            merged.append(run)
    return merged
