"""Rows of the store as the records of `core`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from broker.core.rows import AssignmentRow, JobRow, StopKind, StopRequest
from broker.store.contract import Row, Tx
from broker.wire.jobs import Peak, Progress
from broker.wire.machines import Given
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import AssignmentState, DependencyPolicy, JobState, OnPreempt, OnWorkerLost
from broker.wire.workers import Reached

EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_000  # what a date can say


def read_job(tx: Tx, job: int) -> JobRow | None:
    row = tx.one("job", job=job)
    return None if row is None else job_row(row)


def unknown_job(tx: Tx, job: int, field: str = "job") -> Refused:
    """The refusal of an id that names no job: never given to one, or given to one that is not kept any more."""
    last = tx.one("last_job_id")
    if last is not None and job <= last["id"]:
        return Refused(
            ProblemCode.UNKNOWN_JOB,
            f"job {job} is not kept any more",
            field=field,
            hint="jobs are removed JOBD_KEEP_JOBS_S after their end; job_list shows those that are left",
        )
    return Refused(ProblemCode.UNKNOWN_JOB, f"there is no job {job}", field=field, hint="job_list shows the ids")


def job_row(row: Row) -> JobRow:
    return JobRow(
        id=row["id"],
        version=row["version"],
        state=JobState(row["state"]),
        project=row["project"],
        shape=row["shape"],
        policy=OnWorkerLost(row["policy"]),
        grace_s=row["grace_s"],
        preemptible=bool(row["preemptible"]),
        on_preempt=OnPreempt(row["on_preempt"]),
        max_wall_s=row["max_wall_s"],
        scheduling_timeout_s=row["scheduling_timeout_s"],
        schedule_until=row["schedule_until"],
        attempt=row["attempt"],
        assignment=row["assignment"],
        losses=row["losses"],
        restarts=row["restarts"],
        lost_assignment=row["lost_assignment"],
        blocked=row["blocked"],
        dependency_policy=DependencyPolicy(row["dependency_policy"]),
        cascaded_by=row["cascaded_by"],
        exit_code=row["exit_code"],
        reason_code=row["reason_code"],
        reason=row["reason"],
        created_at=row["created_at"],
        queued_at=row["queued_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        leased=row["lease_ttl_ms"] is not None,
        gpus=row["gpus"],
        quota_token=row["quota_token"],
        prefers=row["prefers"],
        prefers_until=row["prefers_until"],
        array=row["array_id"],
        adopted=row["adopted_pid"],
        retries=row["retries"],
        retried=row["retried"],
        retry_delay_s=row["retry_delay_s"],
        retry_on=tuple(json.loads(row["retry_on"])) if row["retry_on"] is not None else None,
        not_before=row["not_before"],
        waits_until=row["waits_until"],
        hold=bool(row["hold"]),
    )


def read_assignment(tx: Tx, assignment: int | None) -> AssignmentRow | None:
    row = tx.one("assignment", assignment=assignment) if assignment is not None else None
    return None if row is None else assignment_row(row)


def assignment_row(row: Row) -> AssignmentRow:
    return AssignmentRow(
        id=row["id"],
        job=row["job"],
        attempt=row["attempt"],
        worker=row["worker"],
        worker_name=row["worker_name"],
        epoch=row["epoch"],
        state=AssignmentState(row["state"]),
        token=row["token"],
        shim=row["shim"],
        lease_until=row["lease_until"],
        answer=row["answer"],
        cpus=row["cpus"],
        reserved=bool(row["reserved"]),
        stop=_stop(row),
        wall_until=row["wall_until"],
        kill_failed=row["kill_failed"],
        limit=reached(row),
        exit_code=row["exit_code"],
        signal=row["signal"],
        reason_code=row["reason_code"],
        reason=row["reason"],
        created_at=row["created_at"],
        acked_at=row["acked_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        expired_at=row["expired_at"],
        resumed_at=row["resumed_at"],
        final_size=row["final_size"],
        final_index_size=row["final_index_size"],
        dropped=row["dropped"],
        given=given(row),
        peak=peak(row),
        checkpoints=row["checkpoints"],
        progress=progress(row),
    )


def at(ms: int) -> datetime:
    """An instant of a row. A row that was changed by hand may say more than a date can."""
    return datetime.fromtimestamp(min(max(ms, EARLIEST_MS), LATEST_MS) / 1000, UTC)


def given(row: Row) -> Given | None:
    """What a delivery was given besides cpus."""
    return Given.model_validate_json(row["given"]) if row["given"] is not None else None


def peak(row: Row) -> Peak | None:
    """What a delivery has used."""
    return Peak.model_validate_json(row["peak"]) if row["peak"] is not None else None


def progress(row: Row) -> Progress | None:
    """How far a delivery is, in its own words."""
    return Progress.model_validate_json(row["progress"]) if row["progress"] is not None else None


def reached(row: Row) -> Reached | None:
    """The time limit that a delivery reached."""
    if row["limit_code"] is None:
        return None
    return Reached(code=row["limit_code"], limit_s=row["limit_s"], seen_s=row["limit_seen_s"])


def _stop(row: Row) -> StopRequest | None:
    if row["stop_id"] is None:
        return None
    return StopRequest(
        id=row["stop_id"],
        kind=StopKind(row["stop_kind"]),
        by=row["stop_by"],
        why=row["stop_why"],
        grace_s=row["stop_grace_s"],
        at=row["stop_at"],
        early=bool(row["stop_early"]),
    )
