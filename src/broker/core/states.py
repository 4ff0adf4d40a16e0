"""The table of all legal transitions, and the pure function that applies one.

Every state column in the database is written by `service.transition.apply`, which asks `step` here.
Terminal states, the chart in the docs and the legality checks are derived from `TABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from broker.core.rows import AssignmentRow, JobRow, StopKind, StopRequest
from broker.wire.events import EventType
from broker.wire.machines import Given
from broker.wire.states import AssignmentState as A
from broker.wire.states import JobState as J
from broker.wire.workers import Reached


class Cause(StrEnum):
    CLAIM = "claim"
    ACK = "ack"
    START = "start"
    REFUSE = "refuse"
    LAUNCH_FAILED = "launch_failed"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    CANCEL_QUEUED = "cancel_queued"
    CANCEL_PENDING = "cancel_pending"
    REQUEST_STOP = "request_stop"
    STOP_CONFIRMED = "stop_confirmed"
    PENDING_EXPIRED = "pending_expired"
    NEVER_EXECUTED = "never_executed"
    LOST_REQUEUED = "lost_requeued"
    LOST_ORPHANED = "lost_orphaned"
    LOST_STOPPED = "lost_stopped"
    RESURRECT = "resurrect"
    LATE_SUCCEED = "late_succeed"
    LATE_FAIL = "late_fail"
    LATE_RETRY = "late_retry"
    LATE_NEVER_EXECUTED = "late_never_executed"
    TIME_LIMIT = "time_limit"
    PREEMPT_STOPPED = "preempt_stopped"
    PREEMPT_REQUEUED = "preempt_requeued"
    LOST_TIMED_OUT = "lost_timed_out"
    LOST_PREEMPTED = "lost_preempted"
    LOST_PREEMPT_REQUEUED = "lost_preempt_requeued"
    SCHEDULING_TIMEOUT = "scheduling_timeout"
    CASCADE = "cascade"
    UNCANCEL = "uncancel"
    ADOPT = "adopt"
    ADOPT_CONFIRMED = "adopt_confirmed"
    ADOPT_REFUSED = "adopt_refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """From where to where. `None` as a target: stays. No assignment states: none is touched."""

    job_from: frozenset[J]
    job_to: J | None
    assignment_from: frozenset[A]
    assignment_to: A | None
    event: EventType
    means: str


def _rule(
    job_from: set[J], job_to: J | None, assignment_from: set[A], assignment_to: A | None, event: EventType, means: str
) -> Rule:
    return Rule(frozenset(job_from), job_to, frozenset(assignment_from), assignment_to, event, means)


E = EventType
_EXECUTING = {A.ACKED, A.STARTED}  # a process may exist
OWNED = {J.ASSIGNED, J.RUNNING}
# The shim's word that nothing was executed outranks a start that was inferred from a list.
_LOST = {J.ORPHANED, J.QUEUED}  # with lost_assignment naming the assignment

TABLE: Mapping[Cause, Rule] = {
    Cause.CLAIM: _rule({J.QUEUED}, J.ASSIGNED, set(), A.PENDING, E.JOB_ASSIGNED, "a worker with room is given the job"),
    Cause.ACK: _rule({J.ASSIGNED}, None, {A.PENDING}, A.ACKED, E.ASSIGNMENT_ACKED, "the worker has it and may execute"),
    Cause.START: _rule({J.ASSIGNED}, J.RUNNING, {A.ACKED}, A.STARTED, E.JOB_STARTED, "the process exists"),
    Cause.REFUSE: _rule(
        OWNED,
        J.QUEUED,
        {A.PENDING, *_EXECUTING},
        A.REFUSED,
        E.ASSIGNMENT_REFUSED,
        "the worker said no before executing",
    ),
    Cause.LAUNCH_FAILED: _rule(
        OWNED, J.FAILED, _EXECUTING, A.FAILED, E.JOB_FAILED, "the command itself could not be executed"
    ),
    Cause.SUCCEED: _rule(OWNED, J.COMPLETED, _EXECUTING, A.SUCCEEDED, E.JOB_COMPLETED, "exit code 0"),
    Cause.FAIL: _rule(OWNED, J.FAILED, _EXECUTING, A.FAILED, E.JOB_FAILED, "another exit code, or a signal"),
    Cause.RETRY: _rule(
        OWNED, J.QUEUED, _EXECUTING, A.FAILED, E.JOB_RETRYING, "the same, and it has retries left: no end"
    ),
    Cause.CANCEL_QUEUED: _rule(
        {J.QUEUED}, J.CANCELLED, set(), None, E.JOB_CANCELLED, "cancelled before a worker had it"
    ),
    Cause.CANCEL_PENDING: _rule(
        {J.ASSIGNED},
        J.CANCELLED,
        {A.PENDING},
        A.CANCELLED,
        E.JOB_CANCELLED,
        "its ack will be refused, so it never runs",
    ),
    Cause.REQUEST_STOP: _rule(
        OWNED, None, _EXECUTING, None, E.JOB_STOP_REQUESTED, "a request until the worker confirms it"
    ),
    Cause.STOP_CONFIRMED: _rule(
        OWNED,
        J.CANCELLED,
        {A.PENDING, *_EXECUTING},
        A.CANCELLED,
        E.JOB_CANCELLED,
        "the whole tree is gone, or nothing ran",
    ),
    Cause.PENDING_EXPIRED: _rule(
        {J.ASSIGNED}, J.QUEUED, {A.PENDING}, A.EXPIRED, E.ASSIGNMENT_EXPIRED, "never acknowledged, so never executed"
    ),
    Cause.NEVER_EXECUTED: _rule(
        OWNED,
        J.QUEUED,
        {A.PENDING, *_EXECUTING},
        A.EXPIRED,
        E.ASSIGNMENT_EXPIRED,
        "the worker proved that nothing was executed",
    ),
    Cause.LOST_REQUEUED: _rule(
        OWNED, J.QUEUED, _EXECUTING, A.EXPIRED, E.ASSIGNMENT_EXPIRED, "lost; its policy queues it again"
    ),
    Cause.LOST_ORPHANED: _rule(
        OWNED,
        J.ORPHANED,
        _EXECUTING,
        A.EXPIRED,
        E.ASSIGNMENT_EXPIRED,
        "lost; it must not run again, or was lost too often",
    ),
    Cause.LOST_STOPPED: _rule(
        OWNED,
        J.CANCELLED,
        _EXECUTING,
        A.EXPIRED,
        E.ASSIGNMENT_EXPIRED,
        "lost while a cancel was requested: the word given stands",
    ),
    Cause.TIME_LIMIT: _rule(
        OWNED, J.FAILED, _EXECUTING, A.FAILED, E.JOB_FAILED, "a time limit was reached, and the whole tree is gone"
    ),
    Cause.PREEMPT_STOPPED: _rule(
        OWNED,
        J.PREEMPTED,
        {A.PENDING, *_EXECUTING},
        A.PREEMPTED,
        E.JOB_PREEMPTED,
        "stopped for other work: the whole tree is gone, or nothing ran",
    ),
    Cause.PREEMPT_REQUEUED: _rule(
        OWNED,
        J.QUEUED,
        {A.PENDING, *_EXECUTING},
        A.PREEMPTED,
        E.JOB_PREEMPTED,
        "the same, and it wants to run again",
    ),
    Cause.LOST_TIMED_OUT: _rule(
        OWNED, J.FAILED, _EXECUTING, A.EXPIRED, E.ASSIGNMENT_EXPIRED, "lost after its wall limit was reached"
    ),
    Cause.LOST_PREEMPTED: _rule(
        OWNED, J.PREEMPTED, _EXECUTING, A.EXPIRED, E.ASSIGNMENT_EXPIRED, "lost while a preemption was requested"
    ),
    Cause.LOST_PREEMPT_REQUEUED: _rule(
        OWNED, J.QUEUED, _EXECUTING, A.EXPIRED, E.ASSIGNMENT_EXPIRED, "the same, and it wants to run again"
    ),
    Cause.SCHEDULING_TIMEOUT: _rule(
        {J.QUEUED}, J.SCHEDULING_TIMEOUT, set(), None, E.SCHEDULING_TIMEOUT, "ready for too long, and never accepted"
    ),
    Cause.RESURRECT: _rule(_LOST, J.RUNNING, {A.EXPIRED}, A.STARTED, E.JOB_RESURRECTED, "its holder lists it as alive"),
    Cause.LATE_SUCCEED: _rule(
        _LOST, J.COMPLETED, {A.EXPIRED}, A.SUCCEEDED, E.JOB_RESURRECTED, "its holder reports the end after the loss"
    ),
    Cause.LATE_FAIL: _rule(
        _LOST, J.FAILED, {A.EXPIRED}, A.FAILED, E.JOB_RESURRECTED, "its holder reports the end after the loss"
    ),
    Cause.LATE_RETRY: _rule(
        _LOST, J.QUEUED, {A.EXPIRED}, A.FAILED, E.JOB_RETRYING, "the same, and it has retries left: no end"
    ),
    Cause.LATE_NEVER_EXECUTED: _rule(
        _LOST, J.QUEUED, {A.EXPIRED}, None, E.JOB_REQUEUED, "its holder proved, late, that nothing was executed"
    ),
    Cause.CASCADE: _rule({J.QUEUED}, J.CANCELLED, set(), None, E.JOB_CANCELLED, "a parent's end forbids its start"),
    Cause.UNCANCEL: _rule(
        {J.CANCELLED}, J.QUEUED, set(), None, E.JOB_UNCANCELLED, "the parent whose end had cancelled it came back"
    ),
    Cause.ADOPT: _rule(set(), J.RUNNING, set(), A.ACKED, E.JOB_ADOPTED, "a process that runs already becomes a job"),
    Cause.ADOPT_CONFIRMED: _rule(
        {J.RUNNING}, None, {A.ACKED}, A.STARTED, E.JOB_STARTED, "its worker found the process that was named"
    ),
    Cause.ADOPT_REFUSED: _rule(
        {J.RUNNING}, J.FAILED, _EXECUTING, A.REFUSED, E.ASSIGNMENT_REFUSED, "its worker did not take that process"
    ),
}

LOSSES = frozenset(
    {
        Cause.LOST_REQUEUED,
        Cause.LOST_ORPHANED,
        Cause.LOST_STOPPED,
        Cause.LOST_TIMED_OUT,
        Cause.LOST_PREEMPTED,
        Cause.LOST_PREEMPT_REQUEUED,
    }
)
# A loss can be undone by its holder; that is no way out of a terminal state for anyone else.
BY_THE_HOLDER = frozenset(
    {Cause.RESURRECT, Cause.LATE_SUCCEED, Cause.LATE_FAIL, Cause.LATE_RETRY, Cause.LATE_NEVER_EXECUTED}
)
BORN = J.RUNNING
"""The state in which the job of an adopted process begins: `Cause.ADOPT`."""
# What only such a return can bring about is no way out either.
UNDOING = BY_THE_HOLDER | {Cause.UNCANCEL}
TERMINAL = frozenset(J) - frozenset(
    state for cause, rule in TABLE.items() if cause not in UNDOING for state in rule.job_from
)
ASSIGNMENT_OVER = frozenset(A) - frozenset(
    state for cause, rule in TABLE.items() if cause not in UNDOING for state in rule.assignment_from
)
LIVE = frozenset(A) - ASSIGNMENT_OVER

# What else a transition says, besides the event of its rule: the job's new state in its own word.
_STATE_EVENT: Mapping[J, EventType] = {
    J.QUEUED: E.JOB_REQUEUED,
    J.COMPLETED: E.JOB_COMPLETED,
    J.FAILED: E.JOB_FAILED,
    J.CANCELLED: E.JOB_CANCELLED,
    J.PREEMPTED: E.JOB_PREEMPTED,
    J.ORPHANED: E.JOB_ORPHANED,
}


class Illegal(Exception):
    """The table has no such transition. Never shown to users: it means that a row was misread, or a bug."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim gives: to whom, under which secret, until when."""

    worker: str
    worker_name: str
    epoch: int
    token: str
    lease_until: int
    answer: int
    cpus: float
    given: Given | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What came with the cause. `gone`: the whole process tree is known gone, or never was.

    `now` is on the broker's clock, `listened` on that of its deadlines.
    """

    now: int
    listened: int
    claimed: Claimed | None = None
    shim: str | None = None
    lease_until: int | None = None
    wall_until: int | None = None
    stop: StopRequest | None = None
    limit: Reached | None = None
    parent: int | None = None
    blocked: int = 0
    exit_code: int | None = None
    signal: str | None = None
    reason_code: str | None = None
    reason: str | None = None
    final_size: int | None = None
    final_index_size: int | None = None
    dropped: int = 0
    gone: bool = False
    starts: bool = False  # of one that comes back: its start was never heard of
    retry_delay_ms: int = 0  # of a failure that is tried again
    prefers_until: int | None = None  # how long its worker, which is there, is left what it had started


@dataclass(frozen=True, slots=True)
class Said:
    """An event that the transition causes; written in the same transaction."""

    type: EventType
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """The rows after a transition. `spread`: other jobs may have changed with it; `turned`: its array as a whole stands
    otherwise to those that depend on it."""

    job: JobRow
    assignment: AssignmentRow | None
    events: tuple[Said, ...]
    spread: bool = False
    turned: bool = False


def allowed(cause: Cause, job: JobRow, assignment: AssignmentRow | None) -> bool:
    """True if the table has a row for this cause in these states."""
    rule = TABLE[cause]
    if job.state not in rule.job_from:
        return False
    if not rule.assignment_from:
        return assignment is None and _may_unaided(cause, job)
    if assignment is None or assignment.state not in rule.assignment_from or assignment.job != job.id:
        return False
    if cause is Cause.RESURRECT and assignment.final_size is not None:
        return False  # its holder said that the tree is gone
    if cause in BY_THE_HOLDER:
        return job.lost_assignment == assignment.id
    return assignment.id == job.assignment


def _may_unaided(cause: Cause, job: JobRow) -> bool:
    """What a cause without an assignment asks of the job besides its state."""
    if cause is Cause.CLAIM:
        return job.blocked == 0 and not job.is_gated
    if cause is Cause.UNCANCEL:
        return job.cascaded_by is not None
    return True


def step(job: JobRow, assignment: AssignmentRow | None, cause: Cause, facts: Facts) -> Step:
    """Job and assignment after `cause`, and what is said of it. Stores nothing, tells nobody.

    Raises Illegal if the table has no such row, or the assignment is not the one that may cause it.
    """
    if not allowed(cause, job, assignment):
        where = f"{assignment.state} assignment {assignment.id}" if assignment else "no assignment"
        raise Illegal(f"job {job.id}: {cause} does not apply to {job.state} with {where}")
    rule = TABLE[cause]
    after = _assignment_after(job, assignment, cause, rule, facts)
    return Step(_job_after(job, after, cause, rule, facts), after, _events(job, after, cause, rule, facts))


def adopted(job: JobRow, facts: Facts) -> Step:
    """`Cause.ADOPT`: what is written for a job that did not stand in the tables before, and its only delivery."""
    rule = TABLE[Cause.ADOPT]
    assert rule.job_to is job.state and rule.assignment_to is not None and facts.claimed is not None
    row = _new_assignment(job._replace(attempt=0), facts)
    row = row._replace(state=rule.assignment_to, acked_at=facts.now)
    said = Said(rule.event, {"pid": job.adopted, "worker": facts.claimed.worker_name})
    return Step(job, row, (said,))


def _assignment_after(
    job: JobRow, row: AssignmentRow | None, cause: Cause, rule: Rule, facts: Facts
) -> AssignmentRow | None:
    if cause is Cause.CLAIM:
        return _new_assignment(job, facts)
    if row is None:
        return None
    state = rule.assignment_to or row.state
    match cause:
        case Cause.ACK:
            return row._replace(state=state, acked_at=facts.now, shim=facts.shim, lease_until=_given(facts.lease_until))
        case Cause.START | Cause.ADOPT_CONFIRMED:
            return row._replace(state=state, started_at=facts.now, wall_until=facts.wall_until)
        case Cause.REQUEST_STOP:
            # Nothing is stronger than these two: what the broker itself would ask for is asked already.
            settled = facts.stop is not None and facts.stop.kind in (StopKind.CANCEL, StopKind.WALL)
            return row._replace(state=state, stop=facts.stop, wall_until=None if settled else row.wall_until)
        case Cause.RESURRECT:
            return row._replace(
                state=state,
                resumed_at=facts.now,
                started_at=row.started_at or facts.now,
                wall_until=row.wall_until if row.started_at is not None else facts.wall_until,
                lease_until=_given(facts.lease_until),
                reserved=True,
                ended_at=None,
                reason_code=None,
                reason=None,
            )
        case _ if cause in LOSSES:
            reserved = row.reserved and not facts.gone
            return _with_end(row, state, facts, reserved=reserved, expired_at=facts.now)
        case Cause.PENDING_EXPIRED | Cause.NEVER_EXECUTED:
            return _with_end(row, state, facts, reserved=False, expired_at=facts.now)
        case _:
            return _with_end(row, state, facts, reserved=False, expired_at=row.expired_at)


def _with_end(row: AssignmentRow, state: A, facts: Facts, *, reserved: bool, expired_at: int | None) -> AssignmentRow:
    return row._replace(
        state=state,
        reserved=reserved,
        ended_at=facts.now,
        expired_at=expired_at,
        limit=facts.limit,
        exit_code=facts.exit_code,
        signal=facts.signal,
        reason_code=facts.reason_code,
        reason=facts.reason,
        final_size=facts.final_size,
        final_index_size=facts.final_index_size,
        dropped=facts.dropped,
    )


def _new_assignment(job: JobRow, facts: Facts) -> AssignmentRow:
    given = facts.claimed
    assert given is not None, "a claim says to whom"
    return AssignmentRow(
        id=0,
        job=job.id,
        attempt=job.attempt + 1,
        worker=given.worker,
        worker_name=given.worker_name,
        epoch=given.epoch,
        state=A.PENDING,
        token=given.token,
        shim=None,
        lease_until=given.lease_until,
        answer=given.answer,
        cpus=given.cpus,
        reserved=True,
        stop=None,
        wall_until=None,
        kill_failed=None,
        limit=None,
        exit_code=None,
        signal=None,
        reason_code=None,
        reason=None,
        created_at=facts.now,
        acked_at=None,
        started_at=None,
        ended_at=None,
        expired_at=None,
        resumed_at=None,
        final_size=None,
        final_index_size=None,
        dropped=0,
        given=given.given,
    )


def _job_after(job: JobRow, assignment: AssignmentRow | None, cause: Cause, rule: Rule, facts: Facts) -> JobRow:
    return job._replace(
        version=job.version + 1,
        state=rule.job_to or job.state,
        **{"prefers": None, "prefers_until": None, **_job_changes(job, assignment, cause, facts)},
    )


def _job_changes(job: JobRow, assignment: AssignmentRow | None, cause: Cause, facts: Facts) -> dict[str, Any]:
    """What else changes in the job's record."""
    match cause:
        case Cause.CLAIM:
            return {"attempt": job.attempt + 1, "lost_assignment": None}
        case Cause.ACK:
            return {"scheduling_timeout_s": None, "schedule_until": None}
        case Cause.REQUEST_STOP | Cause.ADOPT_CONFIRMED:
            return {}
        case Cause.START:
            return {"started_at": facts.now, "restarts": job.restarts + 1}
        case Cause.RESURRECT:
            assert assignment is not None
            return {
                "lost_assignment": None,
                "losses": max(0, job.losses - 1),
                "restarts": job.restarts + facts.starts,
                "started_at": assignment.started_at,
                "ended_at": None,
                "exit_code": None,
                "reason_code": None,
                "reason": None,
            }
        case Cause.CASCADE:
            return _ended(job, assignment, facts) | {"cascaded_by": facts.parent}
        case Cause.UNCANCEL:
            ready = ready_until(job._replace(blocked=facts.blocked), facts.listened)
            return _queued(facts) | {"cascaded_by": None, "blocked": facts.blocked, "schedule_until": ready}
        case Cause.LATE_NEVER_EXECUTED:
            return _queued(facts) | {"losses": max(0, job.losses - 1)}
        case Cause.REFUSE | Cause.PENDING_EXPIRED | Cause.NEVER_EXECUTED:
            return _queued(facts)
        case Cause.RETRY | Cause.LATE_RETRY:
            return _queued(facts) | _tried_again(job, assignment, cause, facts)
        case Cause.PREEMPT_REQUEUED | Cause.LOST_PREEMPT_REQUEUED:
            return _queued(facts) | _preferring(assignment, facts)
        case Cause.LOST_REQUEUED:
            assert assignment is not None
            lost = {"losses": job.losses + 1, "lost_assignment": assignment.id}
            return _queued(facts) | lost | _preferring(assignment, facts)
        case Cause.LOST_ORPHANED:
            assert assignment is not None
            ended = _ended(job, assignment, facts)
            return ended | {"losses": job.losses + 1, "lost_assignment": assignment.id}
        case _:
            return _ended(job, assignment, facts)


