"""Dependencies: may a child start, can it never, or must it wait? Every end of a parent has an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from broker.core.states import TERMINAL
from broker.wire.states import DependencyPolicy, JobState


class Standing(StrEnum):
    """How one parent, or all of them, stand to a child."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Parent:
    """A job, or an array as a whole."""

    id: int
    state: JobState
    array: bool = False

    def __str__(self) -> str:
        return f"{'array' if self.array else 'job'} {self.id}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`because`: the first parent that keeps the child from starting; None when all are met. `open`: how many are."""

    standing: Standing
    because: Parent | None = None
    open: int = 0


def of_parent(policy: DependencyPolicy, state: JobState) -> Standing:
    """A parent that has not ended is open; each end is met, or never."""
    if state not in TERMINAL:
        return Standing.OPEN
    match policy:
        case DependencyPolicy.SUCCESS:
            return Standing.MET if state is JobState.COMPLETED else Standing.NEVER
        case DependencyPolicy.ANY_EXIT:
            return Standing.MET
        case DependencyPolicy.FAILURE:
            return Standing.NEVER if state is JobState.COMPLETED else Standing.MET
    assert_never(policy)


def decide(policy: DependencyPolicy, parents: Iterable[Parent]) -> Verdict:
    """One parent that can't be met decides at once, also while others are open."""
    first: Parent | None = None
    count = 0
    for parent in parents:
        match of_parent(policy, parent.state):
            case Standing.NEVER:
                return Verdict(Standing.NEVER, parent)
            case Standing.OPEN:
                first, count = first or parent, count + 1
            case Standing.MET:
                pass
    return Verdict(Standing.OPEN, first, count) if first is not None else Verdict(Standing.MET)
