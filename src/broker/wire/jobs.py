"""What a submitter says and what it is told about jobs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from broker.wire.snapshots import Snapshot
from broker.wire.states import (
    AssignmentState,
    DependencyPolicy,
    JobState,
    OnPreempt,
    OnWorkerLost,
    RetriedMembers,
    SweepMode,
)

MOST_ID = 1 << 53  # larger integers don't survive JSON
MAX_COUNT = 10_000
MOST_TOGETHER = 1000
MOST_RETRIES = 1000
LONGEST_LIMIT_S = 10 * 365 * 86_400
OFF = "none"
FLOOR_TABLE = "_default"  # where a configuration moves the floor of all projects; no project's name
MAX_TEXT = 128 * 1024  # one argument: what Linux accepts as a single string (MAX_ARG_STRLEN)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


def name_of(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("use letters, digits, dot, dash and underscore, at most 64, starting with a letter or digit")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a NUL byte can't be passed to a process")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode: a lone surrogate can't be passed to a process") from None
    return value


Name = Annotated[str, AfterValidator(name_of)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT), AfterValidator(_no_nul)]
EnvName = Annotated[str, StringConstraints(pattern=rf"^{_ENV_NAME.pattern}$")]


def _limit(value: object) -> object:
    """All is judged here, so that a wrong value gets one answer, and not one for each kind that it could be."""
    if value is None or value == OFF:
        return value
    try:
        seconds = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        seconds = 0.0
    if not 0 < seconds <= LONGEST_LIMIT_S:
        raise ValueError(f'give seconds, above 0 and at most {LONGEST_LIMIT_S}; or "none": no limit')
    return seconds


Limit = Annotated[float | Literal["none"], BeforeValidator(_limit), WithJsonSchema({"type": ["number", "string"]})]
"""Seconds, or the word none: no limit, whatever the defaults say. Not given is neither."""


def _when(value: object) -> object:
    """Seconds from now, or an instant that says its offset. One answer for a wrong value, as with limits."""
    seconds: object = value
    if isinstance(value, str):
        try:
            seconds = float(value)
        except ValueError:
            return _instant(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_LIMIT_S:
        raise ValueError(_NO_WHEN)
    return float(seconds)


def _instant(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(_NO_WHEN)
    return text


_NO_WHEN = "give seconds from now, or an instant with its offset, as 2027-01-31T06:00:00+01:00"
When = Annotated[
    float | Annotated[str, StringConstraints(max_length=64)],
    BeforeValidator(_when),
    WithJsonSchema({"type": ["number", "string"]}),
]
"""When something may begin: seconds from now, or an instant."""


def _either(schema: dict[str, Any]) -> None:
    """A schema without a default: a project's may be either, so both words can be said."""
    del schema["default"]


def _some_axes(sweep: dict[str, Any]) -> dict[str, Any]:
    if not sweep:
        raise ValueError("names no axis")
    return sweep


Axis = Annotated[
    list[bool | int | float | Text],
    Field(min_length=1, max_length=MAX_COUNT),
    WithJsonSchema({"type": "array", "items": {}}),
]
"""The values of one axis of a sweep."""

Labels = dict[Name, Annotated[Text, StringConstraints(max_length=200)]]
JobIds = Annotated[list[Annotated[int, Field(ge=1, le=MOST_ID)]], Field(max_length=1000)]
Count = Annotated[int, Field(ge=1, le=1_000_000), WithJsonSchema({"type": "integer"})]
Gibibytes = Annotated[float, Field(gt=0, le=1 << 20), WithJsonSchema({"type": "number"})]


SnapshotWord = Annotated[
    str, StringConstraints(pattern=r"^(git|copy)(:[0-9a-f]{64})?$"), WithJsonSchema({"type": "string"})
]
"""With the sha256 of what was put; without one it is taken where the submit is made."""


