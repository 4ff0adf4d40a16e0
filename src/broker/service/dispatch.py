"""Give queued jobs to workers with room. The cost grows with the number of distinct shapes, not of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from broker.core.arrays import member
from broker.core.leases import delivered
from broker.core.matching import Machine, Shape, could, fits, suits
from broker.core.placement import Demand, Held, choose
from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import Cause, Claimed, Facts
from broker.failpoint import failpoint
from broker.service import machines, unreadable
from broker.service.context import Broker
from broker.service.order import Head, Order
from broker.service.reservations import Reservations
from broker.service.rows import read_job
from broker.service.transition import apply, pass_in_line
from broker.service.views import with_room
from broker.service.wake import HeldByQuota, Look, Parked
from broker.store.contract import Row, Tx
from broker.wire.jobs import JobSpec
from broker.wire.machines import Given
from broker.wire.workers import Adoptee, Delivery, PollAnswer

log = structlog.get_logger("broker.dispatch")

MOST_IN_ONE_ANSWER = 64


Ready = Sequence[tuple[int, Shape]]
"""Shapes that have queued jobs, with their ids."""


def ready(tx: Tx) -> Ready:
    return [(row["id"], Shape.from_key(row["key"])) for row in tx.all("ready_shapes")]


def claimant(tx: Tx, broker: Broker, worker: str) -> Row | None:
    """A worker's row with what is reserved on it: an assignment keeps its share until its tree is known gone."""
    return tx.one("claimant", worker=worker, listened=broker.listening.now_ms())


class Turn:
    """What is decided in one transaction for all workers that are looked at: the order, and what is kept for whom."""

    def __init__(self, tx: Tx, broker: Broker, shapes: Ready | None = None) -> None:
        self.order = Order(tx, broker)
        self.kept = Reservations(tx, broker, self.order)
        self._tx, self._shapes = tx, shapes
        self._quotas = broker.quotas(tx)
        self._heads_of: set[int] = set()

    def all_shapes(self) -> Ready:
        """Everything that waits, also what this look is not about."""
        if self._shapes is None:
            self._shapes = ready(self._tx)
        return self._shapes

    def has_turn(self, head: Head) -> None:
        """It is taken out of its line, given away or not."""
        self._heads_of.add(head.shape)

    def changed_lines(self) -> set[int]:
        """Shapes whose lines have changed since this was asked last."""
        found, self._heads_of = self._heads_of, set()
        return found

    def holds(self, head: Head) -> bool:
        """Whether a quota is in its way."""
        return self._quotas.holds(head.wants) is not None

    def is_held(self, head: Head) -> bool:
        """The same; it is looked at again when a job has ended, or the day has."""
        if not self.holds(head):
            return False
        self._tx.tell(HeldByQuota(head.shape))
        return True

    def given(self, head: Head) -> None:
        """It was given to a worker."""
        self.order.given(head)
        self.kept.given(head)
        self._quotas.changed()


def claim(
    tx: Tx,
    broker: Broker,
    worker: Row,
    shapes: Ready,
    number: int | None,
    most: int = MOST_IN_ONE_ANSWER,
    turn: Turn | None = None,
) -> tuple[int | None, list[Delivery]]:
    """Claim up to `most` jobs for this `claimant`, best first. Capacity comes from the tables, never from words.

    `number`: that of the answer these travel in, if it has one already; it is returned.
    """
    if worker["refused"]:
        return number, []
    turn = turn if turn is not None else Turn(tx, broker, shapes)
    room = _Room(tx, worker)
    queue = _Queue(tx, broker, worker, room, shapes, turn)
    deliveries: list[Delivery] = []
    while len(deliveries) < most:
        best = queue.next()
        if best is None:
            break
        if number is None:
            number = next_number(tx, worker)
        turn.has_turn(best)
        delivery = _assign(tx, broker, worker, best, number, room)
        if delivery is not None:
            deliveries.append(delivery)
            room.less(best.wants, delivery)
            turn.given(best)
        if len(deliveries) < most:
            queue.follow(best)
    return number, deliveries


