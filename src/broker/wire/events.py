"""What happened, in order. One enum; the docs table and the counters are derived from it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from broker.wire.jobs import Frozen


class EventType(StrEnum):
    """Each member carries its own documentation: `EventType.JOB_FAILED.means`."""

    means: str

    def __new__(cls, value: str, means: str = "") -> EventType:
        member = str.__new__(cls, value)
        member._value_ = value
        member.means = means
        return member

    JOB_SUBMITTED = "job_submitted", "A job was accepted and is on disk."
    ARRAY_SUBMITTED = (
        "array_submitted",
        "All members of an array were accepted; the job is the first one, and the data say how many follow it.",
    )
    JOB_ADOPTED = (
        "job_adopted",
        "A process that was running already became a job, if its worker finds it; the data say which process.",
    )
    JOB_WAITING = (
        "job_waiting",
        "Why it waits, though it is the next of its kind, has changed; the data have code, message, need and have.",
    )
    JOB_DENIED = (
        "job_denied",
        "A submit was refused for a quota: there is no such job. The data say which and its numbers.",
    )
    JOB_ASSIGNED = "job_assigned", "A worker was given the job: a new assignment, pending."
    JOB_STARTED = "job_started", "The process exists."
    JOB_COMPLETED = "job_completed", "Exit code 0, committed by the owner."
    JOB_FAILED = "job_failed", "It was launched and ended badly; the data carry exit code, signal or error."
    JOB_RETRYING = (
        "job_retrying",
        "It failed and has retries left: it is queued again; the data say which retry, and after how long.",
    )
    JOB_CANCELLED = "job_cancelled", "It was stopped on request, and its process tree is gone or never was."
    JOB_STOP_REQUESTED = "job_stop_requested", "Somebody asked to stop it; the worker has yet to confirm."
    JOB_UPDATED = "job_updated", "Somebody changed a job that has not ended; the data say what, from and to."
    JOB_PREEMPTED = "job_preempted", "It made room for other work; its process tree is gone or never was."
    JOB_RETRIED = (
        "job_retried",
        "It was retried by hand, and never comes back itself; the data name the job, or array, that does it again.",
    )
    JOB_REQUEUED = "job_requeued", "It is queued again; the data say why."
    JOB_ORPHANED = "job_orphaned", "Its worker is gone and it must not be run again."
    SCHEDULING_TIMEOUT = "scheduling_timeout", "It was ready for as long as it wanted to wait, and never started."
    JOB_UNCANCELLED = "job_uncancelled", "The parent whose end had cancelled it came back; it waits again."
    JOB_RESURRECTED = (
        "job_resurrected",
        "A job that was declared lost is in fact alive, or ended; its holder came back.",
    )
    LEASE_GRANTED = "lease_granted", "A lease has what it asked for; the data name its devices."
    LEASE_RELEASED = "lease_released", "Its lessee gave a lease back, or left the queue."
    LEASE_EXPIRED = "lease_expired", "A lease was not renewed in its time."
    LEASE_IDLE = "lease_idle", "Nothing of the lease is on its devices, for lease_idle_s; told once."
    ASSIGNMENT_ACKED = "assignment_acked", "The worker has the assignment and may execute it."
    ASSIGNMENT_EXPIRED = "assignment_expired", "The lease ran out, or the worker came back without it."
    ASSIGNMENT_REFUSED = "assignment_refused", "The worker said no before executing; the data say why."
    CHECKPOINT_LEFT_BEHIND = (
        "checkpoint_left_behind",
        "It starts on another worker than before, which does not share its directory of checkpoints.",
    )
    CHECKPOINT_COMPLETE = "checkpoint_complete", "The job said on its output that a checkpoint is safe."
    WATCHDOG_FIRED = "watchdog_fired", "A process tree does not end though it was killed; the data name what is left."
    WORKER_REGISTERED = "worker_registered", "A worker process announced itself; a new epoch."
    WORKER_LOST = "worker_lost", "Nothing was heard of the worker for a lease."
    WORKER_BACK = "worker_back", "A worker that was lost was heard again."
    WORKER_CORDONED = (
        "worker_cordoned",
        "It takes no new work; the data say whether it drains, and why if nobody asked.",
    )
    WORKER_DRAINED = "worker_drained", "The last job of a worker that drains has ended: nothing runs there."
    WORKER_RESUMED = "worker_resumed", "It takes work again."
    WORKER_UPDATED = "worker_updated", "Its tags were changed; the data have those that it is given now."
    WORKER_REMOVED = "worker_removed", "A worker that was lost was forgotten."
    WORKER_GPUS_CHANGED = "worker_gpus_changed", "Its devices, or how they do, changed; the data say which and how."
    GPU_OFFER_IGNORED = "gpu_offer_ignored", "Another live worker has this device already: it is not used twice."
    SCHEDULE_CHANGED = "schedule_changed", "A schedule was made, changed, paused or resumed; the data name it."
    SCHEDULE_REMOVED = "schedule_removed", "A schedule was removed; its jobs stay."
    SCHEDULE_SKIPPED = (
        "schedule_skipped",
        "An instant of a schedule is no job; the data say which and why: missed, overlap, quota, or a refusal's code.",
    )
    RECLAIM_SUPPRESSED = "reclaim_suppressed", "The broker was away or frozen; that time is not counted against leases."
    RESTORED = "restored", "The database was restored from a backup: what happened after that is forgotten."
    LOGS_PRUNED = "logs_pruned", "Output of jobs that ended long ago was removed; the data name them, as 1..50,53."
    JOBS_PRUNED = "jobs_pruned", "Jobs that ended long ago were removed, with their events; the data name them."
    PROJECT_CHANGED = (
        "project_changed",
        "Keys of a project were changed at run time; the data have the values, null where one was taken back.",
    )
    CONFIGURATION_RELOADED = (
        "configuration_reloaded",
        "jobd.toml was read again; the data name the keys that count differently, and those that need a restart.",
    )
    TOKEN_CREATED = "token_created", "A token was made; the data carry its name and scopes, never the token."
    TOKEN_REVOKED = "token_revoked", "A token was revoked and is refused from now on."


class Event(Frozen):
    seq: int
    at: datetime
    type: EventType
    job: int | None = None
    attempt: int | None = None
    worker: str | None = None
    project: str | None = None
    actor: str | None = None
    data: dict[str, Any] | None = None


class EventList(Frozen):
    events: list[Event]
    next_cursor: int = Field(description="Pass as since to go on after the last of these.")
    pruned_to: int | None = Field(
        default=None, description="Events after since and up to this one were removed, with their jobs."
    )
