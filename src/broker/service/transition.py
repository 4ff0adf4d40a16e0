"""The one door: every change of a state column is written here, with its events and counts.

Read the rows, ask the pure `step`, swap on the job's version. In the same transaction: job, assignment,
counts, the index that dispatch reads, events. Nobody is told before the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from broker.core import graph
from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import BORN, OWNED, TERMINAL, Cause, Facts, Said, Step, adopted, ready_until, step
from broker.service import array_counts, holding
from broker.service.rows import read_job
from broker.service.wake import Happened, JobChanged, JobReady, RoomFree, TimeToCome
from broker.store.contract import Row, Store, Tx, Value
from broker.wire.events import EventType
from broker.wire.states import JobState

T = TypeVar("T")
MOST_DECISIONS = 5
_compact = json.JSONEncoder(separators=(",", ":")).encode


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
    What the change means for the jobs that depend on this one is written too. Returns the rows as they are now.
    """
    done = _write(tx, job, assignment, cause, facts, actor=actor, listened=listened)
    now, spread = done.job, False
    if job.state in TERMINAL or now.state in TERMINAL:
        spread = _cascade(tx, [(job.state, done)], facts.listened)
    if now.state is JobState.QUEUED is not job.state:  # also from a loss that was its end: after those it had decided
        now = _queued_again(tx, now, facts.listened)
        spread = spread or now.state is not JobState.QUEUED
    if now.array is not None and now.state in (JobState.FAILED, JobState.QUEUED):
        spread = _give_up_array(tx, now.array, facts) or spread
    return Step(now, done.assignment, done.events, spread)


def _write(
    tx: Tx,
    job: JobRow,
    assignment: AssignmentRow | None,
    cause: Cause,
    facts: Facts,
    *,
    actor: str | None = None,
    listened: int | None = None,
) -> Step:
    done = step(job, assignment, cause, facts)
    after = _write_assignment(tx, assignment, done.assignment, listened)
    new_job = done.job
    if cause is Cause.CLAIM and after is not None:
        new_job = _with_assignment(new_job, after.id)
    _swap_job(tx, job, new_job)
    turned = _count(tx, job, new_job, after)
    _hold(tx, job, new_job, after, facts.listened)
    for said in done.events:
        say(tx, said, job=new_job, assignment=after, actor=actor)
    tx.tell(JobChanged(job.id))
    return Step(new_job, after, done.events, turned=turned)


def adopt(tx: Tx, row: Mapping[str, Value], facts: Facts, actor: str) -> JobRow:
    """`Cause.ADOPT`: a job with its only delivery, both written for the first time. `row`: the job's other columns."""
    id_ = tx.insert("add_adopted_job", **row, state=BORN.value)
    job = read_job(tx, id_)
    assert job is not None, "it was written in this transaction"
    done = adopted(job, facts)
    assignment = _write_assignment(tx, None, done.assignment, None)
    assert assignment is not None, "it is born with one"
    tx.run("own_assignment", job=id_, assignment=assignment.id)
    count(tx, job.project, job.quota_token, job.state, 1, job.gpus)
    holding.begins(tx, job, assignment, facts.listened)
    for said in done.events:
        say(tx, said, job=job, assignment=assignment, actor=actor)
    tx.tell(JobChanged(id_))
    return _with_assignment(job, assignment.id)


def _queued_again(tx: Tx, job: JobRow, listened: int) -> JobRow:
    """What it depends on may have changed while it ran: whether it must wait again is decided afresh."""
    if tx.one("first_parent", child=job.id) is None and not array_counts.parents(tx, job.id):
        return job
    forbidden = _decide_again(tx, job, listened)
    if forbidden is not None:
        _cascade(tx, [(job.state, forbidden)], listened)
    fresh = read_job(tx, job.id)
    assert fresh is not None, "it was written in this transaction"
    return fresh


