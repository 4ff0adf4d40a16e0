"""What a final report, or a loss, means: policies, stops, and who decides that a stop is confirmed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.core.ending import final_cause, loss, reason_of, told_of_end
from broker.core.fence import Standing, standing
from broker.core.rows import StopKind
from broker.core.states import Cause
from broker.wire.jobs import JobSpec
from broker.wire.states import AssignmentState as A
from broker.wire.states import JobState as J
from broker.wire.states import LimitCode, OnPreempt, OnWorkerLost
from broker.wire.workers import Final, Outcome, Reached
from support.rows import STOP, assignment, job

EXIT_0 = Final(outcome=Outcome.EXITED, exit_code=0)
EXIT_3 = Final(outcome=Outcome.EXITED, exit_code=3)
KILLED = Final(outcome=Outcome.EXITED, signal="SIGSEGV")
STOPPED_0 = Final(outcome=Outcome.STOPPED, exit_code=0, stop="s1")


def live_end(final: Final, *, stop=None, state: J = J.RUNNING) -> Cause | None:
    held = assignment(A.STARTED if state is J.RUNNING else A.ACKED)._replace(stop=stop)
    return final_cause(job(state), held, final, max_losses=3)


@pytest.mark.parametrize(
    ("final", "cause"),
    [
        (EXIT_0, Cause.SUCCEED),
        (EXIT_3, Cause.FAIL),
        (KILLED, Cause.FAIL),
        (Final(outcome=Outcome.LAUNCH_FAILED), Cause.LAUNCH_FAILED),
        (Final(outcome=Outcome.REFUSED), Cause.REFUSE),
        (Final(outcome=Outcome.NEVER_EXECUTED), Cause.NEVER_EXECUTED),
        (Final(outcome=Outcome.LOST), Cause.LOST_REQUEUED),
        (Final(outcome=Outcome.LEASE_ENDED), Cause.LOST_REQUEUED),
    ],
)
def test_an_end_without_a_stop_is_what_the_shim_says(final: Final, cause: Cause) -> None:
    assert live_end(final) is cause


@pytest.mark.parametrize(
    ("final", "cause"),
    [
        (STOPPED_0, Cause.STOP_CONFIRMED),  # a trainer that saves and exits 0 on TERM did not complete
        (EXIT_0, Cause.SUCCEED),  # it had ended by itself before TERM was delivered
        (EXIT_3, Cause.FAIL),
        (Final(outcome=Outcome.LAUNCH_FAILED), Cause.STOP_CONFIRMED),
        (Final(outcome=Outcome.REFUSED), Cause.STOP_CONFIRMED),  # a refusal must not undo a cancel
        (Final(outcome=Outcome.NEVER_EXECUTED), Cause.STOP_CONFIRMED),
        (Final(outcome=Outcome.LOST), Cause.LOST_STOPPED),
        (Final(outcome=Outcome.LEASE_ENDED), Cause.LOST_STOPPED),
    ],
)
def test_with_a_cancel_requested_the_shim_decides_who_ended_it(final: Final, cause: Cause) -> None:
    assert live_end(final, stop=STOP) is cause


MAX_WALL = Reached(code=LimitCode.MAX_WALL, limit_s=3, seen_s=3.1)
LIMITED = Final(outcome=Outcome.LIMIT, exit_code=0, limit=MAX_WALL)
WALL, PREEMPT = replace(STOP, kind=StopKind.WALL), replace(STOP, kind=StopKind.PREEMPT)
REQUEUES = {"on_preempt": OnPreempt.REQUEUE}


@pytest.mark.parametrize(
    ("stop", "final", "cause"),
    [
        (None, LIMITED, Cause.TIME_LIMIT),  # TERM'd and exited 0: not completed
        (STOP, LIMITED, Cause.STOP_CONFIRMED),  # a cancel in the same instant: cancel > wall
        (PREEMPT, LIMITED, Cause.TIME_LIMIT),  # wall > preempt
        (WALL, LIMITED, Cause.TIME_LIMIT),
        (WALL, STOPPED_0, Cause.TIME_LIMIT),
        (PREEMPT, STOPPED_0, Cause.PREEMPT_STOPPED),
        (
            PREEMPT,
            STOPPED_0.model_copy(update={"limit": MAX_WALL}),
            Cause.TIME_LIMIT,
        ),  # reached in the grace of a preemption
        (STOP, STOPPED_0.model_copy(update={"limit": MAX_WALL}), Cause.STOP_CONFIRMED),
        (WALL, EXIT_0, Cause.SUCCEED),  # it had ended by itself
        (PREEMPT, EXIT_3, Cause.FAIL),
        (replace(PREEMPT, early=True), EXIT_0, Cause.SUCCEED),
        (PREEMPT, Final(outcome=Outcome.REFUSED), Cause.PREEMPT_STOPPED),
        (PREEMPT, Final(outcome=Outcome.NEVER_EXECUTED), Cause.PREEMPT_STOPPED),
        (PREEMPT, Final(outcome=Outcome.LAUNCH_FAILED), Cause.PREEMPT_STOPPED),
        (PREEMPT, Final(outcome=Outcome.LOST), Cause.LOST_PREEMPTED),
        (WALL, Final(outcome=Outcome.LEASE_ENDED), Cause.LOST_TIMED_OUT),
    ],
)
@pytest.mark.guarantee("G25", "G26")
def test_cancel_beats_a_time_limit_and_a_time_limit_beats_a_preemption(stop, final: Final, cause: Cause) -> None:
    assert live_end(final, stop=stop) is cause


def test_a_preempted_job_that_wants_to_run_again_is_queued_however_its_end_is_known() -> None:
    held = assignment(A.STARTED)._replace(stop=PREEMPT)
    wants_again = job(J.RUNNING)._replace(**REQUEUES)

    assert final_cause(wants_again, held, STOPPED_0, 3) is Cause.PREEMPT_REQUEUED
    assert loss(wants_again, held, 3) is Cause.LOST_PREEMPT_REQUEUED
    assert loss(wants_again._replace(policy=OnWorkerLost.ORPHAN), held, 3) is Cause.LOST_ORPHANED  # it may be alive
    assert final_cause(wants_again._replace(policy=OnWorkerLost.ORPHAN), held, STOPPED_0, 3) is Cause.PREEMPT_REQUEUED


def test_a_limit_that_is_reported_after_a_loss_is_a_failure_and_keeps_its_numbers() -> None:
    lost, held = job(J.QUEUED, lost=True), assignment(A.EXPIRED)

    cause = final_cause(lost, held, LIMITED, 3)

    assert cause is Cause.LATE_FAIL
    told = told_of_end(lost, held, LIMITED, cause)
    assert (told.code, told.limit) == ("max_wall", MAX_WALL)


@pytest.mark.parametrize("code", LimitCode)
def test_an_end_by_a_limit_names_the_limit_its_value_and_what_was_seen(code: LimitCode) -> None:
    final = Final(outcome=Outcome.LIMIT, limit=Reached(code=code, limit_s=2, seen_s=2.04))

    told = told_of_end(job(J.RUNNING), assignment(A.STARTED), final, Cause.TIME_LIMIT)

    assert told.code == code.value
    assert f"{code.value}_s=2" in (told.text or "") and "2.0 s" in (told.text or "")
    assert f"{code.value}_s" in JobSpec.model_fields


@pytest.mark.guarantee("G14")
def test_a_cancel_that_was_accepted_before_the_start_was_heard_always_ends_cancelled() -> None:
    assert live_end(EXIT_0, stop=replace(STOP, early=True)) is Cause.STOP_CONFIRMED


def test_a_start_that_took_too_long_goes_elsewhere() -> None:
    slow = replace(STOP, kind=StopKind.START_LIMIT, early=True)

    assert live_end(Final(outcome=Outcome.NEVER_EXECUTED), stop=slow, state=J.ASSIGNED) is Cause.NEVER_EXECUTED
    assert live_end(STOPPED_0, stop=slow, state=J.ASSIGNED) is Cause.LOST_REQUEUED


@pytest.mark.parametrize(
    ("policy", "losses", "cause"),
    [
        (OnWorkerLost.REQUEUE, 0, Cause.LOST_REQUEUED),
        (OnWorkerLost.REQUEUE, 1, Cause.LOST_REQUEUED),
        (OnWorkerLost.REQUEUE, 2, Cause.LOST_ORPHANED),  # the third loss is the last
        (OnWorkerLost.REQUEUE_EXCLUSIVE, 0, Cause.LOST_REQUEUED),
        (OnWorkerLost.ORPHAN, 0, Cause.LOST_ORPHANED),
    ],
)
@pytest.mark.guarantee("G7")
def test_a_loss_is_decided_by_policy_and_bounded(policy: OnWorkerLost, losses: int, cause: Cause) -> None:
    lost = job(J.RUNNING)._replace(policy=policy, losses=losses)

    assert loss(lost, assignment(A.STARTED), max_losses=3) is cause


@pytest.mark.guarantee("G3")
def test_a_pending_assignment_that_is_lost_was_never_executed_whatever_the_policy() -> None:
    for policy in OnWorkerLost:
        lost = job(J.ASSIGNED)._replace(policy=policy, losses=9)
        assert loss(lost, assignment(A.PENDING), max_losses=3) is Cause.PENDING_EXPIRED


@pytest.mark.parametrize(
    ("final", "cause"),
    [
        (EXIT_0, Cause.LATE_SUCCEED),
        (EXIT_3, Cause.LATE_FAIL),
        (Final(outcome=Outcome.LAUNCH_FAILED), Cause.LATE_FAIL),
        (Final(outcome=Outcome.NEVER_EXECUTED), Cause.LATE_NEVER_EXECUTED),
        (Final(outcome=Outcome.LEASE_ENDED), None),
        (Final(outcome=Outcome.LOST), None),
    ],
)
def test_a_report_after_the_loss_is_not_thrown_away(final: Final, cause: Cause | None) -> None:
    assert final_cause(job(J.ORPHANED, lost=True), assignment(A.EXPIRED), final, max_losses=3) is cause


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.guarantee("G16")
def test_every_bad_end_has_a_reason_with_a_code(outcome: Outcome) -> None:
    reason = reason_of(Final(outcome=outcome, exit_code=None))

    assert reason is not None and all(reason)


def test_exit_code_0_needs_no_reason() -> None:
    assert reason_of(EXIT_0) is None


def test_where_a_write_meets_the_tables() -> None:
    declared = {"final_size": 10}

    assert standing(job(J.RUNNING), assignment(A.STARTED)) is Standing.LIVE
    assert standing(job(J.ORPHANED, lost=True), assignment(A.EXPIRED)) is Standing.LOST
    assert standing(job(J.QUEUED, lost=True), assignment(A.EXPIRED)) is Standing.LOST
    assert standing(job(J.QUEUED), assignment(A.EXPIRED)) is Standing.STALE  # its pending lease ran out
    assert standing(job(J.COMPLETED), assignment(A.SUCCEEDED)._replace(**declared)) is Standing.ENDED
    assert standing(job(J.CANCELLED), assignment(A.CANCELLED)) is Standing.STALE  # cancelled while pending
    assert standing(job(J.RUNNING)._replace(assignment=12, attempt=2), assignment(A.EXPIRED)) is Standing.STALE
    newer = job(J.RUNNING)._replace(assignment=12, attempt=2)
    assert standing(newer, assignment(A.REFUSED)._replace(**declared)) is Standing.ENDED


@pytest.mark.guarantee("G50")
@pytest.mark.parametrize(
    ("final", "stop", "cause"),
    [
        (EXIT_3, None, Cause.RETRY),
        (EXIT_0, None, Cause.SUCCEED),
        (KILLED, None, Cause.FAIL),
        (EXIT_3, STOP, Cause.FAIL),  # a cancel, and it had ended by itself before TERM was delivered
        (EXIT_3, replace(STOP, kind=StopKind.WALL), Cause.FAIL),
        (EXIT_3, replace(STOP, kind=StopKind.PREEMPT), Cause.RETRY),
        (STOPPED_0, replace(STOP, kind=StopKind.PREEMPT), Cause.PREEMPT_STOPPED),
        (Final(outcome=Outcome.LAUNCH_FAILED), None, Cause.LAUNCH_FAILED),
        (Final(outcome=Outcome.REFUSED), None, Cause.REFUSE),
        (Final(outcome=Outcome.LOST), None, Cause.LOST_REQUEUED),
    ],
)
def test_only_a_plain_failure_uses_a_retry_up(final: Final, stop, cause: Cause) -> None:
    held = assignment(A.STARTED)._replace(stop=stop)
    assert final_cause(job(J.RUNNING)._replace(retries=1), held, final, max_losses=3) is cause


@pytest.mark.guarantee("G50")
@pytest.mark.parametrize(("retried", "cause"), [(0, Cause.LATE_RETRY), (1, Cause.LATE_FAIL)])
def test_a_late_failure_goes_by_the_same_rule(retried: int, cause: Cause) -> None:
    row = job(J.QUEUED, lost=True)._replace(retries=1, retried=retried)
    assert final_cause(row, assignment(A.EXPIRED), EXIT_3, max_losses=3) is cause
