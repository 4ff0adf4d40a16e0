"""Cancels. One of a job that may run is a request until the worker confirms that the whole process tree is gone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from broker.core.rows import StopKind
from broker.core.states import TERMINAL, Cause, Facts
from broker.failpoint import failpoint
from broker.service.context import Broker, Caller
from broker.service.rows import read_assignment, read_job, unknown_job
from broker.service.stops import not_confirmed, request_stop
from broker.service.transition import apply, cancel_waiting, decide
from broker.service.wake import JobChanged
from broker.store.contract import Row, Tx
from broker.wire.jobs import CancelAnswer, CancelRequest, StoppedJob
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import AssignmentState, JobState

MOST_RUNNING_UNCONFIRMED = 10
MOST_SHOWN = 100


async def cancel(broker: Broker, caller: Caller, request: CancelRequest) -> CancelAnswer:
    """Cancel jobs. A repeat is harmless; jobs that have ended are left as they are, and that is said.

    Refused as a whole, nothing cancelled: an unknown id (`unknown_job`); without `force`, running work of
    another actor, or a filter that hits more than ten running jobs (`confirmation_needed`).
    """

    def fn(tx: Tx) -> CancelAnswer:
        targets = _targets(tx, request)
        _confirm(targets, caller, request)
        answers = _cancel_all(tx, broker, caller, targets, request.reason)
        return CancelAnswer(jobs=answers[:MOST_SHOWN], counts=dict(Counter(_kind(answer) for answer in answers)))

    answer = await decide(broker.store, fn)
    failpoint("cancelled")
    return answer


@dataclass(frozen=True, slots=True)
class _Target:
    id: int
    actor: str
    state: JobState
    cascaded: bool
    lost: bool

    @staticmethod
    def of(row: Row) -> _Target:
        return _Target(
            row["id"],
            row["actor"],
            JobState(row["state"]),
            row["cascaded_by"] is not None,
            row["lost_assignment"] is not None,
        )


def _targets(tx: Tx, request: CancelRequest) -> list[_Target]:
    found: dict[int, _Target] = {}
    for job in request.job or ():
        row = tx.one("job_owner", job=job)
        if row is None:
            refused = unknown_job(tx, job)
            raise Refused(refused.code, f"{refused.detail}; nothing was cancelled", field="job", hint=refused.hint)
        found[job] = _Target.of(row)
    if request.array is not None:
        members = tx.all("members_of_array", array=request.array)
        if not members:
            raise Refused(ProblemCode.UNKNOWN_JOB, f"there is no array {request.array}", field="array")
        found |= {row["id"]: _Target.of(row) for row in members}
    if request.project is not None:
        in_project = {row["id"]: _Target.of(row) for row in tx.all("live_jobs_of_project", project=request.project)}
        found = {job: target for job, target in found.items() if job in in_project} if found else in_project
    return [target for target in found.values() if request.state is None or target.state.value == request.state]


def _cancel_all(tx: Tx, broker: Broker, caller: Caller, targets: list[_Target], reason: str | None) -> list[StoppedJob]:
    """Those that wait first and all at once: no member of an array takes the place of one that is stopped."""
    waiting = [target.id for target in targets if target.state is JobState.QUEUED]
    cancel_waiting(tx, waiting, _facts(tx, broker, caller, reason), actor=caller.actor)
    cancelled = set(waiting)
    return [
        StoppedJob(id=target.id, state=JobState.CANCELLED, note="cancelled before it ran")
        if target.id in cancelled
        else _ended_before(tx, target)
        if target.state in TERMINAL
        else _cancel_one(tx, broker, caller, target.id, reason)
        for target in targets
    ]


def _facts(tx: Tx, broker: Broker, caller: Caller, reason: str | None) -> Facts:
    text = reason or f"cancelled by {caller.actor}"
    listened = broker.listening.now_ms()
    return Facts(now=tx.now_ms, listened=listened, reason_code="cancelled", reason=text, gone=True)


def _ended_before(tx: Tx, target: _Target) -> StoppedJob:
    if target.cascaded:
        tx.run("forget_cascade", job=target.id)  # now a person has cancelled it too
    return StoppedJob(id=target.id, state=target.state, note=_of_ended(tx, target))


def _confirm(targets: list[_Target], caller: Caller, request: CancelRequest) -> None:
    if request.force:
        return
    running = [target for target in targets if target.state in (JobState.ASSIGNED, JobState.RUNNING)]
    others = [target for target in running if target.actor != caller.actor]
    if others:
        raise not_confirmed(others[0].id, others[0].actor, "nothing was cancelled")
    if request.job is None and len(running) > MOST_RUNNING_UNCONFIRMED:
        raise Refused(
            ProblemCode.CONFIRMATION_NEEDED,
            f"this would stop {len(running)} running jobs; nothing was cancelled",
            hint="repeat with force=true, or name the jobs",
            field="force",
        )


def _cancel_one(tx: Tx, broker: Broker, caller: Caller, job_id: int, reason: str | None) -> StoppedJob:
    """One that a worker has."""
    job = read_job(tx, job_id)
    assert job is not None, "it was read in this transaction"
    facts = _facts(tx, broker, caller, reason)
    assignment = read_assignment(tx, job.assignment)
    assert assignment is not None, "an owned job has an assignment"
    if assignment.state is AssignmentState.PENDING:
        apply(tx, job, assignment, Cause.CANCEL_PENDING, facts, actor=caller.actor)
        return StoppedJob(id=job.id, state=JobState.CANCELLED, note="cancelled before it ran")
    request_stop(tx, broker, job, assignment, StopKind.CANCEL, caller.actor, facts.reason or "")
    return StoppedJob(id=job.id, state=job.state, note=f"stopping: TERM, then KILL after {job.grace_s:g} s")


def _of_ended(tx: Tx, target: _Target) -> str:
    """An orphan's process may be alive: it is not taken back after this, and told to stop when its worker is heard."""
    if target.state is JobState.CANCELLED:
        return "was cancelled already"
    if not target.lost:
        return "had ended; nothing changed"
    tx.run("forget_loss", job=target.id)
    tx.tell(JobChanged(target.id))
    return "had ended; what may still run of it is stopped when its worker is heard"


def _kind(answer: StoppedJob) -> str:
    if answer.note.startswith("stopping"):
        return "stopping"
    return "cancelled" if answer.note.startswith("cancelled") else "already_ended"
