"""For which job room is kept on a worker, and who may take some of it all the same.

A job that fits nowhere now has one worker kept for it, and a worker is kept for one job at most: the first in rank that
waits for it. It is looked for only when something would be given away before that job, so where all wait for the same
nothing is. What was found stands in the tables: a look goes by the one before it, `job_explain` shows it, and a broker
that starts again goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from broker.core.matching import Machine, Shape, never, reasons
from broker.core.order import Rank
from broker.core.reservation import NEVER, Running, Start, expected_end, may_pass, start_on, where_first
from broker.service import history, unreadable, views
from broker.service.context import Broker
from broker.service.machines import Shown
from broker.service.order import Head, Order
from broker.service.rows import given
from broker.service.wake import RoomFree, RoomKept
from broker.store.contract import Row, Tx
from broker.wire.machines import Given
from broker.wire.states import AssignmentState

STANDS_MS = 5000
"""So long a look at all workers is gone by."""
MOST_LOOKED_FOR = 8
"""So many are looked for in one transaction."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """`worker` None: no worker has enough for it, even with nothing to do."""

    worker: str | None
    start: Start
    looked_at: int
    rank: Rank


@dataclass(frozen=True, slots=True)
class Place:
    """A worker that could run the job, with what runs there."""

    id: str
    machine: Machine
    running: Sequence[Running]


class Reservations:
    """In one transaction: for whom a worker is kept."""

    def __init__(self, tx: Tx, broker: Broker, order: Order) -> None:
        self._tx, self._broker, self._order = tx, broker, order
        self._now = broker.listening.now_ms()
        self._margin_ms = int(broker.settings.wall_margin_s * 1000)
        self._kept: dict[int, _Kept] | None = None
        self._looks_left = MOST_LOOKED_FOR
        self._there: list[Place] | None = None

    def is_kept_from(
        self, head: Head, worker: str, machine: Machine, what: Given | None, ahead: Sequence[Head]
    ) -> bool:
        """Whether this worker is kept for one of those `ahead`, in their order, and the head may not pass it."""
        for first in ahead:
            if not self._looks_left and not self._stands(self._all().get(first.job)):
                self._tx.tell(RoomFree(worker))  # the others are looked for in the next transaction
                return True
            if self._worker_for(first) == worker:
                return not self._may_pass(first.wants, worker, machine, head, what)
        return False

    def _stands(self, kept: _Kept | None) -> TypeGuard[_Kept]:
        """Whether a look is new enough to go by."""
        return kept is not None and 0 <= self._now - kept.looked_at < STANDS_MS

    def stands_against(self, head: Head, rank: Rank) -> bool:
        """Whether what is kept for it stands against this rank: of no higher priority, whoever has used least."""
        kept = self._all().get(head.job)
        return kept is not None and kept.worker is not None and kept.rank.minus_priority <= rank.minus_priority

    def given(self, head: Head) -> None:
        """It has its room now."""
        self._there = None
        if self._kept is not None and self._kept.pop(head.job, None) is not None:
            self._tx.run("give_up_room", job=head.job)

    def _may_pass(self, kept_for: Shape, worker: str, machine: Machine, head: Head, what: Given | None) -> bool:
        running = [self._running(row) for row in self._tx.all("running_on", worker=worker)]
        start = start_on(kept_for, machine, running, self._now)
        if start is None:
            return True  # since the last look others took memory there
        limits = self._tx.one("limits_of_job", job=head.job)
        assert limits is not None, "it stands in a line"
        # The long end of what such jobs took: one that passes must have ended in time.
        upper_s = history.estimate(self._tx, limits["fingerprint"]).upper_s
        ends_at = expected_end(self._now, limit_s=limits["max_wall_s"], grace_s=limits["grace_s"], estimate_s=upper_s)
        return may_pass(kept_for, start, machine, running, Running("", head.wants.cpus, ends_at, what))

    def _worker_for(self, head: Head) -> str | None:
        kept = self._all().get(head.job)
        if self._stands(kept):
            return kept.worker
        self._looks_left -= 1
        found = self._look(head, kept)
        if found is None:
            self.given(head)
            return None
        self._keep(head.job, found, kept)
        return found.worker

    def _all(self) -> dict[int, _Kept]:
        if self._kept is None:
            self._kept = {row["job"]: self._read(row) for row in self._tx.all("kept_rooms")}
        return self._kept

    def _read(self, row: Row) -> _Kept:
        at = NEVER if row["starts_at"] is None else row["starts_at"]
        rank = self._order.rank_of(row["project"], row["priority"], row["job"])
        return _Kept(row["worker"], Start(at, tuple(json.loads(row["after"]))), row["looked_at"], rank)

    def directory_of(self, head: Head) -> str:
        """The key of the directory and environment that it needs, which workers may have refused."""
        row = self._tx.one("place_of_job", job=head.job)
        assert row is not None, "it stands in a line"
        return str(row["place"])

    def places_without_room(self, head: Head, directory: str) -> list[Place] | None:
        """Workers that could run it, and none of which has room now; without those that are kept for others of no lower
        priority. None: somebody can take it at once."""
        mine = self._order.rank(head).minus_priority
        others = [other for job, other in self._all().items() if job != head.job]
        taken = {other.worker for other in others if other.rank.minus_priority <= mine}
        places = [place for place in self._places(head.wants, directory) if place.id not in taken]
        return None if any(not reasons(head.wants, place.machine) for place in places) else places

    def keep_for(self, head: Head, worker: str, start: Start) -> None:
        """This worker, because room is being made there."""
        self._there = None  # some of what runs there is being stopped
        before = self._all().get(head.job)
        self._keep(head.job, _Kept(worker, start, self._now, self._order.rank(head)), before)

    def _look(self, head: Head, kept: _Kept | None) -> _Kept | None:
        """Where it can start first. None: somebody can take it at once."""
        places = self.places_without_room(head, self.directory_of(head))
        if places is None:
            return None
        rank = self._order.rank(head)
        starts: dict[str, Start] = {}
        for place in places:
            start = start_on(head.wants, place.machine, place.running, self._now)
            if start is not None:
                starts[place.id] = start
        if not starts:
            return _Kept(None, Start(NEVER, ()), self._now, rank)
        best = where_first(starts, kept.worker if kept is not None else None, self._now)
        return _Kept(best, starts[best], self._now, rank)

    def _places(self, wants: Shape, directory: str) -> list[Place]:
        """The workers that could run it. Read once for all who are looked for, until something is given away."""
        if self._there is None:
            self._there = self._open_workers()
        refused = self._tx.all("refusals_of_place", place=directory, key=wants.key())
        saying_no = {row["worker"] for row in refused}
        return [
            place for place in self._there if place.machine.name not in saying_no and not never(wants, place.machine)
        ]

    def _open_workers(self) -> list[Place]:
        running: dict[str, list[Running]] = {}
        for row in self._tx.all("running_everywhere"):
            running.setdefault(row["worker"], []).append(self._running(row))
        shown = Shown(self._tx)
        found = []
        for row in self._tx.all("workers"):
            machine = views.with_room(row)
            if machine.online and machine.closed is None:
                found.append(Place(row["id"], replace(machine, host=shown.host(row)), running.get(row["id"], ())))
        return found

    def _running(self, row: Row) -> Running:
        name = f"{row['job']}.{row['attempt']}"
        try:
            what = given(row)
        except unreadable.Unreadable:
            what = None
        if row["stop_id"] is not None:
            ends_at = expected_end(self._now, limit_s=0, grace_s=row["stop_grace_s"])
            return Running(name, row["cpus"], ends_at, what, stopping=True)
        ends_at = min(_ends_at(row, self._now, self._margin_ms), self._now + self._left_s(row) * 1000)
        return Running(name, row["cpus"], ends_at, what)

    def _left_s(self, row: Row) -> float:
        """As long as such jobs take, by their median: to expect an end too early lets fewer pass, and delays nobody."""
        ran_s = max(0.0, (self._tx.now_ms - row["started_at"]) / 1000) if row["started_at"] is not None else 0.0
        run_s = history.estimate(self._tx, row["fingerprint"], ran_s).run_s
        return NEVER if run_s is None else max(0.0, run_s - ran_s)

    def _keep(self, job: int, found: _Kept, before: _Kept | None) -> None:
        kept = self._all()
        for other in [other for other, what in kept.items() if what.worker == found.worker is not None]:
            del kept[other]
        kept[job] = found
        self._tx.run(
            "keep_room",
            job=job,
            worker=found.worker,
            starts_at=None if found.start.at == NEVER else int(found.start.at),
            after=json.dumps(found.start.after),
            looked_at=found.looked_at,
        )
        if found.worker is not None:
            self._tx.tell(RoomKept(job, found.worker))
        if before is not None and before.worker not in (None, found.worker):
            self._tx.tell(RoomFree(before.worker))


def _ends_at(row: Row, now: int, margin_ms: int) -> float:
    """Of a started one by its wall limit, which stands in its row; of one that is about to start by all of the limit."""
    if row["state"] == AssignmentState.STARTED and row["wall_until"] is not None:
        return float(max(now, row["wall_until"] - margin_ms))
    return expected_end(now, limit_s=row["max_wall_s"], grace_s=row["grace_s"])


async def give_up_old(broker: Broker) -> None:
    """Rows of jobs that do not wait any more."""
    await broker.store.run(lambda tx: tx.run("give_up_old_room"))
