"""What the broker looks at by itself, again and again. A loop is data; one runner times them all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from broker.core.ending import loss, told_of_loss
from broker.core.rows import AssignmentRow, JobRow, StopKind
from broker.core.states import LIVE, Cause, Facts, Illegal
from broker.failpoint import failpoint
from broker.service import leases, machines, making_room, reservations, retention, schedules, times, usage, waits
from broker.service.context import Broker
from broker.service.rows import read_assignment, read_job
from broker.service.stops import request_stop
from broker.service.transition import LostSwap, apply, event, prefer_nobody, worker_event
from broker.service.wake import ListVoid, RoomFree
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.states import AssignmentState

log = structlog.get_logger("broker.sweeps")

BATCH = 200
MOST_UNSTARTED = 10_000
GAP_WORTH_SAYING_MS = 2000


@dataclass(frozen=True, slots=True)
class Sweep:
    """`every`: seconds between two runs, from the settings."""

    name: str
    every: Callable[[Broker], float]
    run: Callable[[Broker], Awaitable[None]]


async def expire_leases(broker: Broker) -> None:
    """Leases that ran out while the broker listened: expired, then by policy. Silent workers: lost."""
    listened, gap_ms = broker.listening.sweep()

    def note(tx: Tx) -> None:
        for worker in tx.all("silent_polls", listened=listened):
            if broker.wake.has_parked(worker["id"]):
                continue
            tx.run("note_silent_polls", worker=worker["id"])
            log.warning("a worker is heard and asks for no work", worker=worker["name"])
            tx.tell(RoomFree(worker["id"]))
        tx.run("set_meta", key="listened_ms", value=str(listened))
        tx.run("set_meta", key="listened_at", value=str(tx.now_ms))
        if gap_ms > GAP_WORTH_SAYING_MS:
            event(tx, EventType.RECLAIM_SUPPRESSED, data={"gap_s": gap_ms / 1000})
        for worker in tx.all("silent_workers", listened=listened):
            if tx.run("lose_worker", worker=worker["id"], listened=listened):
                worker_event(tx, EventType.WORKER_LOST, worker["id"], worker["name"])
                machines.settle(tx, worker["id"])
                tx.tell(ListVoid(worker["id"]))

    try:
        await broker.store.run(note)
    except BaseException:
        broker.listening.take_back()
        raise
    await _all(broker, partial(_leases_over, listened=listened), partial(_expire, broker=broker, listened=listened))


def _leases_over(tx: Tx, *, listened: int) -> list[Row]:
    due = tx.all("leases_over", listened=listened, limit=BATCH)
    if due:
        failpoint("swept")
    return due


async def _each(broker: Broker, due: Sequence[int], deal_with: Callable[[int, Tx], bool]) -> int:
    """Each in a transaction of its own, on rows as they are then: one bad row must not stop the others.

    How many were changed.
    """
    changed = 0
    for id_ in due:
        try:
            changed += await broker.store.run(partial(deal_with, id_))
        except (LostSwap, Illegal):
            continue  # its holder was heard, or it ended, meanwhile
        except Exception:
            log.exception("could not deal with what is due", id=id_)
    return changed


async def _all(broker: Broker, due: Callable[[Tx], list[Row]], deal_with: Callable[[int, Tx], bool]) -> None:
    """All that is found due, a batch at a time, for as long as that changes anything."""
    while True:
        rows = await broker.store.read(due)
        if not await _each(broker, [row["id"] for row in rows], deal_with) or len(rows) < BATCH:
            return


def _newest(tx: Tx, id_: int) -> tuple[JobRow, AssignmentRow] | None:
    """This assignment with its job; None if the job has another one by now, or none."""
    assignment = read_assignment(tx, id_)
    job = read_job(tx, assignment.job) if assignment is not None else None
    return (job, assignment) if job is not None and assignment is not None and job.assignment == id_ else None


def _expire(id_: int, tx: Tx, *, broker: Broker, listened: int) -> bool:
    found = _newest(tx, id_)
    if found is None or found[1].state not in LIVE:
        return False
    job, assignment = found
    cause = loss(job, assignment, broker.settings.max_losses)
    silence = f"nothing was heard of {assignment.worker_name} for a whole lease"
    told = told_of_loss(job, assignment, cause, "worker_lost", silence)
    facts = Facts(now=tx.now_ms, listened=listened, reason_code=told.code, reason=told.text, limit=told.limit)
    apply(tx, job, assignment, cause, facts, listened=listened)
    tx.tell(ListVoid(assignment.worker))
    failpoint("expiring")
    return True


async def stop_slow_starts(broker: Broker) -> None:
    """Accepted and not started for `start_limit_s`: a stop request, so that it goes elsewhere.

    Counted from when a sweep saw it first, in listening time: by the wall clock, a jump would make all of them late.
    """
    unstarted = await broker.store.read(lambda tx: {row["id"] for row in tx.all("unstarted", limit=MOST_UNSTARTED)})
    slow = broker.unstarted.for_longer(unstarted, int(broker.settings.start_limit_s * 1000), broker.listening.now_ms())
    await _each(broker, slow, partial(_stop_slow_start, broker=broker))


def _stop_slow_start(id_: int, tx: Tx, *, broker: Broker) -> bool:
    found = _newest(tx, id_)
    if found is None or found[1].state is not AssignmentState.ACKED or found[1].stop is not None:
        return False
    if found[0].adopted is not None:
        return False  # it runs: a stop would end it, and it could go nowhere else
    why = f"accepted {broker.settings.start_limit_s:g} s ago and not started"
    return request_stop(tx, broker, *found, StopKind.START_LIMIT, "jobd", why)


async def stop_overdue(broker: Broker) -> None:
    """Running beyond the wall limit, the grace and a margin: its own supervisor should have stopped it long ago."""
    listened = broker.listening.now_ms()
    await _all(
        broker,
        lambda tx: tx.all("walls_over", listened=listened, limit=BATCH),
        partial(_stop_overdue, broker=broker),
    )


def _stop_overdue(id_: int, tx: Tx, *, broker: Broker) -> bool:
    found = _newest(tx, id_)
    if found is None or found[1].wall_until is None:
        return False
    why = f"max_wall_s={found[0].max_wall_s:g} is over, and its worker has not stopped it"
    return request_stop(tx, broker, *found, StopKind.WALL, "jobd", why)


async def end_unscheduled(broker: Broker) -> None:
    """Ready for as long as they wanted to wait, and never accepted by a worker."""
    listened = broker.listening.now_ms()
    await _all(
        broker,
        lambda tx: tx.all("schedules_over", listened=listened, limit=BATCH),
        partial(_end_unscheduled, listened=listened),
    )


def _end_unscheduled(id_: int, tx: Tx, *, listened: int) -> bool:
    job = read_job(tx, id_)
    if job is None or job.schedule_until is None or job.schedule_until > listened:
        return False
    reason = f"no worker had started it {job.scheduling_timeout_s:g} s after it became ready (scheduling_timeout_s)"
    facts = Facts(now=tx.now_ms, listened=listened, reason_code="scheduling_timeout", reason=reason, gone=True)
    apply(tx, job, None, Cause.SCHEDULING_TIMEOUT, facts)
    return True


async def expire_leases_of_lessees(broker: Broker) -> None:
    """Leases for work that is no job, and whose lessee was not heard in time: to be given back."""
    listened = broker.listening.now_ms()
    await _all(
        broker,
        lambda tx: tx.all("lessees_silent", listened=listened, limit=BATCH),
        partial(leases.expire, broker=broker, listened=listened),
    )


async def tell_idle_leases(broker: Broker) -> None:
    """Leases of which nothing has been on their devices for `lease_idle_s`, as far as this process has seen it."""
    idle_s = broker.settings.lease_idle_s
    idle = await broker.store.read(leases.idle)
    due = broker.idle_leases.for_longer(idle, int(idle_s * 1000), broker.listening.now_ms())
    await _each(broker, due, partial(leases.tell_idle, idle_s=idle_s))


async def end_preferences(broker: Broker) -> None:
    """Jobs that were left to the worker where they ran, for long enough, or in vain."""
    listened = broker.listening.now_ms()
    await _all(
        broker,
        lambda tx: tx.all("preferences_over", listened=listened, limit=BATCH),
        _end_preference,
    )


def _end_preference(id_: int, tx: Tx) -> bool:
    job = read_job(tx, id_)
    if job is None or job.prefers is None:
        return False
    prefer_nobody(tx, job)
    return True


async def look_at_held(broker: Broker) -> None:
    """What a quota of the day before held may start."""
    broker.wake.look_at_held()


SWEEPS = (
    Sweep("leases", every=lambda broker: broker.settings.sweep_s, run=expire_leases),
    Sweep(
        "starts",
        every=lambda broker: max(broker.settings.sweep_s, broker.settings.start_limit_s / 4),
        run=stop_slow_starts,
    ),
    Sweep("times", every=lambda broker: broker.settings.sweep_s, run=times.open_due),
    Sweep("retention", every=retention.every_s, run=retention.prune),
    Sweep("recent_specs", every=lambda broker: max(60, broker.settings.sweep_s), run=retention.forget_recent_specs),
    Sweep("lessees", every=lambda broker: broker.settings.sweep_s, run=expire_leases_of_lessees),
    Sweep(
        "idle_leases",
        every=lambda broker: max(broker.settings.sweep_s, broker.settings.lease_idle_s / 8),
        run=tell_idle_leases,
    ),
    Sweep("preferences", every=lambda broker: broker.settings.sweep_s, run=end_preferences),
    Sweep("kept_room", every=lambda broker: max(60, broker.settings.sweep_s), run=reservations.give_up_old),
    Sweep("quotas", every=lambda broker: max(60, broker.settings.sweep_s), run=look_at_held),
    Sweep("room", every=lambda broker: broker.settings.sweep_s, run=making_room.make_room),
    Sweep("usage", every=usage.every_s, run=usage.fold),
    Sweep("walls", every=lambda broker: broker.settings.sweep_s, run=stop_overdue),
    Sweep("waits", every=lambda broker: broker.settings.sweep_s, run=waits.tell),
    Sweep("cron", every=lambda broker: broker.settings.sweep_s, run=schedules.fire),
    Sweep("schedules", every=lambda broker: broker.settings.sweep_s, run=end_unscheduled),
)


async def run(broker: Broker, sweep: Sweep) -> None:
    """Run one sweep for ever, a little jittered. A failure is logged and tried again."""
    while True:
        await asyncio.sleep(sweep.every(broker) * random.uniform(0.9, 1.0))  # noqa: S311 - spreads load, no secret
        try:
            await sweep.run(broker)
        except Exception:
            log.exception("sweep failed", sweep=sweep.name)
