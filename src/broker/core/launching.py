"""When a worker has failed to start so many jobs in a row that it is given no more. Pure.

A machine that starts nothing is a drain: it is always free, so it is offered every job. A user's typing mistake must not
look like one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from broker.wire.workers import Final, Outcome

MOST_KEPT = 128
_OF_THE_MACHINE = frozenset({"launcher_failed", "shim_failed"})


class Fault(StrEnum):
    """Whose fault a failure to start may be."""

    MACHINE = "machine"  # no process could be made: no job is to blame
    COMMAND = "command"  # the program could not be executed: a mistake in the job, or missing on this machine


class Failure(NamedTuple):
    """One start that failed. `what` tells different ones apart: the job, or the command as it is shown."""

    fault: Fault
    what: str
    project: str
    text: str


def fault_of(final: Final) -> Fault | None:
    """None: it was started, or did not start for a reason that is nobody's fault, or passes by itself (a directory that
    is missing, a device that is busy, a full disk)."""
    if final.outcome in (Outcome.REFUSED, Outcome.NEVER_EXECUTED) and final.reason_code in _OF_THE_MACHINE:
        return Fault.MACHINE
    return Fault.COMMAND if final.outcome is Outcome.LAUNCH_FAILED else None


def with_one_more(failures: Sequence[Failure], new: Failure) -> list[Failure]:
    """The same job, or the same command again, counts once."""
    others = [one for one in failures if (one.fault, one.what) != (new.fault, new.what)]
    return [*others, new][-MOST_KEPT:]


def counted(failures: Sequence[Failure]) -> int:
    """How many there are in a row that speak against the worker. Commands of one project alone do not: that is where the
    mistake is looked for first."""
    of_machine = sum(one.fault is Fault.MACHINE for one in failures)
    commands = [one for one in failures if one.fault is Fault.COMMAND]
    return of_machine + (len(commands) if len({one.project for one in commands}) > 1 else 0)