def _cascade(tx: Tx, changed: list[tuple[JobState, Step]], listened: int) -> bool:
    """Decide the children of jobs that ended, or came back, with their states before; and theirs, until nothing changes.
    Whether there are any.

    Whoever was decided afresh is so again: that went by the tables, where all of these have ended already, and to count one
    of them once more would let it start too soon.
    """
    afresh: set[int] = set()
    spread = False
    while changed:
        was, parent = changed.pop()
        for row in tx.all("children", parent=parent.job.id):
            spread = True
            child = read_job(tx, row["child"])
            if child is None:
                continue
            if was in TERMINAL or child.id in afresh:
                afresh.add(child.id)
                after = _decide_again(tx, child, listened)
            else:
                after = _one_less(tx, child, parent.job, listened)
            changed += [(child.state, after)] if after is not None else []
        for row in tx.all("children_of_array", array=parent.job.array) if parent.turned else ():
            spread = True
            afresh.add(row["id"])
            child = read_job(tx, row["id"])
            if child is not None and (after := _decide_again(tx, child, listened, parent.job.id)) is not None:
                changed.append((child.state, after))
    return spread


def _give_up_array(tx: Tx, array: int, facts: Facts) -> bool:
    """So many members have failed that those which wait are cancelled, also one that waits again. Whether any was."""
    why = array_counts.given_up(tx, array)
    if why is None:
        return False
    waiting = [row["id"] for row in tx.all("waiting_members", array=array)]
    cancelled = Facts(now=facts.now, listened=facts.listened, reason_code="max_failures", reason=why, gone=True)
    cancel_waiting(tx, waiting, cancelled)
    return bool(waiting)


def cancel_waiting(tx: Tx, jobs: Sequence[int], facts: Facts, *, actor: str | None = None) -> None:
    """`Cause.CANCEL_QUEUED` of many jobs that are queued, with a few statements: what `apply` does one by one."""
    pattern = read_job(tx, jobs[0]) if jobs else None
    if pattern is None:
        return
    done, ids = step(pattern, None, Cause.CANCEL_QUEUED, facts), json.dumps(jobs)
    after = done.job
    changed = tx.run(
        "cancel_waiting",
        ids=ids,
        state=after.state.value,
        reason_code=after.reason_code,
        reason=after.reason,
        ended_at=after.ended_at,
    )
    if changed != len(jobs):
        raise LostSwap("some of these jobs are not queued any more")
    turned = _count_many(tx, ids, pattern.state, after.state)
    for row in tx.all("heads_among", ids=ids):
        leave_line(tx, row["head"])
    for said in done.events:
        data = _compact(said.data)
        tx.run("add_events_of_jobs", at=tx.now_ms, type=said.type.value, ids=ids, actor=actor, data=data)
    tx.tell(Happened(None))
    for job in jobs:
        tx.tell(JobChanged(job))
    changes: list[tuple[JobState, Step]] = []
    for parent in {*turned.values(), *(row["parent"] for row in tx.all("parents_among", ids=ids))}:
        ended = read_job(tx, parent)
        assert ended is not None, "it was written in this transaction"
        changes.append((pattern.state, Step(ended, None, (), turned=turned.get(ended.array) == parent)))
    _cascade(tx, changes, facts.listened)


def _count_many(tx: Tx, ids: str, out_of: JobState, into: JobState) -> dict[int | None, int]:
    """Count many jobs that went from one state into another. Arrays that have turned, each with one of its members."""
    turned: dict[int | None, int] = {}
    for row in tx.all("of_whom", ids=ids):
        n = row["n"]
        _move_count(tx, row["project"], row["quota_token"], out_of, into, row["gpus"] * n, n)
        if row["array_id"] is not None and array_counts.moved(tx, row["array_id"], out_of, into, n):
            turned[row["array_id"]] = row["first"]
    return turned


def _one_less(tx: Tx, child: JobRow, parent: JobRow, listened: int) -> Step | None:
    """A parent of this child has ended. What became of the child, if its own children must be decided too."""
    if child.state is not JobState.QUEUED or child.blocked == 0:
        return None
    if graph.of_parent(child.dependency_policy, parent.state) is graph.Standing.NEVER:
        because = graph.Parent(parent.id, parent.state)
        return _write(tx, child, None, Cause.CASCADE, _forbidden(tx, because, listened))
    _block(tx, child, child.blocked - 1, listened)
    return None