def next_number(tx: Tx, worker: Row) -> int:
    """Poll answers that carry something are numbered, durably, per epoch."""
    row = tx.one("number_answer", worker=worker["id"], epoch=worker["epoch"])
    assert row is not None, "the caller has checked the epoch in this transaction"
    return int(row["answers"])


def deliver_again(tx: Tx, broker: Broker, job: JobRow, assignment: AssignmentRow, number: int) -> Delivery | None:
    """Put a pending assignment into a newer answer, whole and with the same token. None if it can't be read any more."""
    asked = _asked(tx, job.id)
    if asked is None:
        return None
    tx.run("redeliver", id=assignment.id, answer=number)
    delivery = _delivery(broker, asked, job, assignment.attempt, assignment.token, assignment.given)
    return delivery if job.adopted is None else delivery.model_copy(update={"adopt": _adoptee(tx, job.id)})


async def run(broker: Broker) -> None:
    """The dispatcher: whenever something may be ready, claim for all parked polls in one transaction."""
    while True:
        look = await broker.wake.look()
        if not look.polls:
            continue
        for poll in look.polls:
            poll.claiming = True
        try:
            answers = await broker.store.run(partial(_claim_for_all, broker=broker, look=look))
            if answers:
                failpoint("claimed_parked")
        except Exception:
            # A full or failed disk: the polls stay parked, and the next wake or poll tries again.
            log.exception("dispatch failed")
            broker.wake.not_looked(look)
            answers = {}
        for poll in look.polls:
            poll.claiming = False
            answer = answers.get(poll.worker)
            if answer is not None:
                broker.wake.unpark(poll)
                poll.resolve(answer)
            elif not broker.wake.is_parked(poll):
                poll.resolve(None)


def _claim_for_all(tx: Tx, *, broker: Broker, look: Look) -> dict[str, PollAnswer]:
    """One job a worker and round, so that a burst spreads over the fleet."""
    plan, turn = _Plan(tx, look), Turn(tx, broker)
    numbers: dict[str, int | None] = {}
    given: dict[str, list[Delivery]] = {}
    active = list(look.polls)
    while active and plan.has_jobs:
        still = []
        for poll in active:
            shapes = plan.shapes_for(poll)
            worker = claimant(tx, broker, poll.worker) if shapes else None
            if worker is None or worker["epoch"] != poll.epoch or not worker["online"]:
                continue
            number, claimed = claim(tx, broker, worker, shapes, numbers.get(poll.worker), most=1, turn=turn)
            if claimed:
                plan.took(turn.changed_lines())
                numbers[poll.worker] = number
                given.setdefault(poll.worker, []).extend(claimed)
                if len(given[poll.worker]) < MOST_IN_ONE_ANSWER:
                    still.append(poll)
        active = still
    return {worker: PollAnswer(number=numbers[worker], deliveries=deliveries) for worker, deliveries in given.items()}


class _Plan:
    """The shapes of one look that still have queued jobs. Who can't run any of them costs no statement."""

    def __init__(self, tx: Tx, look: Look) -> None:
        self._tx, self._look = tx, look
        self._all = dict(ready(tx)) if any(poll.worker in look.workers for poll in look.polls) else {}
        self._new = {shape: key for shape in sorted(look.shapes) if (key := self._ready(shape)) is not None}

    @property
    def has_jobs(self) -> bool:
        return bool(self._all or self._new)

    def shapes_for(self, poll: Parked) -> Ready:
        shapes = self._all if poll.worker in self._look.workers else self._new
        return [(id_, shape) for id_, shape in shapes.items() if could(shape, poll.machine)]

    def took(self, shapes: set[int]) -> None:
        """Jobs of these were given away: what has none left is looked at no more."""
        for shape in shapes:
            if self._ready(shape) is None:
                self._all.pop(shape, None)
                self._new.pop(shape, None)

    def _ready(self, shape: int) -> Shape | None:
        row = self._tx.one("ready_shape", shape=shape)
        return None if row is None else Shape.from_key(row["key"])


