"""Who makes room for a job that fits nowhere now: as few as it takes, and the cheapest of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from broker.core.matching import Machine, Shape, reasons
from broker.core.reservation import Running, without


@dataclass(frozen=True, slots=True)
class Victim:
    """A preemptible job that runs. `work_s`: what would be lost, in weighted seconds of what it holds."""

    id: int
    job: int
    running: Running
    priority: int
    work_s: float

    @property
    def cost(self) -> tuple[int, float, int]:
        return self.priority, self.work_s, self.job


@dataclass(frozen=True, slots=True)
class Site:
    """A worker that could run the job: what it has now, what there is being stopped already, and who could be."""

    worker: str
    machine: Machine
    going: Sequence[Running]
    victims: Sequence[Victim]


def chosen_on(shape: Shape, site: Site) -> Sequence[Victim] | None:
    """Whom to stop there. Empty: what is being stopped already will do. None: it would not fit all the same."""
    taken: list[Victim] = []
    for victim in sorted(site.victims, key=lambda victim: victim.cost):
        if _fits(shape, site, taken):
            break
        taken.append(victim)
    if not _fits(shape, site, taken):
        return None
    for victim in sorted(taken, key=lambda victim: victim.cost, reverse=True):
        fewer = [other for other in taken if other is not victim]
        if _fits(shape, site, fewer):
            taken = fewer
    return taken


def chosen(shape: Shape, sites: Iterable[Site]) -> tuple[Site, Sequence[Victim]] | None:
    """The worker where it costs least. None: nowhere would it help."""
    found = [(site, victims) for site in sites if (victims := chosen_on(shape, site)) is not None]
    return min(found, key=lambda one: (_cost(one[1]), one[0].worker), default=None)


def _cost(victims: Collection[Victim]) -> tuple[int, float]:
    """The least important work first, then the least of it."""
    if not victims:
        return -1 << 31, 0.0
    return max(victim.priority for victim in victims), sum(victim.work_s for victim in victims)


def _fits(shape: Shape, site: Site, gone: Sequence[Victim]) -> bool:
    return not reasons(shape, without(site.machine, [*site.going, *(victim.running for victim in gone)]))
