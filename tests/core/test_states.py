"""The table of transitions: every (state, cause) pair, what is derived from it, and what it refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from broker.core.states import ASSIGNMENT_OVER, BY_THE_HOLDER, LIVE, TABLE, TERMINAL, Cause, Illegal, step
from broker.wire.events import EventType
from broker.wire.states import AssignmentState as A
from broker.wire.states import JobState as J
from support.rows import FACTS, STOP, assignment, job

# Legal pairs, written out once by hand from the specification: the table is held against it.
_EXECUTING = [A.ACKED, A.STARTED]
EXPECTED: dict[Cause, tuple[list[J], list[A | None], J | None, A | None]] = {
    Cause.CLAIM: ([J.QUEUED], [None], J.ASSIGNED, A.PENDING),
    Cause.ACK: ([J.ASSIGNED], [A.PENDING], J.ASSIGNED, A.ACKED),
    Cause.START: ([J.ASSIGNED], [A.ACKED], J.RUNNING, A.STARTED),
    Cause.REFUSE: ([J.ASSIGNED, J.RUNNING], [A.PENDING, *_EXECUTING], J.QUEUED, A.REFUSED),
    Cause.LAUNCH_FAILED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.FAILED, A.FAILED),
    Cause.SUCCEED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.COMPLETED, A.SUCCEEDED),
    Cause.FAIL: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.FAILED, A.FAILED),
    Cause.CANCEL_QUEUED: ([J.QUEUED], [None], J.CANCELLED, None),
    Cause.CANCEL_PENDING: ([J.ASSIGNED], [A.PENDING], J.CANCELLED, A.CANCELLED),
    Cause.REQUEST_STOP: ([J.ASSIGNED, J.RUNNING], _EXECUTING, None, None),
    Cause.STOP_CONFIRMED: ([J.ASSIGNED, J.RUNNING], [A.PENDING, *_EXECUTING], J.CANCELLED, A.CANCELLED),
    Cause.PENDING_EXPIRED: ([J.ASSIGNED], [A.PENDING], J.QUEUED, A.EXPIRED),
    Cause.NEVER_EXECUTED: ([J.ASSIGNED, J.RUNNING], [A.PENDING, *_EXECUTING], J.QUEUED, A.EXPIRED),
    Cause.LOST_REQUEUED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.QUEUED, A.EXPIRED),
    Cause.LOST_ORPHANED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.ORPHANED, A.EXPIRED),
    Cause.LOST_STOPPED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.CANCELLED, A.EXPIRED),
    Cause.RESURRECT: ([J.ORPHANED, J.QUEUED], [A.EXPIRED], J.RUNNING, A.STARTED),
    Cause.LATE_SUCCEED: ([J.ORPHANED, J.QUEUED], [A.EXPIRED], J.COMPLETED, A.SUCCEEDED),
    Cause.LATE_FAIL: ([J.ORPHANED, J.QUEUED], [A.EXPIRED], J.FAILED, A.FAILED),
    Cause.LATE_NEVER_EXECUTED: ([J.ORPHANED, J.QUEUED], [A.EXPIRED], J.QUEUED, A.EXPIRED),
    Cause.TIME_LIMIT: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.FAILED, A.FAILED),
    Cause.PREEMPT_STOPPED: ([J.ASSIGNED, J.RUNNING], [A.PENDING, *_EXECUTING], J.PREEMPTED, A.PREEMPTED),
    Cause.PREEMPT_REQUEUED: ([J.ASSIGNED, J.RUNNING], [A.PENDING, *_EXECUTING], J.QUEUED, A.PREEMPTED),
    Cause.LOST_TIMED_OUT: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.FAILED, A.EXPIRED),
    Cause.LOST_PREEMPTED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.PREEMPTED, A.EXPIRED),
    Cause.LOST_PREEMPT_REQUEUED: ([J.ASSIGNED, J.RUNNING], _EXECUTING, J.QUEUED, A.EXPIRED),
    Cause.SCHEDULING_TIMEOUT: ([J.QUEUED], [None], J.SCHEDULING_TIMEOUT, None),
    Cause.CASCADE: ([J.QUEUED], [None], J.CANCELLED, None),
    Cause.UNCANCEL: ([J.CANCELLED], [None], J.QUEUED, None),
    Cause.ADOPT: ([], [None], J.RUNNING, A.ACKED),  # from nothing: `adopted` makes it
    Cause.ADOPT_CONFIRMED: ([J.RUNNING], [A.ACKED], J.RUNNING, A.STARTED),
    Cause.ADOPT_REFUSED: ([J.RUNNING], _EXECUTING, J.FAILED, A.REFUSED),
}


ALL_PAIRS = list(itertools.product(Cause, J, [None, *A]))


@pytest.mark.parametrize(("cause", "state", "delivery"), ALL_PAIRS)
@pytest.mark.guarantee("G2")
def test_each_pair_of_states_and_cause_is_as_specified(cause: Cause, state: J, delivery: A | None) -> None:
    before = job(state, lost=cause in BY_THE_HOLDER, cascaded=cause is Cause.UNCANCEL)
    held = assignment(delivery) if delivery is not None else None
    froms, deliveries, to, delivery_to = EXPECTED[cause]

    if state not in froms or delivery not in deliveries:
        with pytest.raises(Illegal):
            step(before, held, cause, FACTS)
        return
    done = step(before, held, cause, FACTS)

    assert done.job.state is (to or state)
    assert done.job.version == before.version + 1
    after = done.assignment.state if done.assignment else None
    assert after is (delivery_to or delivery)
    assert done.events, "every change is said"
    assert (done.job.ended_at is not None) == (done.job.state in TERMINAL)


@pytest.mark.guarantee("G2")
def test_the_table_has_a_row_for_every_cause_and_nothing_else() -> None:
    assert set(TABLE) == set(Cause) == set(EXPECTED)


@pytest.mark.guarantee("G2")
def test_terminal_states_are_those_that_nothing_but_their_holder_leaves() -> None:
    assert {J.COMPLETED, J.FAILED, J.CANCELLED, J.PREEMPTED, J.ORPHANED, J.SCHEDULING_TIMEOUT} == TERMINAL
    assert {A.PENDING, A.ACKED, A.STARTED} == LIVE
    assert {A.SUCCEEDED, A.FAILED, A.CANCELLED, A.PREEMPTED, A.REFUSED, A.EXPIRED} == ASSIGNMENT_OVER


@pytest.mark.parametrize("cause", sorted(BY_THE_HOLDER))
@pytest.mark.guarantee("G12")
def test_a_lost_job_comes_back_only_by_the_assignment_that_was_lost(cause: Cause) -> None:
    not_by_that_loss = job(J.QUEUED, lost=True)._replace(lost_assignment=None)

    with pytest.raises(Illegal):
        step(not_by_that_loss, assignment(A.EXPIRED), cause, FACTS)


@pytest.mark.guarantee("G5")
def test_only_the_newest_assignment_moves_its_job() -> None:
    older = assignment(A.STARTED)._replace(id=10)

    with pytest.raises(Illegal):
        step(job(J.RUNNING), older, Cause.SUCCEED, FACTS)


@pytest.mark.guarantee("G17")
def test_an_expired_lease_keeps_its_room_until_the_tree_is_known_gone() -> None:
    silent = step(job(J.RUNNING), assignment(A.STARTED), Cause.LOST_REQUEUED, replace(FACTS, gone=False))
    known_gone = step(job(J.RUNNING), assignment(A.STARTED), Cause.LOST_REQUEUED, replace(FACTS, gone=True))

    assert silent.assignment is not None and silent.assignment.reserved
    assert known_gone.assignment is not None and not known_gone.assignment.reserved


def test_a_loss_is_counted_and_undone_by_a_resurrection() -> None:
    lost = step(job(J.RUNNING), assignment(A.STARTED), Cause.LOST_REQUEUED, FACTS)
    assert lost.assignment is not None
    back = step(lost.job, lost.assignment, Cause.RESURRECT, FACTS)

    assert lost.job.losses == 1
    assert lost.job.lost_assignment == 11
    assert back.job.losses == 0
    assert back.job.lost_assignment is None
    assert back.assignment is not None and back.assignment.expired_at == 1000 == back.assignment.resumed_at


@pytest.mark.guarantee("G12")
def test_a_claim_makes_the_loss_final() -> None:
    lost = step(job(J.RUNNING), assignment(A.STARTED), Cause.LOST_REQUEUED, FACTS)
    claimed = step(lost.job, None, Cause.CLAIM, FACTS)

    assert claimed.job.attempt == 2
    assert claimed.job.lost_assignment is None
    with pytest.raises(Illegal):
        step(claimed.job, lost.assignment, Cause.RESURRECT, FACTS)


def test_a_stop_belongs_to_its_assignment_and_is_gone_with_it() -> None:
    asked = step(job(J.RUNNING), assignment(A.STARTED), Cause.REQUEST_STOP, FACTS)
    assert asked.assignment is not None and asked.assignment.stop == STOP
    lost = step(asked.job, asked.assignment, Cause.LOST_REQUEUED, FACTS)
    claimed = step(lost.job, None, Cause.CLAIM, FACTS)

    assert claimed.assignment is not None and claimed.assignment.stop is None


def test_the_events_name_the_new_state_besides_what_happened_to_the_assignment() -> None:
    kinds = {
        cause: [said.type for said in _legal(cause).events]
        for cause in (Cause.LOST_REQUEUED, Cause.LOST_ORPHANED, Cause.REFUSE, Cause.LATE_SUCCEED)
    }

    assert kinds == {
        Cause.LOST_REQUEUED: [EventType.ASSIGNMENT_EXPIRED, EventType.JOB_REQUEUED],
        Cause.LOST_ORPHANED: [EventType.ASSIGNMENT_EXPIRED, EventType.JOB_ORPHANED],
        Cause.REFUSE: [EventType.ASSIGNMENT_REFUSED, EventType.JOB_REQUEUED],
        Cause.LATE_SUCCEED: [EventType.JOB_RESURRECTED, EventType.JOB_COMPLETED],
    }


def _legal(cause: Cause):
    froms, deliveries, _, _ = EXPECTED[cause]
    held = assignment(deliveries[-1]) if deliveries[-1] is not None else None
    return step(job(froms[0], lost=cause in BY_THE_HOLDER), held, cause, FACTS)


def test_a_blocked_job_is_never_given_to_a_worker() -> None:
    with pytest.raises(Illegal):
        step(job(J.QUEUED)._replace(blocked=1), None, Cause.CLAIM, FACTS)


def test_a_job_comes_back_only_if_nothing_but_a_parent_had_cancelled_it() -> None:
    cancelled = step(job(J.QUEUED), None, Cause.CASCADE, replace(FACTS, parent=3)).job
    back = step(cancelled, None, Cause.UNCANCEL, replace(FACTS, blocked=2)).job

    assert cancelled.cascaded_by == 3
    assert (back.state, back.blocked, back.cascaded_by, back.queued_at) == (J.QUEUED, 2, None, FACTS.now)
    with pytest.raises(Illegal):
        step(job(J.CANCELLED), None, Cause.UNCANCEL, FACTS)
