"""Which transition a final report, or a loss, is. The rules that need a look at policy and stops."""

from __future__ import annotations

from typing import assert_never

from broker.core.rows import AssignmentRow, JobRow, StopKind
from broker.core.states import LIVE, Cause
from broker.wire.states import AssignmentState, OnWorkerLost
from broker.wire.workers import Final, Outcome


def cancel_requested(assignment: AssignmentRow) -> bool:
    return assignment.stop is not None and assignment.stop.kind is StopKind.CANCEL


def loss(job: JobRow, assignment: AssignmentRow, max_losses: int) -> Cause:
    """What a lost assignment means for its job. The `max_losses`-th loss is the last."""
    if assignment.state is AssignmentState.PENDING:
        return Cause.PENDING_EXPIRED
    if cancel_requested(assignment):
        return Cause.LOST_STOPPED
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
    return _late_end(final)


def _live_end(job: JobRow, assignment: AssignmentRow, final: Final, max_losses: int) -> Cause:
    cancelled = cancel_requested(assignment)
    match final.outcome:
        case Outcome.EXITED:
            # No order of start and cancel is known when the cancel came before the start was heard.
            if cancelled and assignment.stop is not None and assignment.stop.early:
                return Cause.STOP_CONFIRMED
            return Cause.SUCCEED if final.exit_code == 0 else Cause.FAIL
        case Outcome.STOPPED:
            return Cause.STOP_CONFIRMED if cancelled else loss(job, assignment, max_losses)
        case Outcome.LEASE_ENDED | Outcome.LOST:
            return loss(job, assignment, max_losses)
        case Outcome.LAUNCH_FAILED:
            return Cause.STOP_CONFIRMED if cancelled else Cause.LAUNCH_FAILED
        case Outcome.REFUSED:
            return Cause.STOP_CONFIRMED if cancelled else Cause.REFUSE
        case Outcome.NEVER_EXECUTED:
            return Cause.STOP_CONFIRMED if cancelled else Cause.NEVER_EXECUTED
    assert_never(final.outcome)


def _late_end(final: Final) -> Cause | None:
    match final.outcome:
        case Outcome.EXITED:
            return Cause.LATE_SUCCEED if final.exit_code == 0 else Cause.LATE_FAIL
        case Outcome.LAUNCH_FAILED:
            return Cause.LATE_FAIL
        case Outcome.REFUSED | Outcome.NEVER_EXECUTED:
            return Cause.LATE_NEVER_EXECUTED
        case Outcome.STOPPED | Outcome.LEASE_ENDED | Outcome.LOST:
            return None
    assert_never(final.outcome)


def implies_start(final: Final) -> bool:
    """True if a process certainly existed: a final report may overtake its own start report."""
    return final.outcome in (Outcome.EXITED, Outcome.STOPPED)


def executed(final: Final) -> bool:
    """True if a process of the job existed, or may have."""
    return final.outcome not in (Outcome.REFUSED, Outcome.NEVER_EXECUTED)


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