class _Room:
    """What is left on a worker while jobs are claimed for it. Devices, memory and counted things are looked at only if
    a shape asks for them that the worker may have."""

    def __init__(self, tx: Tx, worker: Row) -> None:
        self._tx, self._worker = tx, worker
        self._machine = with_room(worker)

    @property
    def machine(self) -> Machine:
        return self._machine

    def takes(self, shape: Shape) -> bool:
        if shape.cpus > self._machine.free:
            return False
        self._look_for(shape)
        return fits(shape, self._machine)

    def lacks_now(self, shape: Shape) -> bool:
        """It could run here, and has no room now."""
        if not suits(shape, self._machine):
            return False
        self._look_for(shape)
        return not fits(shape, self._machine) and could(shape, self._machine)

    def _look_for(self, shape: Shape) -> None:
        if shape.demand and self._machine.host is None and suits(shape, self._machine):
            self._machine = replace(self._machine, host=machines.host_of(self._tx, self._worker))

    def given(self, demand: Demand) -> Given | None:
        """What a job of a shape that it takes is given besides cpus."""
        if not demand:
            return None
        assert self._machine.host is not None, "a shape that asks for something was taken"
        return choose(demand, self._machine.host)

    def less(self, shape: Shape, delivery: Delivery) -> None:
        host = self._machine.host
        if host is not None and delivery.given is not None:
            host = host.with_(Held(f"{delivery.job}.{delivery.attempt}", delivery.given))
        self._machine = replace(self._machine, free=self._machine.free - shape.cpus, host=host)


class _Queue:
    """The heads of shapes that may have their turn on one worker."""

    def __init__(self, tx: Tx, broker: Broker, worker: Row, room: _Room, shapes: Ready, turn: Turn) -> None:
        self._tx, self._broker, self._room, self._turn = tx, broker, room, turn
        self._worker: str = worker["id"]
        self._is_preferred = bool(worker["preferred"])
        self._heads: dict[int, Head] = {}
        self._others: list[Head] | None = None
        self._look([(id_, shape) for id_, shape in shapes if room.takes(shape)])

    def next(self) -> Head | None:
        """Whose turn it is: who fits, and takes nothing that is kept for one before it."""
        while True:
            fitting = [
                head for head in self._heads.values() if self._room.takes(head.wants) and not self._turn.is_held(head)
            ]
            best = self._turn.order.first(fitting)
            if best is None:
                return None
            ahead = self._ahead_of(best)
            if not ahead:
                return best
            machine, what = self._room.machine, self._room.given(best.wants.demand)
            if not self._turn.kept.is_kept_from(best, self._worker, machine, what, ahead):
                return best
            del self._heads[best.shape]

    def follow(self, head: Head) -> None:
        """The next of this shape stands at its head."""
        del self._heads[head.shape]
        self._look([(head.shape, head.wants)])

    def _look(self, shapes: Ready) -> None:
        heads = heads_of(self._tx, shapes, self._worker, self._broker.listening.now_ms())
        self._heads.update((head.shape, head) for head in heads)
        if self._is_preferred:
            self._look_at_preferring(dict(shapes))

    def _look_at_preferring(self, wanted: dict[int, Shape]) -> None:
        """What is left to this worker stands in no line: it is before the head of its shape, or it is not."""
        rows = self._tx.all("heads_preferring", worker=self._worker, listened=self._broker.listening.now_ms())
        for row in rows:
            if row["shape"] not in wanted:
                continue
            head = Head(row["shape"], row["id"], row["priority"], wanted[row["shape"]])
            other = self._heads.get(head.shape)
            if other is None or (-head.priority, head.job) < (-other.priority, other.job):
                self._heads[head.shape] = head

    def _ahead_of(self, best: Head) -> list[Head]:
        """Those that this worker could run, and has no room for now, if they are before it in rank, or if room is kept for
        them and they are of no lower priority: who has used least changes with every job. In their order."""
        waiting = [head for head in (*self._heads.values(), *self._rest()) if not self._room.takes(head.wants)]
        if not waiting:
            return []
        order = self._turn.order
        limit = order.rank(best)
        before = [
            head
            for head in waiting
            if (order.rank(head) < limit or self._turn.kept.stands_against(head, limit))
            and not self._turn.is_held(head)
        ]
        return sorted(before, key=order.rank)

    def _rest(self) -> list[Head]:
        """The heads of all other shapes that wait for room here."""
        if self._others is None:
            others = [
                (id_, shape)
                for id_, shape in self._turn.all_shapes()
                if id_ not in self._heads and self._room.lacks_now(shape)
            ]
            self._others = heads_of(self._tx, others, self._worker, self._broker.listening.now_ms())
        return self._others