Priority = Annotated[int, Field(ge=-50, le=50), WithJsonSchema({"type": "integer"})]
"""Higher first; it is added to the project's."""

ExitCodes = Annotated[
    list[Annotated[int, Field(ge=1, le=255)]],
    Field(min_length=1, max_length=255),
    WithJsonSchema({"type": "array", "items": {"type": "integer"}}),
]


class Frozen(BaseModel):
    """Unknown fields are refused: a typo must never be accepted and then ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Program(Frozen):
    """What is run: every job's own."""

    command: Text | None = Field(default=None, description="For bash -c; or give argv.")
    argv: list[Text] | None = Field(default=None, description="Without a shell.", max_length=4096)
    cwd: Text | None = Field(default=None, description="On the worker; default: scratch.")
    env: dict[EnvName, Text] | None = Field(default=None, max_length=1024)
    venv: Text | None = None
    conda: Text | None = Field(default=None, description="Name or path.")
    name: Annotated[Text, StringConstraints(max_length=200)] | None = None
    labels: Labels | None = Field(default=None, max_length=64)
    project: Name = "default"
    profile: Name | None = None
    priority: Priority = 0


class Conditions(Frozen):
    """How a job is run. A project may have defaults for these: `core.effective` says which value counts."""

    cpus: float = Field(default=1, gt=0, le=4096, description="Slots.")
    needs: list[Name] | None = Field(default=None, description="Worker tags.", max_length=64)
    on_worker_lost: OnWorkerLost = Field(
        default=OnWorkerLost.REQUEUE,
        description="exclusive: never two copies; orphan: never again.",
    )
    checkpoint_grace_s: float = Field(default=10, ge=0, le=86_400, description="From TERM to KILL.")
    max_wall_s: Limit | None = Field(default=None, description="Then it fails; none: no limit.")
    idle_timeout_s: Limit | None = Field(default=None, description="Likewise when silent.")
    first_output_timeout_s: Limit | None = None
    gpu_idle_timeout_s: Limit | None = Field(default=None, description="Likewise with idle GPUs.")
    scheduling_timeout_s: Limit | None = Field(default=None, description="Longest in the queue.")
    preemptible: bool = Field(default=False, json_schema_extra=_either)
    on_preempt: OnPreempt = Field(default=OnPreempt.STOP, description="Then.")
    retries: int = Field(default=0, ge=0, le=MOST_RETRIES)
    retry_delay_s: float = Field(default=10, ge=0, le=86_400)
    retry_on: ExitCodes | None = None


class Bundle(Conditions):
    """Conditions and what is asked of a machine: what a profile may say."""

    gpus: int | None = Field(default=None, ge=0, le=512, description="Exclusive without vram_gb.")
    vram_gb: Gibibytes | None = Field(default=None, description="Per GPU; shared.")
    ram_gb: Gibibytes | None = None
    resources: dict[Name, Count] | None = Field(default=None, max_length=64)
    arch: Name | None = None
    os: Literal["linux", "macos"] | None = None