def _decide_again(tx: Tx, child: JobRow, listened: int, member: int | None = None) -> Step | None:
    """A parent of this child came back, or ended otherwise than was thought; or the array of this `member` has turned.
    One that has started stays as it is."""
    undoable = child.state is JobState.CANCELLED and child.cascaded_by is not None
    if child.state is not JobState.QUEUED and not undoable:
        return None
    verdict = verdict_of(tx, child)
    if verdict.because is not None and verdict.standing is graph.Standing.NEVER:
        forbidden = _forbidden(tx, verdict.because, listened, member)
        return None if undoable else _write(tx, child, None, Cause.CASCADE, forbidden)
    if undoable:
        facts = Facts(now=tx.now_ms, listened=listened, blocked=verdict.open)
        return _write(tx, child, None, Cause.UNCANCEL, facts)
    if child.blocked != verdict.open:
        _block(tx, child, verdict.open, listened)
    return None


def verdict_of(tx: Tx, child: JobRow) -> graph.Verdict:
    """How its parents stand to this job now."""
    parents = (graph.Parent(row["id"], JobState(row["state"])) for row in tx.all("parents", child=child.id))
    of_jobs = graph.decide(child.dependency_policy, parents)
    return array_counts.verdict(tx, child.dependency_policy, of_jobs, array_counts.parents(tx, child.id))


def _forbidden(tx: Tx, parent: graph.Parent, listened: int, member: int | None = None) -> Facts:
    """`member`: whose end turned the array that is the parent."""
    reason = f"it depends on {parent}, which is {parent.state}"
    by = parent.id if member is None else member
    return Facts(now=tx.now_ms, listened=listened, reason_code="dependency", reason=reason, parent=by, gone=True)


def _block(tx: Tx, job: JobRow, blocked: int, listened: int) -> None:
    """A queued job waits for fewer jobs, or for more. Its state does not change."""
    until = ready_until(job._replace(blocked=blocked), listened)
    changed = tx.run("set_blocked", id=job.id, expected=job.version, blocked=blocked, schedule_until=until)
    _expect_one(changed, job.id)
    if job.blocked == 0 < blocked:
        leave_line(tx, job.id)
    if _is_ready(job._replace(blocked=blocked)) and job.blocked:
        join_line(tx, job.id, job.shape)
    tx.tell(JobChanged(job.id))


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


def worker_event(
    tx: Tx, kind: EventType, id_: str, name: str, *, actor: str | None = None, data: Mapping[str, Any] | None = None
) -> None:
    """An event of a worker. Names can be given up and taken by another; the id in the data can't."""
    event(tx, kind, worker=name, actor=actor, data={"id": id_, **(data or {})})


async def decide(store: Store, fn: Callable[[Tx], T], *, admits: bool = False) -> T:
    """Run `fn`; if a swap was lost, decide again on the fresh rows. Bounded, never blind."""
    for _ in range(MOST_DECISIONS - 1):
        try:
            return await store.run(fn, admits=admits)
        except LostSwap:
            continue
    return await store.run(fn, admits=admits)


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
            given=after.given.model_dump_json(exclude_none=True) if after.given is not None else None,
            created_at=after.created_at,
            acked_at=after.acked_at,
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
        "wall_until": after.wall_until,
        "limit_code": after.limit.code.value if after.limit else None,
        "limit_s": after.limit.limit_s if after.limit else None,
        "limit_seen_s": after.limit.seen_s if after.limit else None,
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
        "limit_code",
        "limit_s",
        "limit_seen_s",
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
        blocked=after.blocked,
        cascaded_by=after.cascaded_by,
        scheduling_timeout_s=after.scheduling_timeout_s,
        schedule_until=after.schedule_until,
        exit_code=after.exit_code,
        reason_code=after.reason_code,
        reason=after.reason,
        queued_at=after.queued_at,
        started_at=after.started_at,
        ended_at=after.ended_at,
        prefers=after.prefers,
        prefers_until=after.prefers_until,
        retried=after.retried,
        not_before=after.not_before,
        waits_until=after.waits_until,
    )
    _expect_one(changed, before.id)


def _expect_one(changed: int, job: int) -> None:
    if changed != 1:
        raise LostSwap(f"job {job} changed meanwhile")


def _is_ready(job: JobRow) -> bool:
    return job.state is JobState.QUEUED and job.blocked == 0 and not job.is_gated and job.prefers is None


