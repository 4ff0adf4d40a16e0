"""Preemption by hand: a running job makes room, and ends or is queued again, as its specification says."""

from __future__ import annotations

from broker.core.ending import preempted
from broker.core.rows import AssignmentRow, JobRow, StopKind
from broker.core.states import TERMINAL, Facts
from broker.service.context import Broker, Caller
from broker.service.rows import read_assignment, read_job, unknown_job
from broker.service.stops import not_confirmed, request_stop
from broker.service.transition import apply, decide
from broker.store.contract import Tx
from broker.wire.jobs import PreemptRequest, StoppedJob
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import AssignmentState, JobState, OnPreempt


async def preempt(broker: Broker, caller: Caller, job_id: int, request: PreemptRequest) -> StoppedJob:
    """Stop a preemptible job. A repeat while it is being stopped changes nothing.

    Refused: `unknown_job`, `already_terminal`, `not_running` (queued: there is nothing to stop), `not_preemptible`,
    and another actor's job without `force` (`confirmation_needed`).
    """

    def fn(tx: Tx) -> StoppedJob:
        job = read_job(tx, job_id)
        owner = tx.one("job_owner", job=job_id)
        if job is None or owner is None:
            raise unknown_job(tx, job_id)
        _check(job)
        if owner["actor"] != caller.actor and not request.force:
            raise not_confirmed(job_id, owner["actor"], "it was not preempted")
        assignment = read_assignment(tx, job.assignment)
        assert assignment is not None, "an owned job has an assignment"
        return _preempt(tx, broker, caller, job, assignment, request.reason or f"preempted by {caller.actor}")

    return await decide(broker.store, fn)


def _preempt(tx: Tx, broker: Broker, caller: Caller, job: JobRow, assignment: AssignmentRow, why: str) -> StoppedJob:
    then = "then queued again" if job.on_preempt is OnPreempt.REQUEUE else "then preempted"
    if assignment.state is AssignmentState.PENDING:
        facts = Facts(now=tx.now_ms, listened=broker.listening.now_ms(), reason_code="preempted", reason=why, gone=True)
        after = apply(tx, job, assignment, preempted(job), facts, actor=caller.actor).job
        return StoppedJob(id=job.id, state=after.state, note="preempted before it ran")
    if request_stop(tx, broker, job, assignment, StopKind.PREEMPT, caller.actor, why):
        return StoppedJob(id=job.id, state=job.state, note=f"stopping: TERM, KILL after {job.grace_s:g} s, {then}")
    stop = assignment.stop
    assert stop is not None, "only another request stands in the way of one"
    return StoppedJob(id=job.id, state=job.state, note=f"is being stopped already by {stop.by}: {stop.why}")


def _check(job: JobRow) -> None:
    if job.state in TERMINAL:
        raise Refused(
            ProblemCode.ALREADY_TERMINAL, f"job {job.id} is {job.state} already", hint="there is nothing to stop"
        )
    if not job.preemptible:
        raise Refused(
            ProblemCode.NOT_PREEMPTIBLE,
            f"job {job.id} was not submitted as preemptible",
            hint="job_cancel stops it for good; preemptible=true at the submit allows this",
        )
    if job.state is JobState.QUEUED:
        raise Refused(
            ProblemCode.NOT_RUNNING,
            f"job {job.id} is queued: it holds nothing that it could give away",
            hint="job_cancel takes it out of the queue",
        )
