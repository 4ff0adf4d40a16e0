"""Give queued jobs to workers with room. The cost grows with the number of distinct shapes, not of jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from broker.core.matching import Machine, Shape, reasons
from broker.core.states import Cause, Claimed, Facts
from broker.service.context import Broker
from broker.service.rows import read_job
from broker.service.transition import LostSwap, apply
from broker.service.wake import Parked
from broker.store.contract import Row, Tx
from broker.wire.jobs import JobSpec
from broker.wire.workers import Delivery, PollAnswer

log = structlog.get_logger("broker.dispatch")

MOST_IN_ONE_ANSWER = 64


@dataclass(slots=True)
class _Head:
    """The next job of one shape for one worker."""

    shape: int
    job: int
    priority: int
    cpus: float

    def before(self, other: _Head | None) -> bool:
        return other is None or (-self.priority, self.job) < (-other.priority, other.job)


def claim(tx: Tx, broker: Broker, worker: Row, number: int | None, most: int = MOST_IN_ONE_ANSWER) -> list[Delivery]:
    """Claim up to `most` jobs for this worker, best first. Capacity comes from the tables, never from words.

    `number`: that of the answer these travel in, if it has one already.
    """
    if tx.one("worker_refuses_all", worker=worker["id"], now=tx.now_ms) is not None:
        return []
    machine = machine_of(tx, worker)
    heads = _heads(tx, worker["id"], machine)
    deliveries: list[Delivery] = []
    while len(deliveries) < most:
        best: _Head | None = None
        for head in heads.values():
            if head.cpus <= machine.free and head.before(best):
                best = head
        if best is None:
            break
        if number is None:
            number = next_number(tx, worker)
        delivery = _assign(tx, broker, worker, best.job, number, best.cpus)
        if delivery is not None:
            deliveries.append(delivery)
            machine = _less(machine, best.cpus)
        following = _head(tx, worker["id"], best.shape, best.cpus)
        if following is None:
            del heads[best.shape]
        else:
            heads[best.shape] = following
    return deliveries


def machine_of(tx: Tx, worker: Row) -> Machine:
    """What is left of a worker: an assignment keeps its share until its tree is known gone."""
    held = tx.one("cpus_held", worker=worker["id"])
    used = (held["cpus"] if held else 0) + worker["strangers"]
    return Machine(
        name=worker["name"],
        online=bool(worker["online"]),
        slots=worker["slots"],
        free=worker["slots"] - used,
        tags=frozenset(json.loads(worker["tags"])),
    )


def next_number(tx: Tx, worker: Row) -> int:
    """Poll answers that carry something are numbered, durably, per epoch."""
    row = tx.one("number_answer", worker=worker["id"], epoch=worker["epoch"])
    assert row is not None, "the caller has checked the epoch in this transaction"
    return int(row["answers"])


def deliver_again(tx: Tx, broker: Broker, assignment: int, number: int) -> Delivery:
    """Put a pending assignment into a newer answer, whole and with the same token."""
    tx.run("redeliver", id=assignment, answer=number)
    row = tx.one("assignment", assignment=assignment)
    assert row is not None
    return _delivery(tx, broker, row["job"], row["attempt"], row["token"])


async def run(broker: Broker) -> None:
    """The dispatcher: whenever something may be ready, claim for all parked polls in one transaction."""
    while True:
        polls = await broker.wake.candidates()
        present = [poll for poll in polls if not await poll.gone()]
        for poll in polls:
            if poll not in present:
                broker.wake.unpark(poll)
                poll.resolve(None)
        present = [poll for poll in present if broker.wake.is_parked(poll)]
        if not present:
            continue
        for poll in present:
            poll.claiming = True
        try:
            answers = await broker.store.run(partial(_claim_for_all, broker=broker, polls=present))
        except Exception:
            # A full or failed disk: the polls stay parked, and the next wake or poll tries again.
            log.exception("dispatch failed")
            answers = {}
        for poll in present:
            poll.claiming = False
            answer = answers.get(poll.worker)
            if answer is not None:
                broker.wake.unpark(poll)
                poll.resolve(answer)
            elif not broker.wake.is_parked(poll):
                poll.resolve(None)


def _claim_for_all(tx: Tx, *, broker: Broker, polls: Sequence[Parked]) -> dict[str, PollAnswer]:
    """One job a worker and round, so that a burst spreads over the fleet."""
    numbers: dict[str, int] = {}
    given: dict[str, list[Delivery]] = {}
    active = list(polls)
    while active:
        still = []
        for poll in active:
            worker = tx.one("worker", worker=poll.worker)
            if worker is None or worker["epoch"] != poll.epoch or not worker["online"]:
                continue
            claimed = claim(tx, broker, worker, numbers.get(poll.worker), most=1)
            if claimed:
                now = tx.one("worker", worker=poll.worker)
                numbers.setdefault(poll.worker, int(now["answers"]) if now else 0)
                given.setdefault(poll.worker, []).extend(claimed)
                if len(given[poll.worker]) < MOST_IN_ONE_ANSWER:
                    still.append(poll)
        active = still
    return {worker: PollAnswer(number=numbers[worker], deliveries=deliveries) for worker, deliveries in given.items()}


def _heads(tx: Tx, worker: str, machine: Machine) -> dict[int, _Head]:
    heads = {}
    for row in tx.all("ready_shapes"):
        shape = Shape.from_key(row["key"])
        if reasons(shape, machine):
            continue
        head = _head(tx, worker, row["id"], shape.cpus)
        if head is not None:
            heads[row["id"]] = head
    return heads


def _head(tx: Tx, worker: str, shape: int, cpus: float) -> _Head | None:
    row = tx.one("head_of_shape", shape=shape, worker=worker, now=tx.now_ms)
    return None if row is None else _Head(shape, row["id"], row["priority"], cpus)


def _less(machine: Machine, cpus: float) -> Machine:
    return Machine(machine.name, machine.online, machine.slots, machine.free - cpus, machine.tags)


def _assign(tx: Tx, broker: Broker, worker: Row, job: int, number: int, cpus: float) -> Delivery | None:
    row = read_job(tx, job)
    if row is None:
        return None
    token = broker.make_secret()
    given = Claimed(
        worker=worker["id"],
        worker_name=worker["name"],
        epoch=worker["epoch"],
        token=token,
        lease_until=broker.listening.now_ms() + broker.pending_lease_ms,
        answer=number,
        cpus=cpus,
    )
    try:
        done = apply(tx, row, None, Cause.CLAIM, Facts(now=tx.now_ms, claimed=given))
    except LostSwap:
        return None
    return _delivery(tx, broker, job, done.job.attempt, token)


def _delivery(tx: Tx, broker: Broker, job: int, attempt: int, token: str) -> Delivery:
    spec = tx.one("spec_of_job", job=job)
    row = read_job(tx, job)
    assert spec is not None and row is not None
    return Delivery(
        job=job,
        attempt=attempt,
        token=token,
        spec=JobSpec.model_validate_json(spec["json"]),
        lease_s=broker.pending_lease_ms / 1000,
        restarts=row.restarts,
        array=spec["array_id"],
        array_index=spec["array_index"],
    )
