"""The words for where a job and one delivery of it stand. Which changes are legal is `core.states`."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    ORPHANED = "orphaned"
    SCHEDULING_TIMEOUT = "scheduling_timeout"


class AssignmentState(StrEnum):
    PENDING = "pending"
    ACKED = "acked"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    REFUSED = "refused"
    EXPIRED = "expired"


class OnWorkerLost(StrEnum):
    """What becomes of a job whose worker is gone."""

    REQUEUE = "requeue"
    REQUEUE_EXCLUSIVE = "requeue_exclusive"
    ORPHAN = "orphan"


class OnPreempt(StrEnum):
    """What becomes of a job that was stopped for another one."""

    STOP = "stop"
    REQUEUE = "requeue"


class LimitCode(StrEnum):
    """The limits that a supervisor enforces on a running job, as the reason of its end."""

    MAX_WALL = "max_wall"
    IDLE_TIMEOUT = "idle_timeout"
    FIRST_OUTPUT_TIMEOUT = "first_output_timeout"
    GPU_IDLE_TIMEOUT = "gpu_idle_timeout"


class Duty(StrEnum):
    """What an operator wants of a worker; kept over its restarts. Only one that serves is given new work."""

    SERVING = "serving"
    CORDONED = "cordoned"
    DRAINING = "draining"  # cordoned, and somebody waits for its last job to end
    DRAINED = "drained"  # it has ended


class DependencyPolicy(StrEnum):
    """Which ends of the jobs in `depends_on` let a job start. Every other end cancels it."""

    SUCCESS = "success"
    ANY_EXIT = "any_exit"
    FAILURE = "failure"


class SweepMode(StrEnum):
    """How the axes of a sweep make members: all combinations; the first values, the second ones, …; or some
    combinations, drawn."""

    GRID = "grid"
    ZIP = "zip"
    RANDOM = "random"


class RetriedMembers(StrEnum):
    """Which members of an array a retry does again: those that ended otherwise than completed; all of them; or the one
    whose id is given, which is the array's own where that is the first member."""

    FAILED = "failed"
    ALL = "all"
    ONE = "one"


class Scope(StrEnum):
    """What a caller may do. `operator` may do everything; `submit` includes `read`."""

    READ = "read"
    SUBMIT = "submit"
    WORKER = "worker"
    OPERATOR = "operator"
