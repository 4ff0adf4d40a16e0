"""What workers and the broker say to each other, and what anyone may know of workers.

An *exchange* (poll or report) carries the full list of held assignments; see `docs/protocol.md`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from broker.wire.jobs import Frozen, JobSpec, Name, Peak, Progress, Reason, Text
from broker.wire.machines import Battery, Facts, Given, Ram, WorkerGpu
from broker.wire.outcomes import Left, OutcomeLimits
from broker.wire.states import LimitCode

Uuid = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Short = Annotated[Text, StringConstraints(max_length=200)]
Long = Annotated[Text, StringConstraints(max_length=2000)]


PROTOCOL = 3
"""What a worker of this version understands of a delivery. It grows when an older worker would not understand one."""
OLDEST_PROTOCOL = 2
"""The first whose workers may be given work."""
ADOPTS = 3
"""The first whose workers can adopt a process."""
COPIES_SINCE = 3
"""The first whose workers know that a job may run in a copy."""


class Registration(Frozen):
    """A worker process announces itself. `epoch` grows with each start of the same worker id."""

    name: Name
    epoch: int = Field(ge=1)
    machine: Short = Field(description="Identity of the machine and boot: a cloned state directory shows.")
    host: Short
    version: Short
    protocol: int = Field(
        default=1, ge=1, description="Which deliveries it understands; the first release said nothing."
    )
    slots: float = Field(gt=0, le=4096)
    tags: list[Name] = Field(default=[], max_length=256)
    platform: Short | None = None
    supervision: list[Short] = Field(default=[], max_length=16, description="How whole trees are killed here.")
    resources: dict[Name, int] | None = Field(
        default=None, max_length=64, description="What it has a number of besides, as its settings say."
    )
    facts: Facts | None = Field(default=None, description="What the machine has, as far as that is known already.")
    checkpoint_root: Text | None = Field(
        default=None,
        description="Where its settings have checkpoint directories kept: workers that say the same share it.",
    )


class Registered(Frozen):
    installation: str
    worker: str
    epoch: int
    lease_s: float
    heartbeat_s: float
    exclusive_lease_s: float
    poll_s: float
    observes: bool = Field(
        default=False, description="The broker takes `peak` and `checkpoints`; earlier ones refuse the words."
    )
    outcomes: OutcomeLimits | None = Field(
        default=None, description="The broker takes `progress` and `left`, results and artifacts; likewise."
    )


class Phase(StrEnum):
    """Where an assignment stands on its worker."""

    PREPARING = "preparing"  # not executed; nothing was released
    RUNNING = "running"  # a process exists, or may
    ENDED = "ended"  # the tree is gone; `final` says how, and it has not been accepted yet


class Outcome(StrEnum):
    """How an assignment ended, in the shim's word."""

    EXITED = "exited"  # by itself: exit_code or signal
    STOPPED = "stopped"  # TERM was delivered before the exit was reaped, for `stop`
    LIMIT = "limit"  # the same, for a time limit: `limit`
    LEASE_ENDED = "lease_ended"  # the shim stopped its tree because its lease ended
    LAUNCH_FAILED = "launch_failed"  # the command itself could not be executed
    REFUSED = "refused"  # never executed: the worker said no
    NEVER_EXECUTED = "never_executed"  # proved: the shim was closed for good before it released exec
    LOST = "lost"  # may have run; how it ended can't be known


class Reached(Frozen):
    """A time limit that was reached while the job ran."""

    code: LimitCode
    limit_s: float = Field(description="What was allowed.")
    seen_s: float = Field(description="What was seen.")


class Checkpoints(Frozen):
    """How often a process said on its output that a checkpoint is safe."""

    count: int = Field(ge=1, description="Those within a moment count once.")
    age_s: float = Field(ge=0, description="How long ago it said so last.")


