"""Who may have their turn before a job: what waits, could take a worker that the job could take, and is not held back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from broker.core.ahead import Before, Crowd, Refusals, before
from broker.core.matching import Machine, Shape, could
from broker.core.order import priority_of
from broker.service import dispatch
from broker.service.context import Broker
from broker.service.order import Order
from broker.store.contract import Tx

MOST_COUNTED = 10_000
LAST = (1 << 62) + 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands among others. `before`: jobs with smaller ids and the same priority come first."""

    shape: Shape
    priority: int
    before: int
    waits_for: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Rival:
    """Jobs of one shape. `priority`: what such a job adds to its project's to be the equal of the one that is asked about.
    `refused`: places to which all workers that could take both said no."""

    id: int
    shape: Shape
    priority: int
    refused: Sequence[str]


def rivals(tx: Tx, broker: Broker, place: Place, there: Sequence[Machine]) -> list[Rival]:
    """Those of its own project first. `there`: workers that could take the job."""
    mine, projects = place.shape, broker.settings.projects
    priority = priority_of(projects, mine.project) + place.priority
    held = _Held(tx, broker, mine)
    refusals = _refusals(tx)
    found = []
    for id_, shape in dispatch.ready(tx):
        refused = _refused(id_, shape, there, refusals)
        if refused is not None and not held.back(shape):
            found.append(Rival(id_, shape, priority - priority_of(projects, shape.project), refused))
    return sorted(found, key=lambda rival: rival.shape.project != mine.project)


def count(
    tx: Tx, broker: Broker, place: Place, there: Sequence[Machine], found: Sequence[Rival]
) -> tuple[Before, bool]:
    """How many come first, by the order as it is now, and whether that is all of them: the work is bounded."""
    rows = tx.all(
        "jobs_ahead",
        rivals=json.dumps([_asked(rival, place) for rival in found]),
        workers=_names(there),
        before=place.before,
        most=MOST_COUNTED,
    )
    order, shapes = Order(tx, broker), {rival.id: rival.shape for rival in found}
    crowds = [
        Crowd(shape.project, order.of_a_start(shape), row["higher"], row["older"], row["younger"])
        for row in rows
        for shape in [shapes[row["shape"]]]
    ]
    used = {project: order.used(project) for project in {place.shape.project, *(crowd.project for crowd in crowds)}}
    whole = sum(crowd.higher + crowd.older + crowd.younger for crowd in crowds) < MOST_COUNTED
    return before(place.shape.project, used, crowds), whole


def first_of(
    tx: Tx, rival: Rival, place: Place, there: Sequence[Machine], most: int
) -> list[tuple[int, int, str | None]]:
    """Jobs of one rival that come first by priority and age: their own priority, id and fingerprint."""
    rows = tx.all(
        "shape_ahead",
        shape=rival.id,
        priority=rival.priority,
        before=place.before,
        refused=json.dumps(rival.refused),
        workers=_names(there),
        most=most,
    )
    return [(row["priority"], row["id"], row["fingerprint"]) for row in rows]


def _asked(rival: Rival, place: Place) -> dict[str, object]:
    """In its own project the younger are behind it."""
    until = place.before if rival.shape.project == place.shape.project else LAST
    return {"shape": rival.id, "priority": rival.priority, "until": until, "refused": list(rival.refused)}


def _names(there: Sequence[Machine]) -> str:
    return json.dumps([machine.name for machine in there])


def _refused(id_: int, shape: Shape, there: Sequence[Machine], refusals: Refusals) -> Sequence[str] | None:
    """None: none of them could take such a job. Who that is matters only where somebody refused something."""
    if not refusals:
        return () if any(could(shape, machine) for machine in there) else None
    workers = [machine.name for machine in there if could(shape, machine)]
    return refusals.everywhere(id_, workers)


def _refusals(tx: Tx) -> Refusals:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in tx.all("refusals"):
        found[row["place"]].add(row["worker"])
    return Refusals({place: frozenset(workers) for place, workers in found.items()})


class _Held:
    """What a quota keeps from a start is in nobody's way, but for jobs that wait for the same quota."""

    def __init__(self, tx: Tx, broker: Broker, mine: Shape) -> None:
        self._quotas, self._mine = broker.quotas(tx), mine
        self._is_held = self._quotas.holds(mine) is not None

    def back(self, shape: Shape) -> bool:
        if self._quotas.holds(shape) is None:
            return False
        same = shape.project == self._mine.project or (shape.token is not None and shape.token == self._mine.token)
        return not (self._is_held and same)
