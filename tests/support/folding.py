"""Folding the events over nothing: what a reader who has only the events knows, compared with the tables.

`differences_in(database)` compares both in one snapshot, at any instant, also while broker and workers are at work.
Or by hand: `differences(fold(events), jobs_in(connection))`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from broker.core.retention import members
from broker.core.states import TERMINAL
from broker.wire.events import Event, EventType
from broker.wire.states import AssignmentState, JobState

EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass
class FoldedAssignment:
    worker: str
    state: str = "pending"
    exit_code: int | None = None
    reason_code: str | None = None
    acked_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    expired_at: int | None = None
    resumed_at: int | None = None


@dataclass
class FoldedJob:
    """Instants are integer milliseconds."""

    project: str | None
    created_at: int
    state: str = "queued"
    exit_code: int | None = None
    reason_code: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    assignments: dict[int, FoldedAssignment] = field(default_factory=dict)


@dataclass
class FoldedWorker:
    name: str
    online: bool = True
    duty: str = "serving"
    given_tags: list[str] = field(default_factory=list)


class OutOfOrder(AssertionError):
    """The events contradict each other: one speaks of what no event before it made."""


def fold(events: Iterable[Event]) -> dict[int, FoldedJob]:
    """Jobs by id, as the events tell them; `events` from the first on, in order."""
    jobs: dict[int, FoldedJob] = {}
    last = 0
    for event in events:
        if event.seq <= last:
            raise OutOfOrder(f"event {event.seq} comes after event {last}")
        last = event.seq
        _job_event(jobs, event)
    return jobs


def fold_workers(events: Iterable[Event]) -> dict[str, FoldedWorker]:
    """Workers by id, as the events tell them."""
    workers: dict[str, FoldedWorker] = {}
    for event in events:
        id_ = _said(event, "id")
        if event.worker is None or event.job is not None or id_ is None:
            continue
        worker = workers.setdefault(id_, FoldedWorker(event.worker))
        match event.type:
            case EventType.WORKER_REGISTERED:
                worker.name, worker.online = event.worker, True
            case EventType.WORKER_LOST | EventType.WORKER_BACK:
                worker.online = event.type is EventType.WORKER_BACK
            case EventType.WORKER_CORDONED:
                worker.duty = "draining" if _said(event, "drain") else "cordoned"
            case EventType.WORKER_DRAINED:
                worker.duty = "drained"
            case EventType.WORKER_RESUMED:
                worker.duty = "serving"
            case EventType.WORKER_UPDATED:
                worker.given_tags = _said(event, "tags")
            case EventType.WORKER_REMOVED:
                del workers[id_]
            case _:
                raise OutOfOrder(f"event {event.seq}, {event.type}, is of a worker, and the fold does not know it")
    return workers


def differences(folded: Mapping[int, FoldedJob], kept: Mapping[int, FoldedJob]) -> list[str]:
    """What events and tables do not agree on, a line each; empty if folding the events gives the tables."""
    lines = [f"job {job}: in the tables, and in no event" for job in kept.keys() - folded.keys()]
    lines += [f"job {job}: in the events, and not in the tables" for job in folded.keys() - kept.keys()]
    for job in sorted(folded.keys() & kept.keys()):
        lines += _unlike(f"job {job}", folded[job], kept[job])
        told, is_so = folded[job].assignments, kept[job].assignments
        if told.keys() != is_so.keys():
            lines.append(f"job {job}: events tell of attempts {sorted(told)}, the tables of {sorted(is_so)}")
        for attempt in sorted(told.keys() & is_so.keys()):
            lines += _unlike(f"assignment {job}.{attempt}", told[attempt], is_so[attempt])
    return lines


def differences_in(database: Path) -> list[str]:
    """The same for a database as it stands now, whoever else is writing to it: jobs, assignments and workers."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None, timeout=30)) as connection:
        connection.execute("BEGIN")
        events = events_in(connection)
        lines = differences(fold(events), jobs_in(connection))
        told, is_so = fold_workers(events), workers_in(connection)
        pruned = connection.execute("SELECT 1 FROM meta WHERE key = 'events_pruned_to'").fetchone()
        if told != is_so and not pruned:  # events of workers go by their age, also those of a worker that is there
            lines.append(f"workers: events tell {told}, the tables {is_so}")
        return lines