class Final(Frozen):
    """The end of an assignment. A repeat is answered `duplicate` and changes nothing."""

    outcome: Outcome
    exit_code: int | None = None
    signal: Short | None = None
    reason_code: Short | None = None
    reason: Long | None = None
    stop: Short | None = Field(default=None, description="STOPPED: the id of the stop request that was carried out.")
    limit: Reached | None = Field(
        default=None,
        description="LIMIT: which. STOPPED: the wall limit, if it was reached before the main process ended.",
    )
    final_size: int = Field(default=0, ge=0, description="Bytes of output that the process wrote and the worker has.")
    final_index_size: int = Field(default=0, ge=0)
    dropped: int = Field(default=0, ge=0, description="Bytes of output that the worker could not keep.")
    duration_s: float | None = Field(default=None, ge=0)
    max_rss_mb: float | None = Field(default=None, ge=0, description="Of its largest process.")
    cpu_s: float | None = Field(default=None, ge=0)
    peak: Peak | None = None
    checkpoints: Checkpoints | None = None
    progress: Progress | None = None
    left: Left | None = Field(default=None, description="What follows, and what does not.")


class Held(Frozen):
    """One assignment that the worker has: alive, or ended and not yet accepted."""

    job: int
    attempt: int
    token: Short
    phase: Phase
    stopping: Short | None = Field(default=None, description="Id of the stop request that is being carried out.")
    kill_failed: Short | None = Field(default=None, description="Processes that KILL does not end, as pid:state.")
    final: Final | None = Field(default=None, description="With phase ended.")
    peak: Peak | None = Field(default=None, description="What it has used so far; told when it moved by a step.")
    checkpoints: Checkpoints | None = None
    progress: Progress | None = Field(default=None, description="Told once a heartbeat at most.")


class Exchange(Frozen):
    """What every exchange carries.

    `seq` grows with each exchange of an epoch. `seen` is the number of the last poll answer that was
    processed. `recovered`: the worker has read its own records, so the list is complete.
    """

    epoch: int
    seq: int = Field(ge=1)
    seen: int = Field(ge=0)
    recovered: bool
    held: list[Held] = Field(max_length=10_000)


class Poll(Exchange):
    wait_s: float = Field(default=25, ge=0, le=60)
    accept: bool = Field(default=True, description="False while draining: stops still travel.")
    ending: bool = Field(
        default=False, description="The worker ends: what it runs is to be stopped and queued again, but for orphans."
    )


class Ack(Frozen):
    kind: Literal["ack"]
    job: int
    attempt: int
    token: Short
    shim: Short = Field(description="Names the shim that asks: an answer counts for no other.")


class Start(Frozen):
    kind: Literal["start"]
    job: int
    attempt: int
    token: Short
    pid: int | None = None


class Finish(Frozen):
    kind: Literal["finish"]
    job: int
    attempt: int
    token: Short
    final: Final


Transition = Annotated[Ack | Start | Finish, Field(discriminator="kind")]


class Report(Exchange):
    transitions: list[Transition] = Field(default=[], max_length=10_000)
    facts: Facts | None = Field(
        default=None, description="When they have changed, until a report with them is answered."
    )


