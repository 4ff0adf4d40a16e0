"""Preemption by policy: the first job that fits nowhere now takes room from preemptible work of lower priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.core.order import priority_of
from broker.core.preemption import Site, Victim, chosen
from broker.core.reservation import Running, Start
from broker.core.rows import StopKind
from broker.service import usage
from broker.service.context import Broker
from broker.service.dispatch import Turn, heads_of
from broker.service.order import Head
from broker.service.reservations import Place
from broker.service.rows import given, read_assignment, read_job
from broker.service.stops import request_stop
from broker.store.contract import Row, Tx

BY = "policy"
MOST_HELPED = 8
"""Jobs for which room is made in one look."""


async def make_room(broker: Broker) -> None:
    """Ask jobs to stop for the first in rank that has no room: those that have run long enough, in listening time as
    this process has seen it, and whose priority is so much lower. Nothing, where the policy is off."""
    policy = broker.settings.preemption
    if not policy.enabled:
        return
    running = await broker.store.read(lambda tx: [row["id"] for row in tx.all("preemptible")])
    limit_ms = int(policy.min_runtime_s * 1000)
    ripe = frozenset(broker.preemptible.for_longer(running, limit_ms, broker.listening.now_ms()))
    await broker.store.run(lambda tx: _Pass(tx, broker, ripe).run())


@dataclass(frozen=True, slots=True)
class Choice:
    """Where room would be made, and who would be stopped for it."""

    site: Site
    stopped: Sequence[Victim]


def would_stop(tx: Tx, broker: Broker, head: Head, directory: str) -> Choice | None:
    """What the policy would do for a job that is not there yet, if its turn came in the next look. Writes nothing."""
    policy = broker.settings.preemption
    if not policy.enabled:
        return None
    ripe = broker.preemptible.longer_than(int(policy.min_runtime_s * 1000), broker.listening.now_ms())
    return _Pass(tx, broker, frozenset(ripe)).would_stop(head, directory)


class _Pass:
    """One look at all who wait, in one transaction."""

    def __init__(self, tx: Tx, broker: Broker, ripe: frozenset[int]) -> None:
        self._tx, self._broker, self._ripe = tx, broker, ripe
        self._turn = Turn(tx, broker)
        self._running: list[Victim] | None = None

    def run(self) -> None:
        left = MOST_HELPED
        for head in self._heads():
            found = self._choice(head, self._turn.kept.directory_of(head))
            if found is not None and found.stopped:
                self._make(head, found)
                left -= 1
            if not left:
                return

    def would_stop(self, head: Head, directory: str) -> Choice | None:
        mine = self._turn.order.rank(head)
        before = [other for other in self._heads() if self._turn.order.rank(other) < mine]
        if self._turn.holds(head) or any(one.wants == head.wants for one in before):
            return None
        return self._choice(head, directory)

    def _heads(self) -> list[Head]:
        heads = heads_of(self._tx, self._turn.all_shapes())
        waiting = [head for head in heads if not self._turn.holds(head)]
        return sorted(waiting, key=self._turn.order.rank)

    def _choice(self, head: Head, directory: str) -> Choice | None:
        """Nobody is looked at for whom nobody may be stopped: there may be hundreds of kinds of jobs."""
        victims = self._victims(head)
        places = self._turn.kept.places_without_room(head, directory) if victims else None
        if not places:
            return None
        found = chosen(head.wants, [_site(place, victims) for place in places])
        return Choice(*found) if found is not None else None

    def _make(self, head: Head, found: Choice) -> None:
        for victim in found.stopped:
            self._stop(victim, head)
        self._running = None
        after = tuple(one.assignment for one in (*found.site.going, *(victim.running for victim in found.stopped)))
        self._turn.kept.keep_for(head, found.site.worker, Start(self._broker.listening.now_ms(), after))

    def _priority(self, project: str, priority: int) -> int:
        return priority_of(self._broker.settings.projects, project) + priority

    def _victims(self, head: Head) -> list[Victim]:
        """Who may be stopped for this one."""
        if self._running is None:
            rows = self._tx.all("preemptible")
            self._running = [self._victim(row) for row in rows if row["id"] in self._ripe]
        highest = (
            self._priority(head.wants.project, head.priority) - self._broker.settings.preemption.min_priority_difference
        )
        return [victim for victim in self._running if victim.priority <= highest]

    def _victim(self, row: Row) -> Victim:
        priority = self._priority(row["project"], row["priority"])
        what = given(row)
        gpus = len(what.gpus or ()) if what is not None else 0
        ran_s = max(0, self._tx.now_ms - row["started_at"]) / 1000  # who has done less; nothing else goes by it
        work_s = ran_s * (row["cpus"] + gpus * usage.terms(self._broker).gpu_weight)
        name = f"{row['job']}.{row['attempt']}"
        return Victim(row["id"], row["job"], Running(name, row["cpus"], 0, what), priority, work_s)

    def _stop(self, victim: Victim, head: Head) -> None:
        job, assignment = read_job(self._tx, victim.job), read_assignment(self._tx, victim.id)
        assert job is not None and assignment is not None, "both were read in this transaction"
        priority = self._priority(head.wants.project, head.priority)
        why = f"makes room for job {head.job}, of priority {priority}; its own is {victim.priority}"
        request_stop(self._tx, self._broker, job, assignment, StopKind.PREEMPT, BY, why)


def _site(place: Place, victims: Sequence[Victim]) -> Site:
    here = {one.assignment for one in place.running}
    return Site(
        place.id,
        place.machine,
        [one for one in place.running if one.stopping],
        [victim for victim in victims if victim.running.assignment in here],
    )
