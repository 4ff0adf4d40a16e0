"""Which transition a final report, or a loss, is. The rules that need a look at policy and stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from broker.core.rows import AssignmentRow, JobRow, StopKind
from broker.core.states import LIVE, Cause
from broker.wire.states import AssignmentState, LimitCode, OnPreempt, OnWorkerLost
from broker.wire.workers import Final, Outcome, Reached

# The limit that each reason of an end names, as its field in a specification.
FIELD_OF_LIMIT = {code: f"{code.value}_s" for code in LimitCode}


def confirmed(job: JobRow, assignment: AssignmentRow) -> Cause | None:
    """What a stop that was requested comes to once nothing runs any more; None: none was requested that decides it."""
    match assignment.stop.kind if assignment.stop is not None else None:
        case StopKind.CANCEL | StopKind.LEASE_RELEASED | StopKind.LEASE_EXPIRED:
            return Cause.STOP_CONFIRMED
        case StopKind.WALL:
            return Cause.TIME_LIMIT
        case StopKind.PREEMPT:
            return preempted(job)
        case StopKind.WORKER_ENDS:
            return Cause.PREEMPT_REQUEUED  # whatever it would be for another job's sake: it did not get in the way
        case StopKind.START_LIMIT | None:
            return None


def preempted(job: JobRow) -> Cause:
    """What a preemption comes to, if nothing of the job runs."""
    return Cause.PREEMPT_REQUEUED if job.on_preempt is OnPreempt.REQUEUE else Cause.PREEMPT_STOPPED


def loss(job: JobRow, assignment: AssignmentRow, max_losses: int) -> Cause:
    """What a lost assignment means for its job. The `max_losses`-th loss is the last."""
    if assignment.state is AssignmentState.PENDING:
        return Cause.PENDING_EXPIRED
    match confirmed(job, assignment):
        case Cause.STOP_CONFIRMED:
            return Cause.LOST_STOPPED
        case Cause.TIME_LIMIT:
            return Cause.LOST_TIMED_OUT
        case Cause.PREEMPT_STOPPED:
            return Cause.LOST_PREEMPTED
        case Cause.PREEMPT_REQUEUED if job.policy is not OnWorkerLost.ORPHAN:  # its process may be alive
            return Cause.LOST_PREEMPT_REQUEUED
        case _:
            pass
    if job.policy is OnWorkerLost.ORPHAN or job.losses + 1 >= max_losses:
        return Cause.LOST_ORPHANED
    return Cause.LOST_REQUEUED


def final_cause(job: JobRow, assignment: AssignmentRow, final: Final, max_losses: int) -> Cause | None:
    """The transition that a final report causes; None: it changes nothing but frees what was reserved.

    The caller has checked the fence: `assignment` is the job's newest and live, or expired with the
    job lost by it.
    """
    if assignment.state in LIVE:
        return _live_end(job, assignment, final, max_losses)
    return _late_end(job, final)


def _live_end(job: JobRow, assignment: AssignmentRow, final: Final, max_losses: int) -> Cause:
    stopped = confirmed(job, assignment)
    if job.adopted is not None and not _was_adopted(final):
        return stopped or Cause.ADOPT_REFUSED
    match final.outcome:
        case Outcome.EXITED:
            # No order of start and cancel is known when the cancel came before the start was heard.
            if stopped is Cause.STOP_CONFIRMED and assignment.stop is not None and assignment.stop.early:
                return Cause.STOP_CONFIRMED
            return Cause.SUCCEED if final.exit_code == 0 else Cause.FAIL
        case Outcome.LIMIT:
            # Cancel > limit > preempt, whichever of them delivered the TERM.
            return Cause.STOP_CONFIRMED if stopped is Cause.STOP_CONFIRMED else Cause.TIME_LIMIT
        case Outcome.STOPPED if _released(assignment) and implies_start(final):
            return Cause.SUCCEED  # it was held for as long as it was wanted
        case Outcome.STOPPED:
            if final.limit is not None and stopped is not Cause.STOP_CONFIRMED:
                return Cause.TIME_LIMIT
            if stopped is None and job.adopted is None and not implies_start(final):
                return Cause.NEVER_EXECUTED
            return stopped or loss(job, assignment, max_losses)
        case Outcome.LEASE_ENDED | Outcome.LOST:
            return loss(job, assignment, max_losses)
        case Outcome.LAUNCH_FAILED:
            return stopped or Cause.LAUNCH_FAILED
        case Outcome.REFUSED:
            return stopped or Cause.REFUSE
        case Outcome.NEVER_EXECUTED:
            return stopped or Cause.NEVER_EXECUTED
    assert_never(final.outcome)


def _was_adopted(final: Final) -> bool:
    """False: its worker never had that process, and nothing of it was touched."""
    return final.outcome not in (Outcome.REFUSED, Outcome.NEVER_EXECUTED, Outcome.LAUNCH_FAILED)


def _released(assignment: AssignmentRow) -> bool:
    return assignment.stop is not None and assignment.stop.kind is StopKind.LEASE_RELEASED


def _late_end(job: JobRow, final: Final) -> Cause | None:
    if job.adopted is not None and not _was_adopted(final):
        return None  # it is over already, and is never queued
    match final.outcome:
        case Outcome.EXITED:
            return Cause.LATE_SUCCEED if final.exit_code == 0 else Cause.LATE_FAIL
        case Outcome.LAUNCH_FAILED | Outcome.LIMIT:
            return Cause.LATE_FAIL
        case Outcome.REFUSED | Outcome.NEVER_EXECUTED:
            return Cause.LATE_NEVER_EXECUTED
        case Outcome.STOPPED if job.adopted is None and not implies_start(final):
            return Cause.LATE_NEVER_EXECUTED
        case Outcome.STOPPED | Outcome.LEASE_ENDED | Outcome.LOST:
            return None
    assert_never(final.outcome)


def implies_start(final: Final) -> bool:
    """True if a process certainly existed: a final report may overtake its own start report."""
    if final.outcome is Outcome.STOPPED:  # or the stop prevented its start
        return final.exit_code is not None or final.signal is not None
    return final.outcome in (Outcome.EXITED, Outcome.LIMIT)


def executed(final: Final) -> bool:
    """True if a process of the job existed, or may have."""
    return final.outcome not in (Outcome.REFUSED, Outcome.NEVER_EXECUTED)


@dataclass(frozen=True, slots=True)
class Told:
    """Why a job stands as it does: a code for programs, a text for people, and of a time limit its numbers."""

    code: str | None
    text: str | None
    limit: Reached | None = None


def told_of_end(job: JobRow, assignment: AssignmentRow, final: Final, cause: Cause) -> Told:
    """Why the job is what `cause` makes of it, which is not always what its supervisor saw."""
    match cause:
        case Cause.TIME_LIMIT:
            return _of_limit(final.limit or _wall_seen(job, assignment))
        case Cause.PREEMPT_STOPPED | Cause.PREEMPT_REQUEUED:
            return of_preemption(assignment)
        case Cause.STOP_CONFIRMED | Cause.SUCCEED if (lease := of_lease(assignment)) is not None:
            return lease
        case Cause.STOP_CONFIRMED if final.outcome is Outcome.LIMIT:
            return Told("stopped", "stopped on request")
        case Cause.LATE_FAIL if final.limit is not None:
            return _of_limit(final.limit)
        case _:
            return Told(*(reason_of(final) or (None, None)))


def told_of_loss(job: JobRow, assignment: AssignmentRow, cause: Cause, code: str, text: str) -> Told:
    """Why the job is what a loss makes of it; `code` and `text` say how it was lost. A word that was given stands."""
    match cause:
        case Cause.LOST_TIMED_OUT:
            limit = _of_limit(_wall_seen(job, assignment))
            return Told(limit.code, f"{limit.text}; {text}", limit.limit)
        case Cause.LOST_PREEMPTED | Cause.LOST_PREEMPT_REQUEUED:
            preemption = of_preemption(assignment)
            return Told(preemption.code, f"{preemption.text}; {text}")
        case _:
            return Told(code, text)


def of_preemption(assignment: AssignmentRow) -> Told:
    return Told("preempted", assignment.stop.why if assignment.stop is not None else "preempted")


def of_lease(assignment: AssignmentRow) -> Told | None:
    """Why a lease ended, if it was for its own sake."""
    stop = assignment.stop
    if stop is None or stop.kind not in (StopKind.LEASE_RELEASED, StopKind.LEASE_EXPIRED):
        return None
    return Told(stop.kind.value, stop.why)


def _of_limit(reached: Reached) -> Told:
    limit, seen = f"{FIELD_OF_LIMIT[reached.code]}={reached.limit_s:g}", f"{reached.seen_s:.1f} s"
    match reached.code:
        case LimitCode.MAX_WALL:
            text = f"ran for {seen}, with {limit}"
        case LimitCode.IDLE_TIMEOUT:
            text = f"printed nothing for {seen}, with {limit}"
        case LimitCode.FIRST_OUTPUT_TIMEOUT:
            text = f"had printed nothing after {seen}, with {limit}"
        case LimitCode.GPU_IDLE_TIMEOUT:
            text = f"did not use its GPUs for {seen}, with {limit}"
        case _:
            assert_never(reached.code)
    return Told(reached.code.value, text, reached)


def _wall_seen(job: JobRow, assignment: AssignmentRow) -> Reached:
    """What the broker itself saw when it asked for the stop."""
    asked_at = assignment.stop.at if assignment.stop is not None else assignment.started_at
    ran_ms = (asked_at or 0) - (assignment.started_at or asked_at or 0)
    limit_s = job.max_wall_s or 0.0
    return Reached(code=LimitCode.MAX_WALL, limit_s=limit_s, seen_s=max(limit_s, ran_ms / 1000))


def reason_of(final: Final) -> tuple[str, str] | None:
    """Code and text of an end, for people. None for exit code 0."""
    if final.reason_code is not None:
        return final.reason_code, final.reason or final.reason_code
    match final.outcome:
        case Outcome.EXITED:
            if final.signal is not None:
                return "signal", f"killed by {final.signal}"
            return None if final.exit_code == 0 else ("exit_code", f"exit code {final.exit_code}")
        case Outcome.STOPPED:
            return "stopped", "stopped on request"
        case Outcome.LIMIT:
            return "time_limit", "a time limit was reached"
        case Outcome.LEASE_ENDED:
            return "lease_ended", "its worker or broker was away too long, so its shim stopped it"
        case Outcome.LAUNCH_FAILED:
            return "launch_failed", "the command could not be executed"
        case Outcome.REFUSED:
            return "refused", "the worker refused it before executing"
        case Outcome.NEVER_EXECUTED:
            return "never_executed", "the worker proved that nothing was executed"
        case Outcome.LOST:
            return "worker_lost", "it was running when its supervisor died; how it ended can't be known"
    assert_never(final.outcome)