def events_in(connection: sqlite3.Connection) -> list[Event]:
    rows = _rows(connection, "SELECT * FROM events ORDER BY seq")
    return [Event.model_validate(row | {"at": _time(row["at"]), "data": _json(row["data"])}) for row in rows]


def jobs_in(connection: sqlite3.Connection) -> dict[int, FoldedJob]:
    """Jobs by id, as the tables tell them."""
    jobs = {row["id"]: _only(FoldedJob, row) for row in _rows(connection, "SELECT * FROM jobs")}
    for row in _rows(connection, "SELECT * FROM assignments"):
        jobs[row["job"]].assignments[row["attempt"]] = _only(FoldedAssignment, row | {"worker": row["worker_name"]})
    return jobs


def workers_in(connection: sqlite3.Connection) -> dict[str, FoldedWorker]:
    """Workers by id, as the tables tell them."""
    rows = _rows(connection, "SELECT * FROM workers")
    return {
        row["id"]: FoldedWorker(row["name"], bool(row["online"]), row["duty"], _json(row["given_tags"])) for row in rows
    }


# ---- what each event says of its job. A type that is not here, and names a job, must be added.


def _job_event(jobs: dict[int, FoldedJob], event: Event) -> None:
    if event.type is EventType.JOB_SUBMITTED:
        assert event.job is not None
        if event.job in jobs:
            raise OutOfOrder(f"job {event.job} is submitted twice")
        jobs[event.job] = FoldedJob(project=event.project, created_at=_ms(event))
    elif event.type is EventType.ARRAY_SUBMITTED:
        assert event.job is not None
        for job in range(event.job, event.job + _said(event, "count")):
            if job in jobs:
                raise OutOfOrder(f"job {job} is submitted twice")
            jobs[job] = FoldedJob(project=event.project, created_at=_ms(event))
    elif event.type is EventType.JOB_ADOPTED:
        assert event.job is not None and event.worker is not None
        if event.job in jobs:
            raise OutOfOrder(f"job {event.job} is adopted twice")
        at = _ms(event)
        own = FoldedAssignment(event.worker, state="acked", acked_at=at)
        jobs[event.job] = FoldedJob(event.project, at, state="running", started_at=at, assignments={1: own})
    elif event.type is EventType.JOBS_PRUNED:
        for job in members(_said(event, "jobs")):
            jobs.pop(job, None)  # unknown to whoever began to read after that
    elif event.job is not None:
        if event.job not in jobs:
            raise OutOfOrder(f"event {event.seq}, {event.type}, is of job {event.job}, which was never submitted")
        _CHANGES[event.type.value](jobs[event.job], event)


def _queued(job: FoldedJob, event: Event) -> None:
    job.state, job.started_at, job.ended_at, job.exit_code = "queued", None, None, None
    job.reason_code = _said(event, "reason_code")
    attempt = job.assignments.get(event.attempt or 0)
    if attempt is not None and attempt.ended_at is not None:  # as with a late word that nothing was executed
        _close(attempt, event)


def _retrying(job: FoldedJob, event: Event) -> None:
    attempt = _over(job, event, "failed")
    attempt.ended_at = _ms(event)
    _queued(job, event)


def _assigned(job: FoldedJob, event: Event) -> None:
    assert event.attempt is not None and event.worker is not None
    if event.attempt != len(job.assignments) + 1:
        raise OutOfOrder(f"attempt {event.attempt} of job {event.job} follows {len(job.assignments)}")
    job.state = "assigned"
    job.assignments[event.attempt] = FoldedAssignment(event.worker)


def _acked(job: FoldedJob, event: Event) -> None:
    attempt = _attempt(job, event)
    attempt.state, attempt.acked_at = "acked", _ms(event)


def _started(job: FoldedJob, event: Event) -> None:
    attempt = _attempt(job, event)
    attempt.started_at = _ms(event)
    if job.state != "running":  # an adopted one runs before its worker has looked
        job.started_at = attempt.started_at
    job.state, attempt.state = "running", "started"


