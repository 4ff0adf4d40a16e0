"""Rounds over the lines of queued jobs, a part at a time, and why each head waited in the round before."""

from __future__ import annotations

Line = tuple[int, str]
"""Shape and place."""
FIRST: Line = (0, "")


class Rounds:
    """What lasts from one round to the next is news; what comes and goes in between is not."""

    def __init__(self) -> None:
        self.after = FIRST
        self._before: dict[Line, tuple[int, str]] = {}
        self._now: dict[Line, tuple[int, str]] = {}

    def lasts(self, line: Line, head: int, code: str) -> bool:
        """Note why the head of a line waits; whether the same one waited for the same reason a round ago."""
        self._now[line] = head, code
        return self._before.get(line) == (head, code)

    def goes_on(self, after: Line | None) -> None:
        """The next part begins behind this line; None: with the first one, in a new round."""
        if after is None:
            self._before, self._now = self._now, {}
        self.after = FIRST if after is None else after
