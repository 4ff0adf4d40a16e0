"""What may go, and when. Three clocks, all counted from a job's end: environment values, output, rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

REMOVED = "(removed)"
"""Stands in a specification for each value of the environment, once the job can't run again."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How long, in seconds from a job's end. 0: for ever."""

    env_s: float
    logs_s: float
    jobs_s: float


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """What ended before these instants goes; None: nothing does. Output never outlives the row that it belongs to."""

    env: int | None
    logs: int | None
    jobs: int | None


def cutoffs(keep: Keep, now_ms: int) -> Cutoffs:
    env, logs, jobs = (_before(now_ms, kept_s) for kept_s in (keep.env_s, keep.logs_s, keep.jobs_s))
    known = [cutoff for cutoff in (logs, jobs) if cutoff is not None]
    return Cutoffs(env, max(known) if known else None, jobs)


def _before(now_ms: int, kept_s: float) -> int | None:
    return now_ms - int(kept_s * 1000) if kept_s > 0 else None


def blocks(ids: Iterable[int]) -> str:
    """Ids as they are shown, in order: 1..50,53"""
    parts = []
    for _, block in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        members = [id_ for _, id_ in block]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}..{members[-1]}")
    return ",".join(parts)


def members(text: str) -> list[int]:
    """The ids that `blocks` wrote."""
    ids: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        ids += range(int(first), int(last or first) + 1)
    return ids