def heads_of(tx: Tx, shapes: Ready, worker: str = "", listened: int = 0) -> list[Head]:
    """The next job of each of these, but for what this worker has refused."""
    if not shapes:
        return []
    wants = dict(shapes)
    rows = tx.all("heads_of_shapes", shapes=json.dumps(list(wants)), worker=worker, listened=listened)
    return [Head(row["shape"], row["id"], row["priority"], wants[row["shape"]]) for row in rows]


def _assign(tx: Tx, broker: Broker, worker: Row, head: Head, number: int, room: _Room) -> Delivery | None:
    job = head.job
    row = _readable(tx, job)
    if row is None:
        return None
    asked = _asked(tx, job)
    if asked is None:
        why = "what was asked for can't be read any more"
        gone = Facts(now=tx.now_ms, listened=broker.listening.now_ms(), reason_code="unreadable", reason=why)
        apply(tx, row, None, Cause.CANCEL_QUEUED, gone)
        return None
    token = broker.make_secret()
    what = room.given(head.wants.demand)
    given = Claimed(
        worker=worker["id"],
        worker_name=worker["name"],
        epoch=worker["epoch"],
        token=token,
        lease_until=broker.listening.now_ms() + broker.pending_lease_ms,
        answer=number,
        cpus=head.wants.cpus,
        given=what,
    )
    facts = Facts(now=tx.now_ms, listened=broker.listening.now_ms(), claimed=given)
    done = apply(tx, row, None, Cause.CLAIM, facts)
    failpoint("claiming")
    return _delivery(broker, asked, done.job, done.job.attempt, token, what)


def _readable(tx: Tx, job: int) -> JobRow | None:
    """The job at the head of its line; one that can't be read lets the next have its turn."""
    try:
        return read_job(tx, job)
    except unreadable.Unreadable as error:
        unreadable.tell("jobs", job, error)
        pass_in_line(tx, job)
        return None


def spec_of(row: Row) -> JobSpec:
    """What a job's row of `spec_of_job` says that it runs: of a member of an array with its own words in place."""
    spec = JobSpec.model_validate_json(row["json"])
    if row["array_id"] is None:
        return spec
    return member(spec, row["array_index"], json.loads(row["array_values"]) if row["array_values"] else {})


@dataclass(frozen=True, slots=True)
class _Asked:
    spec: JobSpec
    array: int | None
    array_index: int | None


def _adoptee(tx: Tx, job: int) -> Adoptee:
    row = tx.one("adoptee_of_job", job=job)
    assert row is not None, "it was read in this transaction"
    return Adoptee(pid=row["adopted_pid"], start=row["adopted_start"], follow=bool(row["follow"]))


def _asked(tx: Tx, job: int) -> _Asked | None:
    row = tx.one("spec_of_job", job=job)
    assert row is not None
    try:
        return _Asked(spec_of(row), row["array_id"], row["array_index"])
    except unreadable.Unreadable as error:
        unreadable.tell("specs", job, error)
        return None


def _delivery(broker: Broker, asked: _Asked, job: JobRow, attempt: int, token: str, given: Given | None) -> Delivery:
    return Delivery(
        job=job.id,
        attempt=attempt,
        token=token,
        spec=delivered(asked.spec) if job.leased else asked.spec,
        lease_s=broker.pending_lease_ms / 1000,
        restarts=job.restarts,
        array=asked.array,
        array_index=asked.array_index,
        given=given,
    )
