"""Whose turn it is, in one transaction: ranks of the heads of shapes, with what each project has used read once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.core.matching import Shape
from broker.core.order import Rank, priority_of, rank, share_of
from broker.service import usage
from broker.service.context import Broker
from broker.service.holding import owner_of_project, read
from broker.store.contract import Tx


@dataclass(frozen=True, slots=True)
class Head:
    """The next job of one shape. `priority`: what it adds to its project's."""

    shape: int
    job: int
    priority: int
    wants: Shape


class Order:
    """Ranks as they are now. What is given away in this transaction counts at once."""

    def __init__(self, tx: Tx, broker: Broker) -> None:
        self._tx, self._broker = tx, broker
        self._used: dict[str, float] = {}

    def rank(self, head: Head) -> Rank:
        return self.rank_of(head.wants.project, head.priority, head.job)

    def rank_of(self, project: str, priority: int, job: int) -> Rank:
        """`priority`: what the job adds to its project's."""
        whole = priority_of(self._broker.settings.projects, project) + priority
        return rank(whole, self.used(project), job)

    def of_a_start(self, wants: Shape) -> float:
        """How much more that is with each job of this shape that starts."""
        seconds = usage.terms(self._broker).of_a_start(wants.cpus, wants.demand.gpus)
        return seconds / share_of(self._broker.settings.projects, wants.project)

    def first(self, heads: Iterable[Head]) -> Head | None:
        """Whose turn it is. What was used is looked at only where several projects wait."""
        heads = list(heads)
        if len({head.wants.project for head in heads}) <= 1:
            return min(heads, key=lambda head: (-head.priority, head.job), default=None)
        return min(heads, key=self.rank)

    def given(self, head: Head) -> None:
        """Its project holds more now."""
        self._used.pop(head.wants.project, None)

    def used(self, project: str) -> float:
        """For its share: of equal priority the one that has used least is first."""
        if project not in self._used:
            used = read(self._tx, owner_of_project(project))
            seconds = usage.terms(self._broker).with_what_runs(used, self._broker.listening.now_ms())
            self._used[project] = seconds / share_of(self._broker.settings.projects, project)
        return self._used[project]