class VerdictWord(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # the same owner committed this already
    LEASE_LOST = "lease_lost"  # keep process and spool, send the held list; close an unexecuted shim
    STALE_ASSIGNMENT = "stale_assignment"  # stop the process, drop the spool


class Verdict(Frozen):
    """The answer to one transition, or to one entry of the held list (`kind` held)."""

    kind: Literal["ack", "start", "finish", "held"]
    job: int
    attempt: int
    verdict: VerdictWord
    ended: bool | None = Field(default=None, description="Its final report was accepted: only log bytes may follow.")


class Stop(Frozen):
    """Stop this assignment's whole tree: TERM, `grace_s`, KILL. Repeated until the list shows `id`."""

    job: int
    attempt: int
    id: str
    why: str
    grace_s: float


class Adoptee(Frozen):
    """A process that runs already, by its id where the worker runs, and by its start where that is known."""

    pid: int
    start: int | None = Field(default=None, description="As field 22 of /proc/PID/stat.")
    follow: bool = Field(default=False, description="Only if its output can be followed: its silence is limited.")


class Delivery(Frozen):
    """An assignment on its way to the worker. Nothing may be executed before its ack was accepted."""

    job: int
    attempt: int
    token: str
    spec: JobSpec
    lease_s: float = Field(description="Pending lease: the ack must arrive within it.")
    restarts: int = Field(description="How often a process of this job was started before.")
    array: int | None = None
    array_index: int | None = None
    given: Given | None = Field(default=None, description="What is reserved for it besides cpus.")
    adopt: Adoptee | None = Field(default=None, description="Nothing is run: the job is this process.")


class ReportAnswer(Frozen):
    verdicts: list[Verdict] = []
    stops: list[Stop] = []


class PollAnswer(ReportAnswer):
    """`number` grows within an epoch; an answer with a number not above `seen` is dropped whole.

    None: an empty answer to a poll that a newer one replaced, or that timed out with nothing to say.
    """

    number: int | None = None
    deliveries: list[Delivery] = []


class LogSize(Frozen):
    """Where the broker's copy of a stream stands. Send from `size` on; keep all beyond `durable`."""

    size: int
    durable: int
    duplicate: bool = False


class Slots(Frozen):
    total: float
    used: float


class WorkerState(StrEnum):
    """Whether a worker is there, and if so, whether it takes new work."""

    ONLINE = "online"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    OUTDATED = "outdated"  # of a version that does not understand what this broker delivers
    PAUSED = "paused"  # the worker itself takes nothing new: it is ending, or its disk is full
    NOT_POLLING = "not_polling"  # it is heard, and asks for no work: its polls are lost on the way, or it hangs
    LOST = "lost"


class WorkerUpdate(Frozen):
    """What changes for a worker: at most one of cordon, drain and resume; tags; or both."""

    cordon: bool = Field(default=False, description="No new work.")
    drain: bool = Field(default=False, description="Cordon; worker_drained tells the end.")
    resume: bool = False
    tags: list[Name] | None = Field(default=None, max_length=256, description="Besides its own; replaces earlier ones.")

    @model_validator(mode="after")
    def _asks_for_something(self) -> WorkerUpdate:
        wanted = [word for word in ("cordon", "drain", "resume") if getattr(self, word)]
        if len(wanted) > 1:
            raise ValueError(f"{' and '.join(wanted)} exclude each other")
        if not wanted and self.tags is None:
            raise ValueError("say what changes: cordon, drain, resume, or tags")
        return self


class WorkerCpus(Frozen):
    logical: int
    usable: float
    load: float | None = None


class Worker(Frozen):
    name: str
    id: str | None = Field(default=None, description="Where several have the same name.")
    state: WorkerState
    cordoned: bool | None = Field(default=None, description="An operator, or the broker, lets it have no new work.")
    cordon_reason: Reason | None = Field(default=None, description="Why, where the broker did it by itself.")
    version: str
    host: str
    slots: Slots
    cpus: WorkerCpus | None = None
    ram_gb: Ram | None = None
    ram_reserved_gb: float | None = Field(default=None, description="Asked for by what runs there.")
    resources: dict[str, Slots] | None = Field(default=None, description="What it has a number of besides.")
    disk_free_gb: float | None = None
    battery: Battery | None = None
    driver: str | None = Field(default=None, description="Of the GPUs, and the newest CUDA that it can do.")
    gpus: list[WorkerGpu] | None = None
    gpus_why: str | None = Field(default=None, description="Why there are none, or nothing is known of them.")
    stale: bool | None = Field(default=None, description="It is lost: cpus to gpus are what it said last.")
    tags: list[str] | None = None
    running: list[str] | None = Field(default=None, description="Assignments that hold resources here, as 42.1")
    last_seen_s: float = Field(description="Seconds since it was last heard.")
    supervision: list[str] | None = None


class WorkerList(Frozen):
    workers: list[Worker]
