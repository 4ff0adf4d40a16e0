"""The two records, as they stand in the tables. Tuples, because a transition makes four of them: what is read, what is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker.wire.states import AssignmentState, DependencyPolicy, JobState, OnWorkerLost


class StopKind(StrEnum):
    """Why a stop was requested. A stronger one replaces a weaker one: the order here is the strength."""

    CANCEL = "cancel"
    START_LIMIT = "start_limit"


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A stop of one assignment, and gone with it. `early`: accepted before the start was heard."""

    id: str
    kind: StopKind
    by: str
    why: str
    grace_s: float
    at: int
    early: bool


class JobRow(NamedTuple):
    """A job's lifecycle truth. Instants are integer milliseconds of the broker's clock."""

    id: int
    version: int
    state: JobState
    project: str
    shape: int
    policy: OnWorkerLost
    grace_s: float
    attempt: int  # of the newest assignment; 0 before the first
    assignment: int | None  # id of the newest assignment
    losses: int
    restarts: int  # how often a process of this job was started
    lost_assignment: int | None  # orphaned, or queued, by the loss of this one
    blocked: int  # how many jobs it still waits for
    dependency_policy: DependencyPolicy
    cascaded_by: int | None  # cancelled by the end of this parent, and by nothing else
    exit_code: int | None
    reason_code: str | None
    reason: str | None
    created_at: int
    queued_at: int
    started_at: int | None
    ended_at: int | None


class AssignmentRow(NamedTuple):
    """One delivery of a job to one worker. `lease_until` is on the broker's listening clock."""

    id: int
    job: int
    attempt: int
    worker: str
    worker_name: str
    epoch: int
    state: AssignmentState
    token: str
    shim: str | None
    lease_until: int
    answer: int  # number of the poll answer that carried it last
    cpus: float
    reserved: bool  # holds its resources until its tree is known gone, not until its lease ends
    stop: StopRequest | None
    exit_code: int | None
    signal: str | None
    reason_code: str | None
    reason: str | None
    created_at: int
    acked_at: int | None
    started_at: int | None
    ended_at: int | None
    expired_at: int | None
    resumed_at: int | None
    final_size: int | None
    final_index_size: int | None
    dropped: int
