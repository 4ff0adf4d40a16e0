"""Asking a worker to stop something: the same for everybody who may ask."""

from __future__ import annotations

from broker.core.rows import AssignmentRow, JobRow, StopKind, StopRequest
from broker.core.states import Cause, Facts
from broker.service.context import Broker
from broker.service.transition import apply
from broker.service.wake import StopWanted
from broker.store.contract import Tx
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState


def request_stop(
    tx: Tx,
    broker: Broker,
    job: JobRow,
    assignment: AssignmentRow,
    kind: StopKind,
    by: str,
    why: str,
    grace_s: float | None = None,
) -> bool:
    """Ask the holder to stop; `grace_s`: in another time than the job's. A stronger request replaces a weaker one; a
    weaker one changes nothing: False."""
    strength = list(StopKind)
    if assignment.stop is not None and strength.index(assignment.stop.kind) <= strength.index(kind):
        return False
    stop = StopRequest(
        id=broker.make_secret()[:16],
        kind=kind,
        by=by,
        why=why,
        grace_s=job.grace_s if grace_s is None else grace_s,
        at=tx.now_ms,
        early=job.state is JobState.ASSIGNED,
    )
    facts = Facts(now=tx.now_ms, listened=broker.listening.now_ms(), stop=stop)
    apply(tx, job, assignment, Cause.REQUEST_STOP, facts, actor=by)
    tx.tell(StopWanted(assignment.worker))
    return True


def not_confirmed(job: int, owner: str, instead: str) -> Refused:
    """Somebody else's running work is stopped only by who says that it is meant."""
    return Refused(
        ProblemCode.CONFIRMATION_NEEDED,
        f"job {job} is running and belongs to {owner}; {instead}",
        hint="repeat with force=true if this is meant",
        field="force",
    )
