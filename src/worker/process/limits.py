"""How long a process may run, and how long it may be silent. Decided by the boot clock: suspend counts."""

from __future__ import annotations

import math
from typing import NamedTuple

from worker.process.records import LimitsRecord, ReachedRecord


class _Due(NamedTuple):
    at: float
    code: str
    limit_s: float
    since: float


class Limits:
    """Of one process, from the moment it was released. Silent means that no byte came through its pipes."""

    def __init__(self, record: LimitsRecord, started_at: float) -> None:
        self._record = record
        self._started_at = started_at
        self._heard_at: float | None = None

    def heard(self, now: float) -> None:
        """Output came."""
        self._heard_at = now

    def next_at(self, *, stopping: bool) -> float:
        """When the next of them is reached, if nothing is heard until then."""
        return min((due.at for due in self._dues(stopping=stopping)), default=math.inf)

    def reached(self, now: float, *, stopping: bool) -> ReachedRecord | None:
        """The one that was reached first. While the process is being `stopping` it may be silent."""
        due = min(self._dues(stopping=stopping), default=None)
        if due is None or now < due.at:
            return None
        return ReachedRecord(code=due.code, limit_s=due.limit_s, seen_s=now - due.since)

    def _dues(self, *, stopping: bool) -> list[_Due]:
        started, silent_since = self._started_at, self._heard_at or self._started_at
        dues = [self._due("max_wall", started)]
        if not stopping:
            dues.append(self._due("idle_timeout", silent_since))
            if self._heard_at is None:
                dues.append(self._due("first_output_timeout", started))
        return [due for due in dues if due is not None]

    def _due(self, code: str, since: float) -> _Due | None:
        limit_s = self._record.get(code)
        return None if limit_s is None else _Due(since + limit_s, code, limit_s, since)