class JobSpec(Bundle, Program):
    """What was asked for. It never changes after the submit."""

    worker: Name | None = Field(default=None, description="Only there.")
    snapshot: SnapshotWord | None = Field(default=None, description="Of cwd. git: record; copy: run a copy.")
    not_before: When | None = Field(default=None, description="RFC 3339, or seconds.")
    hold: bool = False
    depends_on: JobIds | None = Field(default=None, description="Start after these.")
    depends_on_array: JobIds | None = Field(default=None, description="All their members.")
    depends_on_each: JobIds | None = Field(default=None, description="Member by member.")
    dependency_policy: DependencyPolicy = Field(default=DependencyPolicy.SUCCESS, description="Ends that let it start.")
    count: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="Array size; {i}: the index.")
    sweep: Annotated[dict[EnvName, Axis], Field(max_length=64), AfterValidator(_some_axes)] | None = Field(
        default=None, description="Values for each {name}."
    )
    sweep_mode: SweepMode | None = Field(default=None, description="random draws count.")
    sweep_seed: int | None = Field(default=None, ge=0, le=MOST_ID)
    max_parallel: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="At once.")
    max_failures: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="Cancels the rest after.")

    @model_validator(mode="after")
    def _exactly_one_program(self) -> JobSpec:
        if (self.command is None) == (self.argv is None):
            raise ValueError("give exactly one of command (shell text) and argv (program and arguments)")
        if self.command is not None and not self.command.strip():
            raise ValueError("command is empty")
        if self.argv is not None and (not self.argv or not self.argv[0]):
            raise ValueError("argv is empty")
        if self.venv is not None and self.conda is not None:
            raise ValueError("give at most one of venv and conda")
        if self.gpus == 0 and self.vram_gb is not None:
            raise ValueError("vram_gb is of a GPU, and gpus is 0")
        return self

    @property
    def copied(self) -> str | None:
        """The sha256 of the copy that it runs in, instead of in `cwd`."""
        kind, _, sha256 = (self.snapshot or "").partition(":")
        return sha256 if kind == "copy" and sha256 else None


Key = Annotated[Text, StringConstraints(min_length=1, max_length=200), WithJsonSchema({"type": "string"})]
"""What makes a request one request, however often it arrives."""


class Keyed(Frozen):
    """A request that can be repeated. The same key with another request is refused."""

    idempotency_key: Key | None = None


class Submission(Keyed, JobSpec):
    """A specification, and the key under which it is submitted."""

    @property
    def spec(self) -> JobSpec:
        said = {name: getattr(self, name) for name in JobSpec.model_fields}
        return JobSpec.model_construct(self.model_fields_set & JobSpec.model_fields.keys(), **said)


class Reason(Frozen):
    """Why something is as it is: a code for programs, a message for people."""

    code: str
    message: str
    limit_s: float | None = Field(default=None, description="Of a time limit: what was allowed.")
    seen_s: float | None = Field(default=None, description="Of a time limit: what was seen.")
    need: float | None = Field(default=None, description="Of something that is short: how much of it is needed.")
    have: float | None = Field(default=None, description="And how much there is for it.")


class Stopping(Frozen):
    """A requested stop that the worker has not confirmed yet."""

    by: str
    why: str
    grace_s: float
    kill_failed: str | None = Field(default=None, description="Processes that KILL does not end, as pid:state.")


class Peak(Frozen):
    """What one delivery has used, as far as its worker could see. What can't be told is left out, and never 0."""

    rss_mb: float | None = Field(default=None, ge=0, description="Memory of its whole tree, at most.")
    vram_mb: int | None = Field(default=None, ge=0, description="Of all devices together, at most.")
    cpu_s: float | None = Field(default=None, ge=0, description="Processor time of its whole tree.")
    gpu: float | None = Field(
        default=None, ge=0, le=100, description="How busy its devices were on average, in percent."
    )


LONGEST_MESSAGE = 200


