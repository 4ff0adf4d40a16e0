"""Two clocks: the wall for people, and one that counts suspend and never jumps for deadlines."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970. May jump."""
        ...

    def boot_s(self) -> float:
        """Seconds since some fixed moment; grows in suspend, never jumps."""
        ...


class SystemClock:
    """The real clocks of this machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Jumps:
    """Whether the wall clock has run like the boot clock for a while. By a clock that jumps nothing is old."""

    MOST_MS = 3_600_000
    HELD_S = 86_400.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = self._offset()
        self._until = clock.boot_s()

    def steady(self) -> bool:
        """False for a day after a jump of more than an hour, in either direction."""
        offset = self._offset()
        if abs(offset - self._offset_ms) > self.MOST_MS:
            self._offset_ms = offset
            self._until = self._clock.boot_s() + self.HELD_S
        return self._clock.boot_s() >= self._until

    def held_s(self) -> float:
        return max(0.0, self._until - self._clock.boot_s())

    def _offset(self) -> float:
        return self._clock.wall_ms() - self._clock.boot_s() * 1000


class Listening:
    """The time in which the broker has listened, in milliseconds: what leases are measured in.

    Silence counts only while the broker was listening. Between two sweeps the time runs with the boot
    clock, but never further than `most_s`: what goes beyond it (a freeze, a suspend, a stopped clock) is
    a gap and is not counted. The total is kept over restarts, so a broker that keeps crashing still
    reclaims in the end.

    `away_ms`: how long nobody listened before, for people; it counts for nothing.
    """

    def __init__(self, clock: Clock, total_ms: int, most_s: float, *, away_ms: int = 0) -> None:
        self._clock = clock
        self._total_ms = float(total_ms)
        self._most_ms = most_s * 1000
        self._since = clock.boot_s()
        self._away_ms = away_ms
        self._noted: tuple[float, int] = 0.0, 0  # what the last sweep counted, and what it left out

    def now_ms(self) -> int:
        return int(self._total_ms + min(self._elapsed_ms(), self._most_ms))

    def sweep(self) -> tuple[int, int]:
        """Note that the broker listened until now: (the total, the gap that was left out), in milliseconds."""
        elapsed = self._elapsed_ms()
        counted = min(elapsed, self._most_ms)
        self._total_ms += counted
        self._since = self._clock.boot_s()
        gap_ms = int(elapsed - counted) + self._away_ms
        self._noted, self._away_ms = (counted, gap_ms), 0
        return int(self._total_ms), gap_ms

    def take_back(self) -> None:
        """The last sweep could not be written down: nobody was heard in that time, whoever spoke. It counts as a gap."""
        counted, gap_ms = self._noted
        self._noted = 0.0, 0
        self._total_ms -= counted
        self._away_ms += gap_ms + int(counted)

    def _elapsed_ms(self) -> float:
        return (self._clock.boot_s() - self._since) * 1000


class Since:
    """Since when each of some things has been so, as far as this process has seen it."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}

    def for_longer(self, present: Collection[int], limit: int, now: int) -> list[int]:
        """Which of `present` were present in every look of the last `limit`. What is absent begins anew."""
        self._first = {id_: self._first.get(id_, now) for id_ in present}
        return self.longer_than(limit, now)

    def longer_than(self, limit: int, now: int) -> list[int]:
        """The same of what was present in the last look."""
        return [id_ for id_, first in self._first.items() if now - first >= limit]
