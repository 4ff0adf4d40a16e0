"""What the broker looks at by itself, again and again. A loop is data; one runner times them all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from broker.core.ending import loss
from broker.core.rows import StopKind
from broker.core.states import Facts, Illegal
from broker.service import machines
from broker.service.cancel import request_stop
from broker.service.context import Broker
from broker.service.rows import assignment_row, read_assignment, read_job
from broker.service.transition import LostSwap, apply, event, worker_event
from broker.service.wake import ListVoid
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

    def note(tx: Tx) -> list[Row]:
        tx.run("set_meta", key="listened_ms", value=str(listened))
        if gap_ms > GAP_WORTH_SAYING_MS:
            event(tx, EventType.RECLAIM_SUPPRESSED, data={"gap_s": gap_ms / 1000})
        for worker in tx.all("silent_workers", listened=listened):
            if tx.run("lose_worker", worker=worker["id"], listened=listened):
                worker_event(tx, EventType.WORKER_LOST, worker["id"], worker["name"])
                machines.settle(tx, worker["id"])
                tx.tell(ListVoid(worker["id"]))
        return tx.all("leases_over", listened=listened, limit=BATCH)

    for row in await broker.store.run(note):
        try:
            await broker.store.run(partial(_expire, broker=broker, row=row, listened=listened))
        except (LostSwap, Illegal):
            continue  # its holder was heard, or it ended, meanwhile
        except Exception:
            # One bad row must not stop the others.
            log.exception("could not expire", assignment=row["id"])


def _expire(tx: Tx, *, broker: Broker, row: Row, listened: int) -> None:
    assignment = assignment_row(row)
    job = read_job(tx, assignment.job)
    if job is None or job.assignment != assignment.id:
        return
    cause = loss(job, assignment, broker.settings.max_losses)
    facts = Facts(
        now=tx.now_ms,
        reason_code="worker_lost",
        reason=f"nothing was heard of {assignment.worker_name} for a whole lease",
    )
    apply(tx, job, assignment, cause, facts, listened=listened)
    tx.tell(ListVoid(assignment.worker))


async def stop_slow_starts(broker: Broker) -> None:
    """Accepted and not started for `start_limit_s`: a stop request, so that it goes elsewhere.

    Counted from when a sweep saw it first, in listening time: by the wall clock, a jump would make all of them late.
    """
    unstarted = await broker.store.read(lambda tx: {row["id"] for row in tx.all("unstarted", limit=MOST_UNSTARTED)})
    slow = broker.unstarted.for_longer(unstarted, int(broker.settings.start_limit_s * 1000), broker.listening.now_ms())

    def fn(tx: Tx) -> None:
        for id_ in slow:
            assignment = read_assignment(tx, id_)
            job = read_job(tx, assignment.job) if assignment is not None else None
            if job is None or assignment is None or assignment.state is not AssignmentState.ACKED:
                continue
            if assignment.stop is None and job.assignment == assignment.id:
                why = f"accepted {broker.settings.start_limit_s:g} s ago and not started"
                request_stop(tx, broker, job, assignment, StopKind.START_LIMIT, "jobd", why)

    if slow:
        await broker.store.run(fn)


SWEEPS = (
    Sweep("leases", every=lambda broker: broker.settings.sweep_s, run=expire_leases),
    Sweep(
        "starts",
        every=lambda broker: max(broker.settings.sweep_s, broker.settings.start_limit_s / 4),
        run=stop_slow_starts,
    ),
)


async def run(broker: Broker, sweep: Sweep) -> None:
    """Run one sweep for ever, a little jittered. A failure is logged and tried again."""
    while True:
        await asyncio.sleep(sweep.every(broker) * random.uniform(0.9, 1.0))  # noqa: S311 - spreads load, no secret
        try:
            await sweep.run(broker)
        except Exception:
            log.exception("sweep failed", sweep=sweep.name)
