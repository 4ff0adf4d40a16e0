"""A line on a job's output that tells us something: `jobd-checkpoint-complete`."""

from __future__ import annotations

from worker.process.records import STDERR, STDOUT

LINE = b"jobd-checkpoint-complete"
_NEEDLE = b"jobd-checkpoint"  # its last letter stands once in it: a search for it is fast whatever is searched
_STARTS = (b"\n" + LINE, b"\r" + LINE)  # a progress bar leaves a carriage return
_ENDS = (b"\n", b"\r\n")
_SEAM = len(LINE) + 2  # what of a chunk may be the beginning of one that ends in the next


class Sentinel:
    """Sees the line in whichever pieces it comes. Costs one search of each chunk for a few bytes."""

    def __init__(self) -> None:
        self.count = 0
        self._before = {STDOUT: b"\n", STDERR: b"\n"}

    def look(self, stream: int, buffer: bytearray, count: int) -> None:
        """At the first `count` bytes of `buffer`, which follow what came of this stream before."""
        before = self._before[stream]
        seam = before + bytes(buffer[: min(count, _SEAM)])
        found = buffer.find(_NEEDLE, 0, count) >= 0 or _NEEDLE in seam
        self._before[stream] = (
            bytes(buffer[count - _SEAM : count]) if count >= _SEAM else (before + bytes(buffer[:count]))[-_SEAM:]
        )
        if found:
            self.count += _lines_in(before + bytes(buffer[:count]), len(before))


def _lines_in(data: bytes, new_from: int) -> int:
    """How many such lines end after `new_from`: those that end before it were counted with the chunk before."""
    count = 0
    for start in _STARTS:
        at = data.find(start)
        while at >= 0:
            end = at + len(start)
            rest = data[end : end + 2]
            length = next((len(mark) for mark in _ENDS if rest.startswith(mark)), 0)
            count += bool(length) and end + length > new_from
            at = data.find(start, end)
    return count
