"""Cancels. One of a job that may run is a request until the worker confirms that the whole process tree is gone."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from broker.core.arrays import labels_of_member
from broker.core.rows import StopKind
from broker.core.states import TERMINAL, Cause, Facts
from broker.failpoint import failpoint
from broker.service import keys
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
    """Cancel jobs. A repeat is harmless; jobs that have ended are left as they are, and that is said. `dry_run`: says
    what it would come to, and for what `force` would be needed; nothing changes.

    Refused as a whole, nothing cancelled: an unknown id (`unknown_job`); without `force`, running work of
    another actor, or a filter that hits more than ten running jobs (`confirmation_needed`).
    """
    if request.dry_run:
        return await broker.store.read(lambda tx: _would_cancel(_targets(tx, request), caller, request))
    key = keys.of(request, caller, "cancel", request.project or "")

    def targeted(tx: Tx) -> CancelAnswer:
        targets = _targets(tx, request)
        if (refused := _unconfirmed(targets, caller, request)) is not None:
            raise refused
        return _answer(_cancel_all(tx, broker, caller, targets, request.reason))

    answer = await decide(broker.store, lambda tx: keys.once(tx, key, CancelAnswer, lambda: targeted(tx)))
    failpoint("cancelled")
    return answer


def _would_cancel(targets: list[_Target], caller: Caller, request: CancelRequest) -> CancelAnswer:
    refused = _unconfirmed(targets, caller, request)
    notes = [StoppedJob(id=target.id, state=target.state, note=_note(target)) for target in targets]
    answer = _answer(notes)
    return answer.model_copy(update={"dry_run": True, "confirm": refused.detail if refused is not None else None})


def _note(target: _Target) -> str:
    """What a cancel would come to."""
    if target.state in TERMINAL:
        return "has ended"
    return "cancelled before it ran" if target.state is JobState.QUEUED else "stopping"


def _answer(answers: list[StoppedJob]) -> CancelAnswer:
    return CancelAnswer(jobs=answers[:MOST_SHOWN], counts=dict(Counter(_kind(answer) for answer in answers)))


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
    """Those that are named, by id or as an array; else all live ones. What else is said narrows them."""
    by_id = request.job is not None or request.array is not None
    found = _named(tx, request) if by_id else _live(tx, request)
    wanted = [target for target in found if request.state is None or target.state.value == request.state]
    filters = [said for said in (request.project, request.name) if said is not None]
    if request.labels is None and len(filters) <= (0 if by_id else 1):
        return wanted
    ids = json.dumps([target.id for target in wanted])
    fitting = {row["id"] for row in tx.all("labels_of_jobs", ids=ids) if _fits(row, request)}
    return [target for target in wanted if target.id in fitting]


def _named(tx: Tx, request: CancelRequest) -> list[_Target]:
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
    narrowed = request.project is not None or request.name is not None or request.labels is not None
    return [target for target in found.values() if not narrowed or target.state not in TERMINAL]


def _live(tx: Tx, request: CancelRequest) -> list[_Target]:
    if request.name is not None:
        rows = tx.all("live_jobs_of_name", name=request.name)
    elif request.project is not None:
        rows = tx.all("live_jobs_of_project", project=request.project)
    else:
        rows = tx.all("live_jobs")
    return [_Target.of(row) for row in rows]


def _fits(row: Row, request: CancelRequest) -> bool:
    """Whether a job is one of the project, of the name, and has all of the labels, with its own words in place."""
    if request.project not in (None, row["project"]) or request.name not in (None, row["name"]):
        return False
    if request.labels is None:
        return True
    labels: dict[str, str] = json.loads(row["labels"] or "{}")
    if row["array_index"] is not None:
        values = json.loads(row["array_values"]) if row["array_values"] else {}
        labels = labels_of_member(labels, row["array_index"], values)
    return request.labels.items() <= labels.items()


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


def _unconfirmed(targets: list[_Target], caller: Caller, request: CancelRequest) -> Refused | None:
    """What has to be confirmed and was not."""
    if request.force:
        return None
    running = [target for target in targets if target.state in (JobState.ASSIGNED, JobState.RUNNING)]
    others = [target for target in running if target.actor != caller.actor]
    if others:
        return not_confirmed(others[0].id, others[0].actor, "nothing was cancelled")
    if request.job is None and len(running) > MOST_RUNNING_UNCONFIRMED:
        return Refused(
            ProblemCode.CONFIRMATION_NEEDED,
            f"this would stop {len(running)} running jobs; nothing was cancelled",
            hint="repeat with force=true, or name the jobs",
            field="force",
        )
    return None


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
