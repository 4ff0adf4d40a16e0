"""The two records, as they stand in the tables. Tuples, because a transition makes four of them: what is read, what is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker.wire.jobs import Peak, Progress
from broker.wire.machines import Given
from broker.wire.states import AssignmentState, DependencyPolicy, JobState, OnPreempt, OnWorkerLost
from broker.wire.workers import Reached


class StopKind(StrEnum):
    """Why a stop was requested. A stronger one replaces a weaker one: the order here is the strength."""

    CANCEL = "cancel"
    WALL = "wall"
    PREEMPT = "preempt"
    LEASE_EXPIRED = "lease_expired"
    LEASE_RELEASED = "lease_released"
    WORKER_ENDS = "worker_ends"
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
    """A job's lifecycle truth. Instants (`…_at`) are integer milliseconds of the broker's clock, deadlines (`…_until`)
    of the time in which it has listened."""

    id: int
    version: int
    state: JobState
    project: str
    shape: int
    policy: OnWorkerLost
    grace_s: float
    preemptible: bool
    on_preempt: OnPreempt
    max_wall_s: float | None
    scheduling_timeout_s: float | None  # until the first accepted ack
    schedule_until: int | None  # while it is ready, and wants to wait no longer than this
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
    leased: bool = False  # it stands for a lease
    gpus: int = 0  # how many it asks for
    quota_token: str | None = None  # who submitted it, where that token has a quota
    prefers: str | None = None  # queued, and left to this worker
    prefers_until: int | None = None  # for so long
    array: int | None = None  # the one it is a member of
    adopted: int | None = None  # the process that it is, which somebody else had started
    retries: int = 0  # how many failures of its own are tried again
    retried: int = 0  # how many were
    retry_delay_s: float = 10.0
    retry_on: tuple[int, ...] | None = None  # only these exit codes
    not_before: int | None = None  # an instant that is still to come
    waits_until: int | None = None  # a pause: at the latest when the broker has listened for so long
    hold: bool = False

    @property
    def is_gated(self) -> bool:
        """Before its time, or on hold: no worker is to have it, whatever else it waits for."""
        return self.hold or self.not_before is not None


class AssignmentRow(NamedTuple):
    """One delivery of a job to one worker. Instants and deadlines as in a job's row."""

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
    wall_until: int | None  # started, and the broker asks for a stop itself then
    kill_failed: str | None  # processes that KILL does not end
    limit: Reached | None  # the time limit that was reached
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
    given: Given | None = None  # besides cpus, and free with them
    peak: Peak | None = None  # what it has used
    checkpoints: int = 0  # how often it said that one is safe
    progress: Progress | None = None  # how far it is, in its own words
