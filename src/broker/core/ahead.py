"""How many jobs have their turn before another one. Pure: how many wait of each kind in, numbers out.

They are counted as if room came up for one after the other: first all of a higher priority, then, among equals, each time
one of the project that has used least for its share, which has used more from then on. So of a long queue of a project
that was first only those count whose turn comes before the job's own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crowd:
    """Queued jobs that need the same. `step`: what each start adds to what their project has used for its share.
    `older` and `younger` than the job, of its priority."""

    project: str
    step: float
    higher: int
    older: int
    younger: int


@dataclass(frozen=True, slots=True)
class Before:
    """Jobs that come first, and why: a higher priority, the same project and older, or another project in turn."""

    higher: int = 0
    older: int = 0
    in_turn: int = 0

    @property
    def jobs(self) -> int:
        return self.higher + self.older + self.in_turn


def before(project: str, used: Mapping[str, float], crowds: Iterable[Crowd]) -> Before:
    """`project`: the job's own. `used`: what each project has used for its share."""
    by_project: defaultdict[str, list[Crowd]] = defaultdict(list)
    for crowd in crowds:
        by_project[crowd.project].append(crowd)
    after_higher = {
        name: used[name] + sum(crowd.higher * crowd.step for crowd in found) for name, found in by_project.items()
    }
    own = by_project.pop(project, [])
    until = after_higher.get(project, used[project]) + sum(crowd.older * crowd.step for crowd in own)
    return Before(
        higher=sum(crowd.higher for found in (own, *by_project.values()) for crowd in found),
        older=sum(crowd.older for crowd in own),
        in_turn=sum(_in_turn(found, until - after_higher[name]) for name, found in by_project.items()),
    )


def _in_turn(crowds: Sequence[Crowd], least: float) -> int:
    """How many of one project start before it has used `least` more; of two that have used the same the older is first."""
    older = sum(crowd.older for crowd in crowds)
    jobs = older + sum(crowd.younger for crowd in crowds)
    if least < 0 or not jobs:
        return 0
    step = sum((crowd.older + crowd.younger) * crowd.step for crowd in crowds) / jobs
    if step <= 0:
        return jobs if least > 0 else older
    turns = least / step
    whole = math.ceil(turns)
    return min(jobs, whole + (whole == turns and whole < older))


@dataclass(frozen=True, slots=True)
class Refusals:
    """Which workers said no to which places: keys of a directory and environment, or `#` and the id of a shape."""

    by_place: Mapping[str, frozenset[str]]

    def __bool__(self) -> bool:
        return bool(self.by_place)

    def everywhere(self, shape: int, workers: Collection[str]) -> list[str] | None:
        """Places to which all of these said no, for jobs of this shape; None: to the shape itself."""
        left = frozenset(workers) - self.by_place.get(f"#{shape}", frozenset())
        if not left:
            return None
        return [place for place, who in self.by_place.items() if left <= who and not place.startswith("#")]
