"""How long a job will run, from how long the same thing ran before. Pure, and honest about too few samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from broker.core.fingerprint import exact

FEWEST = 3
"""Below so many samples nothing is said."""
MOST_KEPT = 32
"""Ends that are kept of each kind, successes and failures, of all commands that differ only in values."""
MOST_USED = 20
UPPER = 0.9


@dataclass(frozen=True, slots=True)
class Use:
    """What one run took of its machine, at most. None: its worker could not tell."""

    job: int
    rss_mb: float | None = None
    vram_mb: float | None = None
    cpu_s: float | None = None
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One end: of what exactly, and how long it had run, by its supervisor's clock. `use`: None of older ends."""

    exact: str
    run_s: float
    use: Use | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What is known of commands that differ only in values, oldest first. A failure says nothing of how long a success
    takes: an early crash must not shorten it."""

    runs: tuple[Run, ...] = ()
    failed: tuple[Run, ...] = ()


UNKNOWN = History()


@dataclass(frozen=True, slots=True)
class Estimate:
    """`run_s`: the median; `upper_s`: about nine of ten end before; both None where `samples` are too few. `basis`: in words."""

    run_s: float | None
    upper_s: float | None
    samples: int
    basis: str


def estimate(key: str | None, history: History, ran_s: float = 0.0) -> Estimate:
    """How long a job of this fingerprint runs from its start to its end. `ran_s`: it has run for so long already, so it
    is none of those that ended before.

    The same command counts, if it ran often enough; else those that differ from it only in values.
    """
    if key is None:
        return Estimate(None, None, 0, "not known what it runs: it was submitted before estimates were made")
    same = [run.run_s for run in history.runs if run.exact == exact(key)]
    of_same = len(same) >= FEWEST
    known = (same if of_same else [run.run_s for run in history.runs])[-MOST_USED:]
    what = "this command" if of_same or len(same) == len(history.runs) else "this command with other values"
    used = [run_s for run_s in known if run_s > ran_s]
    if len(known) < FEWEST:
        return Estimate(None, None, len(known), f"{_times(len(known))} of {what} so far: {FEWEST} are needed")
    if not used:
        return Estimate(None, None, len(known), f"it runs longer than the last {len(known)} runs of {what}")
    failed = [run for run in history.failed if not of_same or run.exact == exact(key)]
    return Estimate(_round(median(used)), _round(_upper(used)), len(used), _basis(what, len(used), ran_s, len(failed)))


def _basis(what: str, used: int, ran_s: float, failed: int) -> str:
    longer = " that took longer than this one has" if ran_s > 0 else ""
    others = f"; {failed} failed and {'is' if failed == 1 else 'are'} not counted" if failed else ""
    return f"median of {_times(used)} of {what}{longer}{others}"


def _times(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}" if number else "no run"


def _upper(values: Sequence[float]) -> float:
    """Nine of ten of those to come should not be above it: of few, the largest."""
    return sorted(values)[min(len(values), math.ceil(UPPER * (len(values) + 1))) - 1]


def _round(seconds: float) -> float:
    """Three digits, as many as such a number is worth."""
    return float(f"{seconds:.3g}") if seconds < 1000 else float(round(seconds))
