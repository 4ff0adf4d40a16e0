"""Room that is kept for a job which fits nowhere now, so that smaller ones behind it do not take it for ever. Pure.

A worker is kept for the job: the one where it can start first, once some of what runs there has ended. Until then what
comes after it in rank is given this worker only if the job still fits there when those have ended, or if it has itself
ended by then for sure. Instants are milliseconds of listening; what is not known to end does so at `NEVER`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.core.matching import Machine, Shape, reasons
from broker.core.placement import Held
from broker.wire.machines import Given

NEVER = math.inf
SOONER = 0.5
"""A job changes its worker only for one where it waits less than this part of what it has yet to wait: else room is
kept here and there, and never enough of it."""


@dataclass(frozen=True, slots=True)
class Running:
    """An assignment that holds room on a worker."""

    assignment: str
    cpus: float
    ends_at: float
    given: Given | None = None
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """When a job can start on a worker, and after the end of which assignments."""

    at: float
    after: tuple[str, ...]


def expected_end(now: int, *, limit_s: float | None, grace_s: float, estimate_s: float | None = None) -> float:
    """When a job has ended that may run for `limit_s` from `now`; `estimate_s`: when jobs like it ended until now.

    None: there is no limit, or no such word. What is over its time ends at any moment.
    """
    left = [limit_s + grace_s] if limit_s is not None else []
    left += [estimate_s] if estimate_s is not None else []
    return now + max(0.0, min(left)) * 1000 if left else NEVER


def without(machine: Machine, gone: Collection[Running]) -> Machine:
    """The same once these have ended."""
    host = machine.host.without({one.assignment for one in gone}) if machine.host is not None else None
    return replace(machine, free=machine.free + sum(one.cpus for one in gone), host=host)


def with_(machine: Machine, cpus: float, given: Given | None) -> Machine:
    """The same once one more is there."""
    host = machine.host.with_(Held("", given)) if machine.host is not None and given is not None else machine.host
    return replace(machine, free=machine.free - cpus, host=host)


def start_on(shape: Shape, machine: Machine, running: Sequence[Running], now: int) -> Start | None:
    """None: it does not fit there even when all of these have ended, as beside the memory of others."""
    if reasons(shape, without(machine, running)):
        return None
    gone: list[Running] = []
    for one in sorted(running, key=lambda one: (one.ends_at, one.assignment)):
        if not reasons(shape, without(machine, gone)):
            break
        gone.append(one)
    for one in gone[-2::-1]:  # the last is needed: without it the job did not fit
        fewer = [other for other in gone if other is not one]
        if not reasons(shape, without(machine, fewer)):
            gone = fewer
    at = max((one.ends_at for one in gone), default=float(now))
    return Start(max(at, now), tuple(one.assignment for one in gone))


def where_first(starts: Mapping[str, Start], kept: str | None, now: int) -> str:
    """The worker to keep, of those where it can start: the one where it starts first, but `kept` if it is not much later
    there."""
    best = min(starts, key=lambda worker: (starts[worker].at, len(starts[worker].after), worker))
    stays = starts.get(kept) if kept is not None else None
    return best if kept is None or stays is None or is_much_sooner(starts[best], stays, now) else kept


def is_much_sooner(start: Start, kept: Start, now: int) -> bool:
    """Whether it is worth it to keep another worker instead."""
    return start.at < kept.at and start.at - now < (kept.at - now) * SOONER


def may_pass(kept_for: Shape, start: Start, machine: Machine, running: Sequence[Running], passer: Running) -> bool:
    """Whether a job of lower rank may take room on a worker that is kept. `passer`: with what it would be given."""
    if passer.ends_at < start.at < NEVER:
        return True
    gone = [one for one in running if one.assignment in start.after]
    return not reasons(kept_for, with_(without(machine, gone), passer.cpus, passer.given))