def ready_until(job: JobRow, listened: int) -> int | None:
    """How long a job that becomes ready now may stay so; None: as long as it takes, or it is not ready."""
    if job.scheduling_timeout_s is None or job.blocked or job.is_gated:
        return None
    return listened + int(job.scheduling_timeout_s * 1000)


def _tried_again(job: JobRow, assignment: AssignmentRow | None, cause: Cause, facts: Facts) -> dict[str, Any]:
    """It waits a while, and then goes to anybody; where it said that a checkpoint is safe, there first."""
    assert assignment is not None
    delay_ms = facts.retry_delay_ms
    changes: dict[str, Any] = {"retried": job.retried + 1}
    if delay_ms:
        changes |= {"not_before": facts.now + delay_ms, "waits_until": facts.listened + delay_ms}
    if assignment.checkpoints and facts.prefers_until is not None:
        changes |= _preferring(assignment, replace(facts, prefers_until=facts.prefers_until + delay_ms))
    if cause is Cause.LATE_RETRY:  # it was no loss, and its start may not have been heard of
        changes |= {"losses": max(0, job.losses - 1), "restarts": job.restarts + (assignment.started_at is None)}
    return changes


def _queued(facts: Facts) -> dict[str, Any]:
    return {
        "queued_at": facts.now,
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "reason_code": facts.reason_code,
        "reason": facts.reason,
        "lost_assignment": None,
    }


