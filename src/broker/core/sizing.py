"""What a command used in its past runs, beside what is asked for it. Pure, and silent about what too few runs show.

A suggestion leaves room: a quarter more than the most that was seen, in whole GiB. Failures count where they make the
most larger, since a run that ended for want of memory shows it, and never as runs that were enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from broker.core.estimates import FEWEST, History, Run, Use
from broker.core.fingerprint import exact
from broker.wire.jobs import JobSpec

HEADROOM = 1.25
FAR = 2.0
"""So many times what would do is far from it."""
NEARLY_ALL = 0.95
IDLE_GPU = 5.0
"""Percent."""


@dataclass(frozen=True, slots=True)
class Used:
    """Of `runs` that were done, and `failed`. What no worker could tell is None; `cpus` is an average over a whole run,
    of that run in which it was highest, and `measured` are the runs whose memory is known."""

    runs: int
    failed: int
    measured: int
    values_differ: bool
    last_job: int | None
    median_s: float | None
    worst_s: float | None
    rss_gb: float | None
    vram_gb: float | None
    cpus: float | None
    gpu: float | None


def used(history: History, key: str | None = None) -> Used:
    """Of this very command where it ran often enough, else of all that differ in values only; `key` None: of those."""
    same = [run for run in history.runs if key is not None and run.exact == exact(key)]
    of_same = len(same) >= FEWEST or (bool(same) and len(same) == len(history.runs))
    done = same if of_same else list(history.runs)
    failed = [run for run in history.failed if not of_same or (key is not None and run.exact == exact(key))]
    ends = [*done, *failed]
    uses = [run.use for run in ends if run.use is not None]
    times = [run.run_s for run in done]
    rss = _most(use.rss_mb for use in uses)
    vram = _most(use.vram_mb for use in uses)
    return Used(
        runs=len(done),
        failed=len(failed),
        measured=len([run for run in done if run.use is not None and run.use.rss_mb is not None]),
        values_differ=len({run.exact for run in ends}) > 1,
        last_job=max((use.job for use in uses), default=None),
        median_s=median(times) if times else None,
        worst_s=max(times, default=None),
        rss_gb=None if rss is None else rss / 1024,
        vram_gb=None if vram is None else vram / 1024,
        cpus=_most(_cpus(run, run.use) for run in ends if run.use is not None),
        gpu=_most(use.gpu for use in uses),
    )


def _cpus(run: Run, use: Use) -> float | None:
    """Of a run that was over at once the clock says too little."""
    return use.cpu_s / run.run_s if use.cpu_s is not None and run.run_s >= 1 else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def would_do(most_gb: float) -> int:
    """Whole GiB that leave room above this."""
    return max(1, math.ceil(most_gb * HEADROOM))


def advice(spec: JobSpec, seen: Used) -> list[str]:
    """Where what is asked is far from what was used, and what would do. Nothing of fewer runs than an estimate needs."""
    if seen.runs < FEWEST:
        return []
    of_gpu = seen.vram_gb if (spec.gpus or 1) == 1 else None  # of several it is not known how it was spread
    said = [
        _memory("ram_gb", spec.ram_gb, seen.rss_gb, seen.measured),
        _memory("vram_gb", spec.vram_gb, of_gpu, seen.runs),
        _processors(spec.cpus, seen),
        _devices(spec, seen),
    ]
    return [line for line in said if line is not None]


def _memory(field: str, asked: float | None, most: float | None, runs: int) -> str | None:
    if asked is None or most is None or runs < FEWEST:
        return None
    enough = would_do(most)
    if most >= asked * NEARLY_ALL:
        return f"asks {asked:g} GB, and {most:.3g} GB were used in {runs} runs: too small, {field} {enough} would do"
    if asked >= FAR * enough:
        return f"asks {asked:g} GB, used at most {most:.3g} GB in {runs} runs: {field} {enough} would do"
    return None


def _processors(asked: float, seen: Used) -> str | None:
    if seen.cpus is None or asked < FAR * math.ceil(seen.cpus * HEADROOM):
        return None
    enough = max(1, math.ceil(seen.cpus * HEADROOM))
    return (
        f"asks {asked:g} cpus, used {seen.cpus:.2g} on average in the busiest of {seen.runs} runs: cpus {enough} may do"
    )


def _devices(spec: JobSpec, seen: Used) -> str | None:
    asks = spec.gpus or (1 if spec.vram_gb is not None else 0)
    if not asks or seen.gpu is None or seen.gpu >= IDLE_GPU:
        return None
    return (
        f"asks {asks} GPU{'' if asks == 1 else 's'}, busy for at most {seen.gpu:.2g} % of the time in {seen.runs} runs"
    )