def clean(text: str, most: int) -> str:
    """On one line, without what could move a cursor, turn the direction of writing, or not be sent."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(shown.split())[:most].strip()


def _message(value: object) -> object:
    return clean(value, LONGEST_MESSAGE) or None if isinstance(value, str) else value


class Progress(Frozen):
    """How far a job is, in its own words. What could harm whoever reads them is left out."""

    fraction: float = Field(ge=0, le=1)
    message: Annotated[str | None, BeforeValidator(_message)] = None


class Artifact(Frozen):
    """A file that a delivery left behind."""

    name: str
    size: int
    sha256: str


class Assignment(Frozen):
    """One delivery of a job to one worker."""

    assignment: str = Field(description="Shown as 42.1")
    attempt: int
    worker: str
    state: AssignmentState
    exit_code: int | None = None
    signal: str | None = None
    reason: Reason | None = None
    gpus: list[str] | None = Field(default=None, description="The devices that it was given.")
    started_at: datetime | None = None
    ended_at: datetime | None = None
    expired_at: datetime | None = None
    resumed_at: datetime | None = None
    lease_expires_at: datetime | None = None
    peak: Peak | None = None
    checkpoint_at: datetime | None = Field(default=None, description="When it last said that a checkpoint is safe.")
    log_bytes: int | None = None
    log_complete: bool | None = None
    dropped_bytes: int | None = Field(
        default=None, description="Output that was not kept: log cap, full disk, power cut."
    )
    progress: Progress | None = None
    result: Any = None
    result_cut: str | None = None
    artifacts: list[Artifact] | None = Field(default=None, description="Files that are here, the first 100.")
    artifacts_expected: int | None = Field(default=None, description="Files that its worker has announced.")


class Eta(Frozen):
    """When it starts and how long it runs, as far as earlier runs of the same thing tell."""

    start_s: float | None = Field(default=None, description="Queued: until it starts.")
    run_s: float | None = Field(default=None, description="From its start to its end: the median.")
    left_s: float | None = Field(default=None, description="Running: until its end.")
    basis: str = Field(description="What that rests on.")


class Job(Frozen):
    """A job as it stands now. Nulls are left out of answers."""

    id: int
    state: JobState
    name: str | None = None
    project: str | None = None
    kind: Literal["lease", "adopted"] | None = None
    command: str | None = Field(default=None, description="The command, cut to 200 characters.")
    array: int | None = None
    array_index: int | None = None
    values: dict[str, Any] | None = Field(default=None, description="A member's of its sweep.")
    count: int | None = Field(default=None, description="Of an array as a whole: its members.")
    ids: str | None = None
    counts: dict[str, int] | None = Field(default=None, description="Of an array: members per state.")
    worker: str | None = None
    gpus: list[str] | None = Field(default=None, description="The devices that it was given.")
    attempt: int | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    waiting: Reason | None = None
    stopping: Stopping | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_s: float | None = None
    eta: Eta | None = None
    progress: Progress | None = None
    result: Any = None
    result_cut: str | None = Field(default=None, description="The beginning of a long one; detail=full has it whole.")
    artifacts: str | None = Field(default=None, description="How many files are here, as 2 of 3 while more come.")
    log_bytes: int | None = None
    logs_pruned: bool | None = Field(default=None, description="Its output was removed, so long after its end.")
    retry_of: int | None = None
    retried_as: int | None = Field(default=None, description="The job that does it again.")
    warnings: list[str] | None = None
    spec: dict[str, Any] | None = Field(default=None, description="detail=full: the effective specification.")
    snapshot: Snapshot | None = Field(default=None, description="detail=full: its code, without the diff.")
    sources: dict[str, str] | None = Field(
        default=None,
        description="detail=full: where each value of spec comes from: job, profile NAME, rule N, root, project, floor or default.",
    )
    assignments: list[Assignment] | None = Field(default=None, description="detail=full: every delivery.")
    depends_on: list[int] | None = Field(default=None, description="detail=full: the jobs it waits for, or waited for.")
    depends_on_array: list[int] | None = Field(default=None, description="detail=full: arrays likewise.")
    dependents: list[int] | None = Field(default=None, description="detail=full: the first 100 jobs that depend on it.")


class Placement(Frozen):
    """One worker, and all that keeps it from taking the job."""

    worker: str
    fits: bool
    reasons: list[Reason] | None = None


class Ahead(Frozen):
    """Jobs that have their turn before, by the order as it is now, on workers that could take this one."""

    jobs: int
    at_least: bool | None = Field(default=None, description="Counting ended there.")
    because: str


class Explained(Frozen):
    """Why a job is where it is. `placement`, `ahead` and `suggestion` are of a queued one."""

    id: int
    state: JobState
    waiting: Reason | None = None
    reason: Reason | None = None
    placement: list[Placement] | None = Field(default=None, description="Workers, the nearest to taking it first.")
    more_workers: int | None = Field(default=None, description="How many more there are that don't take it.")
    ahead: Ahead | None = None
    start_estimate_s: float | None = Field(default=None, description="Until it starts, as far as history tells.")
    basis: str | None = Field(default=None, description="What the estimate rests on, or why there is none.")
    suggestion: str | None = Field(default=None, description="The cheapest change that would let it start.")


class PreviewRequest(Frozen):
    """What a submit would say."""

    spec: dict[str, Any] = Field(description="As for job_submit.")


class SpecError(Frozen):
    """One thing for which a submit would be refused."""

    code: str
    message: str
    field: str | None = None
    hint: str | None = None


class WouldPreempt(Frozen):
    """A running job that would be stopped for another."""

    id: int
    worker: str
    priority: int = Field(description="Its own and its project's.")


class Preview(Frozen):
    """What a submit would come to now. Nothing is kept of it."""

    valid: bool
    errors: list[SpecError] | None = None
    count: int | None = Field(default=None, description="Members of the array.")
    command: str | None = Field(default=None, description="Of its first member.")
    spec: dict[str, Any] | None = Field(default=None, description="The effective specification.")
    sources: dict[str, str] | None = Field(
        default=None,
        description="Where each of its values comes from: job, profile NAME, rule N, root, project, floor or default.",
    )
    waiting: Reason | None = Field(default=None, description="Why it would wait.")
    placement: list[Placement] | None = Field(default=None, description="Workers as they are loaded now.")
    more_workers: int | None = None
    ahead: Ahead | None = None
    start_estimate_s: float | None = Field(default=None, description="Until it would start.")
    run_estimate_s: float | None = Field(default=None, description="How long it would run.")
    basis: str | None = Field(default=None, description="What the estimates rest on, or why there are none.")
    would_preempt: list[WouldPreempt] | None = Field(default=None, description="Jobs that would be stopped for it.")
    suggestion: str | None = None
    warnings: list[str] | None = None


class Repeatable(Frozen):
    """An answer to a request that may have had a key."""

    repeated: bool | None = Field(default=None, description="It was done before; this is what was answered then.")


class Submitted(Repeatable):
    """A job, or with `count` or `sweep` an array whose ids are one block."""

    id: int | None = None
    array: int | None = None
    count: int | None = None
    ids: str | None = Field(default=None, description="First and last id of the array, as 50..55")
    state: JobState
    waiting: Reason | None = None
    retry_of: int | None = Field(default=None, description="The job or array that it does again.")
    warnings: list[str] | None = None


class RetryRequest(Keyed):
    """What is to be otherwise than it was asked for at first."""

    changes: dict[str, Any] | None = Field(default=None, description="Fields of job_submit; null unsets.")
    members: RetriedMembers | None = Field(default=None, description="Of an array.")


class SubmitMany(Keyed):
    """Jobs that are accepted together, or not at all."""

    jobs: list[JobSpec] = Field(description="Each as for job_submit.", min_length=1, max_length=MOST_TOGETHER)


class SubmittedMany(Repeatable):
    jobs: list[Submitted] = Field(description="In the order in which they were given.")


class JobList(Frozen):
    jobs: list[Job] = Field(description="An array is one entry, unless array or state is given.")
    array: Job | None = Field(default=None, description="The array that was asked for, as a whole.")
    counts: dict[str, int] = Field(description="Jobs per state, of the same project and array.")
    total: int = Field(description="Jobs that match the filter.")
    next_cursor: str | None = None


class Ended(Frozen):
    """The end of one job, small enough to read at once."""

    id: int
    state: JobState
    exit_code: int | None = None
    reason: Reason | None = None
    duration_s: float | None = None
    result: Any = None
    result_cut: str | None = None
    log_tail: str | None = None


class Waited(Frozen):
    done: bool
    jobs: list[Ended] = Field(description="Those that have ended.")
    counts: dict[str, int] | None = Field(default=None, description="Of an array: members per state.")
    pending: list[int] | None = Field(default=None, description="Ids that have not ended, at most 100.")
    next: str | None = Field(default=None, description="What to call next, if not done.")


class CancelRequest(Keyed):
    """Which jobs to cancel: ids, an array, or a filter."""

    job: list[int] | None = Field(default=None, max_length=1000)
    array: int | None = None
    project: Name | None = Field(default=None, description="All its live jobs.")
    name: Annotated[Text, StringConstraints(max_length=200)] | None = None
    labels: Labels | None = Field(default=None, max_length=64)
    state: Literal["queued", "assigned", "running"] | None = None
    dry_run: bool = False
    reason: Annotated[Text, StringConstraints(max_length=500)] | None = None
    force: bool = Field(default=False, description="Confirm: others' running work, or over ten by filter.")

    @model_validator(mode="after")
    def _names_something(self) -> CancelRequest:
        if all(said is None for said in (self.job, self.array, self.project, self.name, self.labels)):
            raise ValueError("name jobs: job (ids), array, project, name or labels")
        if self.labels is not None and not self.labels:
            raise ValueError("labels names no label")
        if self.dry_run and self.idempotency_key is not None:
            raise ValueError("idempotency_key is of what is done, and dry_run does nothing")
        if self.job is not None and not self.job:
            raise ValueError("job is an empty list")
        return self


class UpdateRequest(Keyed):
    """What to change of a job, or of all live members of the array that has this id."""

    priority: Priority | None = None
    hold: bool = False
    release: bool = False
    max_wall_s: Limit | None = None
    idle_timeout_s: Limit | None = None
    first_output_timeout_s: Limit | None = None
    gpu_idle_timeout_s: Limit | None = None
    scheduling_timeout_s: Limit | None = None
    max_parallel: int | None = Field(default=None, ge=1, le=MAX_COUNT)

    @model_validator(mode="after")
    def _says_something(self) -> UpdateRequest:
        if self.hold and self.release:
            raise ValueError("give one of hold and release")
        if self.model_copy(update={"idempotency_key": None}) == UpdateRequest.model_construct():
            raise ValueError("says nothing to change: give priority, hold, release, a limit, or max_parallel")
        return self


class Updated(Repeatable):
    """What became of a change."""

    id: int
    state: JobState | None = Field(default=None, description="Of one job.")
    changed: int = Field(description="Jobs that are not as they were.")
    started: int | None = Field(default=None, description="Members that run already, and keep what they had.")
    waiting: Reason | None = None


class StoppedJob(Frozen):
    """What a request to stop came to."""

    id: int
    state: JobState
    note: str


class PreemptRequest(Frozen):
    """Why, and whether another's work is meant."""

    reason: Annotated[Text, StringConstraints(max_length=500)] | None = None
    force: bool = Field(default=False, description="Confirm: others' work.")


class CancelAnswer(Repeatable):
    jobs: list[StoppedJob] = Field(description="The first 100.")
    counts: dict[str, int] = Field(description="cancelled, stopping, already_ended")
    dry_run: bool | None = Field(default=None, description="Nothing was changed.")
    confirm: str | None = Field(default=None, description="dry_run: for what force would be needed.")


class GraphNode(Frozen):
    """A job, or an array as a whole."""

    id: int
    state: JobState | None = Field(default=None, description="None: it was removed, long after its end.")
    name: str | None = None
    command: str | None = None
    count: int | None = Field(default=None, description="Of an array: its members.")


class GraphEdge(Frozen):
    """`child` waits for `parent`, or waited."""

    parent: int
    child: int
    policy: DependencyPolicy


class Graph(Frozen):
    """Who waits for whom."""

    nodes: list[GraphNode] = Field(description="In the order of their ids; an array is one.")
    edges: list[GraphEdge]
    cut: bool | None = Field(default=None, description="There is more of it than is shown.")