def _count(tx: Tx, before: JobRow, after: JobRow, assignment: AssignmentRow | None) -> bool:
    """Keep the counts per state and the lines of queued jobs, and tell dispatch what it may look at again. Whether its
    array as a whole has turned."""
    _stand(tx, before, after)
    if before.state is after.state:
        return False
    _move_count(tx, after.project, after.quota_token, before.state, after.state, after.gpus)
    if before.state in OWNED and after.state not in OWNED and assignment is not None:
        tx.tell(RoomFree(assignment.worker))
    return after.array is not None and array_counts.moved(tx, after.array, before.state, after.state)


def _move_count(
    tx: Tx, project: str, token: str | None, out_of: JobState, into: JobState, gpus: int, by: int = 1
) -> None:
    change: dict[str, Value] = {"by": by, "gpus": gpus}
    moved = tx.run("move_count", project=project, out_of=out_of.value, into=into.value, **change)
    if moved == 1:  # the first ones ever in that state
        tx.run("count_state", project=project, state=into.value, **change)
    if token is not None:
        moved = tx.run("move_token_count", token=token, out_of=out_of.value, into=into.value, **change)
        if moved == 1:
            tx.run("count_token_state", token=token, state=into.value, **change)


def count(tx: Tx, project: str, token: str | None, state: JobState, by: int, gpus: int) -> None:
    """So many new jobs of an owner are in this state. `gpus`: of all of them."""
    tx.run("count_state", project=project, state=state.value, by=by, gpus=gpus)
    if token is not None:
        tx.run("count_token_state", token=token, state=state.value, by=by, gpus=gpus)


def _stand(tx: Tx, before: JobRow, after: JobRow) -> None:
    """In a line, in none, or left to one worker."""
    if _is_ready(before) and not _is_ready(after):
        leave_line(tx, before.id)
    if _is_ready(after) and not _is_ready(before):
        join_line(tx, after.id, after.shape)
    if after.prefers is not None:
        tx.tell(JobReady(after.shape))
    if after.state is JobState.QUEUED and after.not_before is not None:
        tx.tell(TimeToCome())


def _hold(tx: Tx, before: JobRow, after: JobRow, assignment: AssignmentRow | None, listened: int) -> None:
    if assignment is None or (before.state in OWNED) == (after.state in OWNED):
        return
    change = holding.begins if after.state in OWNED else holding.ends
    change(tx, after, assignment, listened)


def join_line(tx: Tx, job: int, shape: int) -> None:
    """This job is queued, and wants a worker."""
    tx.run("join_line", job=job)
    tx.tell(JobReady(shape))


def prefer_nobody(tx: Tx, job: JobRow) -> None:
    """A queued job was left to one worker for long enough: it is anybody's."""
    _expect_one(tx.run("prefer_nobody", id=job.id, expected=job.version), job.id)
    if _is_ready(job._replace(prefers=None)):
        join_line(tx, job.id, job.shape)


def change(tx: Tx, job: JobRow, after: JobRow, *, priority: int | None = None, changes: str | None = None) -> None:
    """A job that has not ended is changed in what is no state: where it stands in line follows. None: as it was."""
    changed = tx.run(
        "change_job",
        id=job.id,
        expected=job.version,
        priority=priority,
        max_wall_s=after.max_wall_s,
        scheduling_timeout_s=after.scheduling_timeout_s,
        schedule_until=after.schedule_until,
        not_before=after.not_before,
        waits_until=after.waits_until,
        hold=int(after.hold),
        changes=changes,
    )
    _expect_one(changed, job.id)
    if _is_ready(job):
        leave_line(tx, job.id)  # the best of those that stand in it now, this one by its new priority among them
    if _is_ready(after):
        join_line(tx, job.id, job.shape)
    elif after.state is JobState.QUEUED and after.prefers is not None:
        tx.tell(JobReady(job.shape))
    tx.tell(JobChanged(job.id))


def leave_line(tx: Tx, job: int) -> None:
    """This job is not queued any more, or waits for others."""
    _close_if_empty(tx, tx.one("leave_line", job=job))


def pass_in_line(tx: Tx, job: int) -> None:
    """This job is queued, and can't be given to anybody: whoever stands behind it has the turn."""
    _close_if_empty(tx, tx.one("pass_in_line", job=job))


def _close_if_empty(tx: Tx, line: Row | None) -> None:
    if line is not None and line["head"] is None:
        tx.run("close_line", shape=line["shape"], place=line["place"])
