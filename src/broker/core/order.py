"""Whose turn it is. Pure: what projects were given and hold, in; a rank out.

The highest priority is first: that of the project and what the job adds to it. Among equals the project that has used
least for its share, and in one project the job that was submitted first.

Usage is processor seconds, each second of a device counted as several of them. It decays by half in each half-life, so
that nobody pays for ever for a busy week. What runs now counts as if it had run a while longer: so that one look does
not give everything to whoever has used least until now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.wire.jobs import FLOOR_TABLE
from broker.wire.projects import Project

AHEAD_S = 60.0
"""How much longer everything that runs now is taken to run."""
NOTHING = 1e-3
DAY_MS = 86_400_000


class Rank(NamedTuple):
    """Smaller is earlier."""

    minus_priority: int
    used: float
    job: int


@dataclass(frozen=True, slots=True)
class Used:
    """What one project holds and has held. Instants are milliseconds of listening; `day` is one of the wall clock."""

    millicpus: int = 0
    gpus: int = 0
    since: int = 0  # it holds that since then
    cpu_us: int = 0  # held between `folded_at` and `since`
    gpu_ms: int = 0
    amount: float = 0.0  # held before `folded_at`: weighted seconds, decayed to then
    folded_at: int = 0
    day: int = 0
    today_gpu_ms: int = 0  # of that day, up to `since`

    def gpu_s_of_day(self, listened: int, now: int) -> float:
        """Seconds of devices in the day of the wall clock that `now` is in."""
        held_ms = max(0, listened - self.since)
        if self.day == now // DAY_MS:
            return (self.today_gpu_ms + self.gpus * held_ms) / 1000
        return self.gpus * min(held_ms, now % DAY_MS) / 1000


@dataclass(frozen=True, slots=True)
class Terms:
    """How usage is counted."""

    half_life_s: float
    gpu_weight: float

    def amount(self, used: Used, listened: int) -> float:
        """Weighted seconds that count now. Never less than nothing, whatever the clocks say."""
        held_s = max(0, listened - used.since) / 1000
        cpu_s = used.cpu_us / 1e6 + used.millicpus / 1000 * held_s
        gpu_s = used.gpu_ms / 1000 + used.gpus * held_s
        age_s = max(0, listened - used.folded_at) / 1000
        return used.amount * math.pow(0.5, age_s / self.half_life_s) + self._weighted(cpu_s, gpu_s)

    def with_what_runs(self, used: Used, listened: int) -> float:
        """The same, as it will be in a while: what an order goes by."""
        return self.amount(used, listened) + self.of_a_start(used.millicpus / 1000, used.gpus)

    def of_a_start(self, cpus: float, gpus: int) -> float:
        """What is added at once for one that is given so much."""
        return self._weighted(cpus * AHEAD_S, gpus * AHEAD_S)

    def _weighted(self, cpu_s: float, gpu_s: float) -> float:
        return cpu_s + gpu_s * self.gpu_weight


def word_of(projects: Mapping[str, Project], project: str, field: str) -> Project | None:
    """The table whose word on this field counts for a project; None: nobody says anything."""
    for name in (project, FLOOR_TABLE):
        table = projects.get(name)
        if table is not None and field in table.model_fields_set:
            return table
    return None


def priority_of(projects: Mapping[str, Project], project: str) -> int:
    table = word_of(projects, project, "priority")
    return table.priority if table is not None else 0


def share_of(projects: Mapping[str, Project], project: str) -> float:
    table = word_of(projects, project, "share")
    return table.share if table is not None else 1.0


def rank(priority: int, used: float, job: int) -> Rank:
    """`priority`: the project's and the job's together. `used`: for the project's share."""
    return Rank(-priority, used, job)
