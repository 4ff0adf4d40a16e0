"""Rows as answers: what anyone may see of jobs and workers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from broker.core.graph import Parent
from broker.core.matching import Machine, Shape, waiting
from broker.store.contract import Row, Tx
from broker.wire.events import Event, EventType
from broker.wire.jobs import Assignment, Job, Reason, Stopping
from broker.wire.states import AssignmentState, JobState
from broker.wire.workers import Slots, Worker

# At submit, "it will start in a moment" and "the machine is busy" are no news; these are.
EPOCH = datetime.fromtimestamp(0, UTC)
WORTH_SAYING_AT_SUBMIT = frozenset({"no_worker", "no_worker_fits", "workers_offline", "dependencies"})


def at(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def machines(tx: Tx) -> list[Machine]:
    return [
        Machine(
            name=row["name"],
            online=bool(row["online"]),
            slots=row["slots"],
            free=row["slots"] - row["used"] - row["strangers"],
            tags=frozenset(json.loads(row["tags"])),
        )
        for row in tx.all("workers")
    ]


def waiting_for(tx: Tx, shape: Shape, place: str, parent: Parent | None = None) -> Reason:
    """Why a queued job of this shape and place waits. `parent`: the first job that it still depends on."""
    if parent is not None:
        return Reason(code="dependencies", message=f"waits for job {parent.id}, which is {parent.state}")
    refused = [
        (row["worker"], Reason(code=row["code"], message=row["message"]))
        for row in tx.all("refusals_of_place", place=place, now=tx.now_ms)
    ]
    return waiting(shape, machines(tx), refused)


def job(tx: Tx, row: Row) -> Job:
    """The concise view. `log_bytes` is for the caller to add: it lies in files."""
    state = JobState(row["state"])
    stopping = None
    if row["stop_by"] is not None and state in (JobState.ASSIGNED, JobState.RUNNING):
        stopping = Stopping(by=row["stop_by"], why=row["stop_why"], grace_s=row["stop_grace_s"])
    why_waiting = None
    if state is JobState.QUEUED:
        key = tx.one("shape_key", shape=row["shape"])
        open_parent = tx.one("open_parent", child=row["id"]) if row["blocked"] else None
        parent = Parent(open_parent["id"], JobState(open_parent["state"])) if open_parent is not None else None
        why_waiting = waiting_for(tx, Shape.from_key(key["key"]), row["place"], parent) if key is not None else None
    return Job(
        id=row["id"],
        state=state,
        name=row["name"],
        project=row["project"],
        command=row["command"],
        array=row["array_id"],
        array_index=row["array_index"],
        worker=row["worker"] if state is not JobState.QUEUED else None,
        attempt=row["attempt"] or None,
        exit_code=row["exit_code"],
        reason=_reason(row),
        waiting=why_waiting,
        stopping=stopping,
        created_at=at(row["created_at"]),
        started_at=at(row["started_at"]),
        ended_at=at(row["ended_at"]),
        duration_s=_duration(row, tx.now_ms),
    )


def assignment(row: Row, *, listened: int, now_ms: int) -> Assignment:
    state = AssignmentState(row["state"])
    live = state in (AssignmentState.PENDING, AssignmentState.ACKED, AssignmentState.STARTED)
    return Assignment(
        assignment=f"{row['job']}.{row['attempt']}",
        attempt=row["attempt"],
        worker=row["worker_name"],
        state=state,
        exit_code=row["exit_code"],
        signal=row["signal"],
        reason=_reason(row),
        started_at=at(row["started_at"]),
        ended_at=at(row["ended_at"]),
        expired_at=at(row["expired_at"]),
        resumed_at=at(row["resumed_at"]),
        lease_expires_at=at(now_ms + row["lease_until"] - listened) if live else None,
    )


def worker(tx: Tx, row: Row) -> Worker:
    running = [f"{held['job']}.{held['attempt']}" for held in tx.all("running_on_worker", worker=row["id"])]
    return Worker(
        name=row["name"],
        state="online" if row["online"] else "lost",
        version=row["version"],
        host=row["host"],
        slots=Slots(total=row["slots"], used=row["used"] + row["strangers"]),
        tags=json.loads(row["tags"]) or None,
        running=running or None,
        last_seen_s=max(0.0, round((tx.now_ms - row["last_seen_at"]) / 1000, 1)),
        supervision=json.loads(row["supervision"]) or None,
    )


def event(row: Row) -> Event:
    happened_at = at(row["at"])
    assert happened_at is not None
    return Event(
        seq=row["seq"],
        at=happened_at,
        type=EventType(row["type"]),
        job=row["job"],
        attempt=row["attempt"],
        worker=row["worker"],
        project=row["project"],
        actor=row["actor"],
        data=json.loads(row["data"]) if row["data"] else None,
    )


def _reason(row: Row) -> Reason | None:
    if row["reason_code"] is None:
        return None
    return Reason(code=row["reason_code"], message=row["reason"] or row["reason_code"])


def _duration(row: Row, now_ms: int) -> float | None:
    if row["started_at"] is None:
        return None
    lasted_ms: int = (row["ended_at"] or now_ms) - row["started_at"]
    return max(0.0, round(lasted_ms / 1000, 3))