def _refused(job: FoldedJob, event: Event) -> None:
    _over(job, event, "refused")


def _expired(job: FoldedJob, event: Event) -> None:
    _over(job, event, "expired").expired_at = _ms(event)


def _resurrected(job: FoldedJob, event: Event) -> None:
    attempt = _attempt(job, event)
    attempt.state = "started"
    if _said(event, "cause") == "resurrect":
        attempt.resumed_at = _ms(event)
        attempt.started_at = attempt.started_at or _ms(event)
        attempt.ended_at = attempt.exit_code = attempt.reason_code = None
        job.state, job.ended_at, job.exit_code, job.reason_code = "running", None, None, None
    job.started_at = attempt.started_at or attempt.acked_at


def _end(state: JobState) -> Callable[[FoldedJob, Event], None]:
    """The job has ended so; and its newest assignment, if it had not before."""
    own = {"completed": "succeeded", "orphaned": "expired", "scheduling_timeout": "expired"}.get(state, str(state))

    def change(job: FoldedJob, event: Event) -> None:
        job.state, job.ended_at = str(state), _ms(event)
        job.exit_code, job.reason_code = _said(event, "exit_code"), _said(event, "reason_code")
        if event.attempt is not None and job.assignments[event.attempt].state in _LIVE:
            _over(job, event, own)

    return change


def _retried(job: FoldedJob, event: Event) -> None:
    if JobState(job.state) not in TERMINAL:
        raise OutOfOrder(f"job {event.job} is retried, and has not ended: it is {job.state}")


def _nothing(_job: FoldedJob, _event: Event) -> None:
    """The event changes no state."""


_LIVE = {AssignmentState.PENDING.value, AssignmentState.ACKED.value, AssignmentState.STARTED.value}
_CHANGES: dict[str, Callable[[FoldedJob, Event], None]] = {
    "job_assigned": _assigned,
    "assignment_acked": _acked,
    "job_started": _started,
    "assignment_refused": _refused,
    "assignment_expired": _expired,
    "job_requeued": _queued,
    "job_retrying": _retrying,
    "job_updated": _nothing,
    "job_uncancelled": _queued,
    "job_resurrected": _resurrected,
    "job_stop_requested": _nothing,
    "job_waiting": _nothing,
    "job_retried": _retried,
    "watchdog_fired": _nothing,
    "checkpoint_complete": _nothing,
    "checkpoint_left_behind": _nothing,
    **{f"job_{state}": _end(state) for state in TERMINAL},
    **{str(state): _end(state) for state in TERMINAL},
}


def _over(job: FoldedJob, event: Event, state: str) -> FoldedAssignment:
    attempt = _attempt(job, event)
    attempt.state = state
    _close(attempt, event)
    return attempt


def _close(attempt: FoldedAssignment, event: Event) -> None:
    attempt.ended_at = _ms(event)
    attempt.exit_code, attempt.reason_code = _said(event, "exit_code"), _said(event, "reason_code")


def _attempt(job: FoldedJob, event: Event) -> FoldedAssignment:
    if event.attempt not in job.assignments:
        raise OutOfOrder(f"event {event.seq}, {event.type}, is of attempt {event.attempt}, which was never assigned")
    return job.assignments[event.attempt]


# ---- small parts


def _said(event: Event, key: str) -> Any:
    return (event.data or {}).get(key)


def _ms(event: Event) -> int:
    return (event.at - EPOCH) // timedelta(milliseconds=1)


def _time(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _json(text: str | None) -> Any:
    return json.loads(text) if text else None


def _rows(connection: sqlite3.Connection, statement: str) -> list[dict[str, Any]]:
    cursor = connection.execute(statement)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _only(kind: type, row: Mapping[str, Any]) -> Any:
    return kind(**{known.name: row[known.name] for known in fields(kind) if known.name in row})


def _unlike(who: str, told: object, is_so: object) -> list[str]:
    return [
        f"{who}: {known.name} is {getattr(told, known.name)!r} by the events, {getattr(is_so, known.name)!r} in the tables"
        for known in fields(told)  # type: ignore[arg-type]
        if known.name != "assignments" and getattr(told, known.name) != getattr(is_so, known.name)
    ]
