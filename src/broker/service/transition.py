"""The one door: every change of a state column is written here, with its events and counts.

Read the rows, ask the pure `step`, swap on the job's version. In the same transaction: job, assignment,
counts, the index that dispatch reads, events. Nobody is told before the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from broker.core.rows import AssignmentRow, JobRow, StopKind, StopRequest
from broker.core.states import Cause, Facts, Said, Step, step
from broker.service.wake import Happened, JobChanged, JobReady, RoomFree
from broker.store.contract import Row, Store, Tx, Value
from broker.wire.events import EventType
from broker.wire.states import AssignmentState, JobState, OnWorkerLost

T = TypeVar("T")
MOST_DECISIONS = 5
_compact = json.JSONEncoder(separators=(",", ":")).encode
OWNED = (JobState.ASSIGNED, JobState.RUNNING)


class LostSwap(Exception):
    """The row changed between the read and the write. The caller decides again, or drops the job."""


def apply(
    tx: Tx,
    job: JobRow,
    assignment: AssignmentRow | None,
    cause: Cause,
    facts: Facts,
    *,
    actor: str | None = None,
    listened: int | None = None,
) -> Step:
    """Write `cause`, or raise `Illegal` (no such row in the table) or `LostSwap` (the row changed).

    `listened`: the change is that of a lease that ran out, and is only written while it is over.
    Returns the rows as they are now.
    """
    done = step(job, assignment, cause, facts)
    after = _write_assignment(tx, assignment, done.assignment, listened)
    new_job = done.job
    if cause is Cause.CLAIM and after is not None:
        new_job = _with_assignment(new_job, after.id)
    _swap_job(tx, job, new_job)
    _count(tx, job, new_job, after)
    for said in done.events:
        say(tx, said, job=new_job, assignment=after, actor=actor)
    tx.tell(JobChanged(job.id))
    return Step(new_job, after, done.events)


def say(
    tx: Tx, said: Said, *, job: JobRow | None = None, assignment: AssignmentRow | None = None, actor: str | None = None
) -> None:
    """Write an event in this transaction."""
    event(
        tx,
        said.type,
        job=job.id if job else None,
        attempt=assignment.attempt if assignment else None,
        worker=assignment.worker_name if assignment else None,
        project=job.project if job else None,
        actor=actor,
        data=said.data,
    )


def event(
    tx: Tx,
    kind: EventType,
    *,
    job: int | None = None,
    attempt: int | None = None,
    worker: str | None = None,
    project: str | None = None,
    actor: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    tx.run(
        "add_event",
        at=tx.now_ms,
        type=kind.value,
        job=job,
        attempt=attempt,
        worker=worker,
        project=project,
        actor=actor,
        data=_compact(data) if data else None,
    )
    tx.tell(Happened(job))


def event_of_array(tx: Tx, kind: EventType, array: int, actor: str | None) -> None:
    """The same event for every member of an array, with one statement."""
    tx.run("add_array_events", at=tx.now_ms, type=kind.value, array=array, actor=actor)
    tx.tell(Happened(None))


async def decide(store: Store, fn: Callable[[Tx], T], *, admits: bool = False) -> T:
    """Run `fn`; if a swap was lost, decide again on the fresh rows. Bounded, never blind."""
    for _ in range(MOST_DECISIONS - 1):
        try:
            return await store.run(fn, admits=admits)
        except LostSwap:
            continue
    return await store.run(fn, admits=admits)


def read_job(tx: Tx, job: int) -> JobRow | None:
    row = tx.one("job", job=job)
    return None if row is None else job_row(row)


def job_row(row: Row) -> JobRow:
    return JobRow(
        id=row["id"],
        version=row["version"],
        state=JobState(row["state"]),
        project=row["project"],
        shape=row["shape"],
        policy=OnWorkerLost(row["policy"]),
        grace_s=row["grace_s"],
        attempt=row["attempt"],
        assignment=row["assignment"],
        losses=row["losses"],
        restarts=row["restarts"],
        lost_assignment=row["lost_assignment"],
        exit_code=row["exit_code"],
        reason_code=row["reason_code"],
        reason=row["reason"],
        created_at=row["created_at"],
        queued_at=row["queued_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def read_assignment(tx: Tx, assignment: int | None) -> AssignmentRow | None:
    row = tx.one("assignment", assignment=assignment) if assignment is not None else None
    return None if row is None else assignment_row(row)


def assignment_row(row: Row) -> AssignmentRow:
    return AssignmentRow(
        id=row["id"],
        job=row["job"],
        attempt=row["attempt"],
        worker=row["worker"],
        worker_name=row["worker_name"],
        epoch=row["epoch"],
        state=AssignmentState(row["state"]),
        token=row["token"],
        shim=row["shim"],
        lease_until=row["lease_until"],
        answer=row["answer"],
        cpus=row["cpus"],
        reserved=bool(row["reserved"]),
        stop=_stop(row),
        exit_code=row["exit_code"],
        signal=row["signal"],
        reason_code=row["reason_code"],
        reason=row["reason"],
        created_at=row["created_at"],
        acked_at=row["acked_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        expired_at=row["expired_at"],
        resumed_at=row["resumed_at"],
        final_size=row["final_size"],
        final_index_size=row["final_index_size"],
        dropped=row["dropped"],
    )


def _stop(row: Row) -> StopRequest | None:
    if row["stop_id"] is None:
        return None
    return StopRequest(
        id=row["stop_id"],
        kind=StopKind(row["stop_kind"]),
        by=row["stop_by"],
        why=row["stop_why"],
        grace_s=row["stop_grace_s"],
        at=row["stop_at"],
        early=bool(row["stop_early"]),
    )


def _with_assignment(job: JobRow, assignment: int) -> JobRow:
    return job._replace(assignment=assignment)


def _write_assignment(
    tx: Tx, before: AssignmentRow | None, after: AssignmentRow | None, listened: int | None
) -> AssignmentRow | None:
    if after is None:
        return None
    if before is None:
        new = tx.insert(
            "add_assignment",
            job=after.job,
            attempt=after.attempt,
            worker=after.worker,
            worker_name=after.worker_name,
            epoch=after.epoch,
            state=after.state.value,
            token=after.token,
            lease_until=after.lease_until,
            answer=after.answer,
            cpus=after.cpus,
            created_at=after.created_at,
        )
        return after._replace(id=new)
    if listened is not None:
        _expect_one(tx.run("swap_expired_assignment", **_expired_columns(before, after), listened=listened), after.job)
    else:
        _expect_one(tx.run("swap_assignment", **_columns(before, after)), after.job)
    return after


def _columns(before: AssignmentRow, after: AssignmentRow) -> dict[str, Value]:
    stop = after.stop
    return {
        "id": before.id,
        "token": before.token,
        "expected_state": before.state.value,
        "state": after.state.value,
        "shim": after.shim,
        "lease_until": after.lease_until,
        "reserved": int(after.reserved),
        "stop_id": stop.id if stop else None,
        "stop_kind": stop.kind.value if stop else None,
        "stop_by": stop.by if stop else None,
        "stop_why": stop.why if stop else None,
        "stop_grace_s": stop.grace_s if stop else None,
        "stop_at": stop.at if stop else None,
        "stop_early": int(stop.early) if stop else None,
        "exit_code": after.exit_code,
        "signal": after.signal,
        "reason_code": after.reason_code,
        "reason": after.reason,
        "acked_at": after.acked_at,
        "started_at": after.started_at,
        "ended_at": after.ended_at,
        "expired_at": after.expired_at,
        "resumed_at": after.resumed_at,
        "final_size": after.final_size,
        "final_index_size": after.final_index_size,
        "dropped": after.dropped,
    }


def _expired_columns(before: AssignmentRow, after: AssignmentRow) -> dict[str, Value]:
    columns = _columns(before, after)
    keys = (
        "id",
        "token",
        "expected_state",
        "state",
        "shim",
        "reserved",
        "ended_at",
        "expired_at",
        "reason_code",
        "reason",
    )
    return {key: columns[key] for key in keys}


def _swap_job(tx: Tx, before: JobRow, after: JobRow) -> None:
    if after == before._replace(version=after.version):  # as with an ack; no index has to be written
        _expect_one(tx.run("touch_job", id=before.id, expected=before.version, version=after.version), before.id)
        return
    changed = tx.run(
        "swap_job",
        id=before.id,
        expected=before.version,
        expected_state=before.state.value,
        version=after.version,
        state=after.state.value,
        attempt=after.attempt,
        assignment=after.assignment,
        losses=after.losses,
        restarts=after.restarts,
        lost_assignment=after.lost_assignment,
        exit_code=after.exit_code,
        reason_code=after.reason_code,
        reason=after.reason,
        queued_at=after.queued_at,
        started_at=after.started_at,
        ended_at=after.ended_at,
    )
    _expect_one(changed, before.id)


def _expect_one(changed: int, job: int) -> None:
    if changed != 1:
        raise LostSwap(f"job {job} changed meanwhile")


def _count(tx: Tx, before: JobRow, after: JobRow, assignment: AssignmentRow | None) -> None:
    """Keep the counts per state and the lines of queued jobs, and tell dispatch what it may look at again."""
    if before.state is after.state:
        return
    moved = tx.run("move_count", project=after.project, out_of=before.state.value, into=after.state.value)
    if moved == 1:  # the first one ever in that state
        tx.run("count_state", project=after.project, state=after.state.value, by=1)
    if before.state is JobState.QUEUED:
        leave_line(tx, before.id)
    if after.state is JobState.QUEUED:
        join_line(tx, after.id, after.shape)
    if before.state in OWNED and after.state not in OWNED and assignment is not None:
        tx.tell(RoomFree(assignment.worker))


def join_line(tx: Tx, job: int, shape: int) -> None:
    """This job is queued, and wants a worker."""
    tx.run("join_line", job=job)
    tx.tell(JobReady(shape))


def leave_line(tx: Tx, job: int) -> None:
    """This job is not queued any more."""
    line = tx.one("leave_line", job=job)
    if line is not None and line["head"] is None:
        tx.run("close_line", shape=line["shape"], place=line["place"])