def _preferring(assignment: AssignmentRow | None, facts: Facts) -> dict[str, Any]:
    """Its checkpoints are where it ran."""
    if facts.prefers_until is None or assignment is None or assignment.started_at is None:
        return {}
    return {"prefers": assignment.worker, "prefers_until": facts.prefers_until}


def _ended(job: JobRow, assignment: AssignmentRow | None, facts: Facts) -> dict[str, Any]:
    late = assignment is not None and assignment.id == job.lost_assignment
    started_at = (assignment.started_at or assignment.acked_at) if late and assignment is not None else job.started_at
    return {
        "ended_at": facts.now,
        "exit_code": facts.exit_code,
        "reason_code": facts.reason_code,
        "reason": facts.reason,
        "lost_assignment": None,
        "started_at": started_at,
    }


def _events(job: JobRow, assignment: AssignmentRow | None, cause: Cause, rule: Rule, facts: Facts) -> tuple[Said, ...]:
    data: dict[str, Any] = {
        key: value
        for key, value in (
            ("cause", cause.value),
            ("exit_code", facts.exit_code),
            ("signal", facts.signal),
            ("reason_code", facts.reason_code),
            ("reason", facts.reason),
        )
        if value is not None
    }
    if rule.event is E.JOB_RETRYING:
        data |= {"retry": job.retried + 1, "retries": job.retries, "delay_s": facts.retry_delay_ms / 1000}
    if facts.limit is not None:
        data |= {"limit_s": facts.limit.limit_s, "seen_s": facts.limit.seen_s}
    if cause is Cause.REQUEST_STOP and facts.stop is not None:
        data |= {"why": facts.stop.why, "kind": facts.stop.kind.value, "grace_s": facts.stop.grace_s}
    if cause is Cause.CLAIM and assignment is not None:
        data |= {"worker": assignment.worker_name}
    said = [Said(rule.event, data)]
    if cause is Cause.START and job.leased:
        said.append(Said(E.LEASE_GRANTED, {"gpus": _devices(assignment)}))
    if rule.job_to is not None and rule.job_to is not job.state:
        own = _STATE_EVENT.get(rule.job_to)
        if own is not None and own is not rule.event:
            said.append(Said(own, data))
    return tuple(said)


def _devices(assignment: AssignmentRow | None) -> list[str]:
    given = assignment.given if assignment is not None else None
    return [share.uuid for share in given.gpus or ()] if given is not None else []


def _given(lease_until: int | None) -> int:
    assert lease_until is not None, "a lease has an end"
    return lease_until
