"""What the broker looks at by itself, again and again. A loop is data; one runner times them all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from broker.core.ending import loss, told_of_loss
from broker.core.rows import StopKind
from broker.core.states import Cause, Facts, Illegal
from broker.service.context import Broker
from broker.service.rows import assignment_row, read_assignment, read_job
from broker.service.stops import request_stop
from broker.service.transition import LostSwap, apply, event
from broker.service.wake import ListVoid
from broker.store.contract import Row, Tx
from broker.wire.events import EventType

log = structlog.get_logger("broker.sweeps")

BATCH = 200
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

    def note(tx: Tx) -> list[Row]:
        tx.run("set_meta", key="listened_ms", value=str(listened))
        if gap_ms > GAP_WORTH_SAYING_MS:
            event(tx, EventType.RECLAIM_SUPPRESSED, data={"gap_s": gap_ms / 1000})
        for worker in tx.all("silent_workers", listened=listened):
            if tx.run("lose_worker", worker=worker["id"], listened=listened):
                event(tx, EventType.WORKER_LOST, worker=worker["name"])
                tx.tell(ListVoid(worker["id"]))
        return tx.all("leases_over", listened=listened, limit=BATCH)

    await _each(broker, await broker.store.run(note), partial(_expire, broker=broker, listened=listened))


async def _each(broker: Broker, due: list[Row], deal_with: Callable[[Tx, Row], None]) -> None:
    """Each in a transaction of its own: one bad row must not stop the others."""
    for row in due:
        try:
            await broker.store.run(partial(_deal, deal_with, row))
        except (LostSwap, Illegal):
            continue  # its holder was heard, or it ended, meanwhile
        except Exception:
            log.exception("could not deal with what is due", row=row["id"])


def _deal(deal_with: Callable[[Tx, Row], None], row: Row, tx: Tx) -> None:
    deal_with(tx, row)


def _expire(tx: Tx, row: Row, *, broker: Broker, listened: int) -> None:
    assignment = assignment_row(row)
    job = read_job(tx, assignment.job)
    if job is None or job.assignment != assignment.id:
        return
    cause = loss(job, assignment, broker.settings.max_losses)
    silence = f"nothing was heard of {assignment.worker_name} for a whole lease"
    told = told_of_loss(job, assignment, cause, "worker_lost", silence)
    facts = Facts(now=tx.now_ms, listened=listened, reason_code=told.code, reason=told.text, limit=told.limit)
    apply(tx, job, assignment, cause, facts, listened=listened)
    tx.tell(ListVoid(assignment.worker))


async def stop_slow_starts(broker: Broker) -> None:
    """Accepted and not started for `start_limit_s`: a stop request, so that it goes elsewhere."""
    limit_ms = int(broker.settings.start_limit_s * 1000)

    def fn(tx: Tx) -> None:
        for row in tx.all("slow_starts", before=tx.now_ms - limit_ms, limit=BATCH):
            assignment = assignment_row(row)
            job = read_job(tx, assignment.job)
            if job is not None and job.assignment == assignment.id:
                why = f"accepted {broker.settings.start_limit_s:g} s ago and not started"
                request_stop(tx, broker, job, assignment, StopKind.START_LIMIT, "jobd", why)

    await broker.store.run(fn)


async def stop_overdue(broker: Broker) -> None:
    """Running beyond the wall limit, the grace and a margin: its own supervisor should have stopped it long ago."""
    listened = broker.listening.now_ms()
    due = await broker.store.read(lambda tx: tx.all("walls_over", listened=listened, limit=BATCH))
    await _each(broker, due, partial(_stop_overdue, broker=broker))


def _stop_overdue(tx: Tx, row: Row, *, broker: Broker) -> None:
    assignment, job = read_assignment(tx, row["id"]), read_job(tx, row["job"])
    if assignment is None or job is None or job.assignment != assignment.id or assignment.wall_until is None:
        return
    why = f"max_wall_s={job.max_wall_s:g} is over, and its worker has not stopped it"
    request_stop(tx, broker, job, assignment, StopKind.WALL, "jobd", why)


async def end_unscheduled(broker: Broker) -> None:
    """Ready for as long as they wanted to wait, and never accepted by a worker."""
    listened = broker.listening.now_ms()
    due = await broker.store.read(lambda tx: tx.all("schedules_over", listened=listened, limit=BATCH))
    await _each(broker, due, partial(_end_unscheduled, listened=listened))


def _end_unscheduled(tx: Tx, row: Row, *, listened: int) -> None:
    job = read_job(tx, row["id"])
    if job is None or job.schedule_until is None or job.schedule_until > listened:
        return
    reason = f"no worker had started it {job.scheduling_timeout_s:g} s after it became ready (scheduling_timeout_s)"
    facts = Facts(now=tx.now_ms, listened=listened, reason_code="scheduling_timeout", reason=reason, gone=True)
    apply(tx, job, None, Cause.SCHEDULING_TIMEOUT, facts)


SWEEPS = (
    Sweep("leases", every=lambda broker: broker.settings.sweep_s, run=expire_leases),
    Sweep(
        "starts",
        every=lambda broker: max(broker.settings.sweep_s, broker.settings.start_limit_s / 4),
        run=stop_slow_starts,
    ),
    Sweep("walls", every=lambda broker: broker.settings.sweep_s, run=stop_overdue),
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
