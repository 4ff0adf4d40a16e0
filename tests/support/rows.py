"""Rows for tests of `core`: one job, 7, and one delivery of it, 11."""

from __future__ import annotations

from broker.core.rows import AssignmentRow, JobRow, StopKind, StopRequest
from broker.core.states import Claimed, Facts
from broker.wire.states import AssignmentState as A
from broker.wire.states import DependencyPolicy, OnPreempt, OnWorkerLost
from broker.wire.states import JobState as J

STOP = StopRequest(id="s1", kind=StopKind.CANCEL, by="ann", why="enough", grace_s=5, at=90, early=False)
CLAIMED = Claimed(worker="w", worker_name="w1", epoch=1, token="t2", lease_until=700, answer=3, cpus=1)
FACTS = Facts(
    now=1000,
    listened=500,
    claimed=CLAIMED,
    shim="sh",
    lease_until=5000,
    stop=STOP,
    exit_code=3,
    reason_code="r",
    reason="text",
)


def job(state: J, *, lost: bool = False, cascaded: bool = False) -> JobRow:
    return JobRow(
        id=7,
        version=4,
        state=state,
        project="default",
        shape=1,
        policy=OnWorkerLost.REQUEUE,
        grace_s=10,
        preemptible=True,
        on_preempt=OnPreempt.STOP,
        max_wall_s=3600,
        scheduling_timeout_s=60,
        schedule_until=None,
        attempt=1,
        assignment=11,
        losses=1 if lost else 0,
        restarts=1,
        lost_assignment=11 if lost else None,
        blocked=0,
        dependency_policy=DependencyPolicy.SUCCESS,
        cascaded_by=3 if cascaded else None,
        exit_code=None,
        reason_code=None,
        reason=None,
        created_at=1,
        queued_at=1,
        started_at=50 if state is J.RUNNING else None,
        ended_at=None if state in (J.QUEUED, J.ASSIGNED, J.RUNNING) else 60,
    )


def assignment(state: A) -> AssignmentRow:
    return AssignmentRow(
        id=11,
        job=7,
        attempt=1,
        worker="w",
        worker_name="w1",
        epoch=1,
        state=state,
        token="t1",
        shim=None,
        lease_until=100,
        answer=1,
        cpus=1,
        reserved=True,
        stop=None,
        wall_until=None,
        kill_failed=None,
        limit=None,
        exit_code=None,
        signal=None,
        reason_code=None,
        reason=None,
        created_at=1,
        acked_at=None if state is A.PENDING else 40,
        started_at=50 if state is A.STARTED else None,
        ended_at=None,
        expired_at=None,
        resumed_at=None,
        final_size=None,
        final_index_size=None,
        dropped=0,
    )
