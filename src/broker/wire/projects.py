"""What a configuration says of projects besides the defaults of their jobs, and of tokens."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from broker.wire.jobs import OFF, Bundle, Conditions, Frozen, Name


class Quota(Frozen):
    """`[projects.NAME.quota]`, `[tokens.NAME.quota]`. What is not given is not limited."""

    queued: int | None = Field(default=None, ge=0, description="Jobs that wait; more are denied, whatever `when_over`.")
    running: int | None = Field(default=None, ge=0, description="Jobs that are assigned or run.")
    gpus: int | None = Field(default=None, ge=0, description="GPUs at once; one that is shared counts as one.")
    gpu_hours_per_day: float | None = Field(
        default=None, ge=0, description="GPU-hours since midnight UTC; while they are used up no job with GPUs starts."
    )
    when_over: Literal["deny", "hold"] = Field(
        default="deny", description="deny: what could not start for the quota is denied; hold: it waits."
    )


def _root_of(value: str) -> str:
    path = PurePosixPath(value)
    if not (path.is_absolute() or value == "~" or value.startswith("~/")) or ".." in path.parts:
        raise ValueError("give a whole path, as /data/vision or ~/code/vision, without ..")
    return value


def _profile_name(value: str) -> str:
    if value == OFF:
        raise ValueError("no profile can have this name: a job says none for no profile")
    return value


Root = Annotated[str, AfterValidator(_root_of)]
ProfileName = Annotated[Name, AfterValidator(_profile_name)]


class Profile(Bundle):
    """`[profiles.NAME]`: what jobs that name it ask for, where they don't say it themselves."""


class Rule(Frozen):
    """`[[rules]]`: which commands look like a profile."""

    match: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        min_length=1,
        max_length=64,
        description="Texts, one of which is somewhere in the command; * is anything, ? one character.",
    )
    profile: ProfileName
    name: Annotated[str, Field(max_length=80)] | None = Field(
        default=None, description="What such a command looks like."
    )
    apply: bool = Field(default=False, description="Give the job the profile, and don't only suggest it.")


class Project(Conditions):
    """`[projects.NAME]`. What its own table leaves open is what that of `_default` says."""

    priority: int = Field(default=0, ge=0, le=100, description="Added to the priority of each of its jobs.")
    share: float = Field(
        default=1,
        gt=0,
        le=1000,
        description="How much it may use beside projects of the same priority: with 2 twice as much as with 1.",
    )
    quota: Quota | None = None
    profile: ProfileName | None = Field(default=None, description="The profile of its jobs that name none.")
    roots: list[Root] | None = Field(
        default=None, max_length=64, description="Jobs with a cwd in one of these, that name no project, are its own."
    )


IN_THE_FILE_ONLY = ("roots",)
QUOTA = "quota."
KEYS = (
    *(name for name in Project.model_fields if name not in ("quota", *IN_THE_FILE_ONLY)),
    *(QUOTA + name for name in Quota.model_fields),
)
"""What can be changed of a project at run time."""


class TokenTable(Frozen):
    """`[tokens.NAME]`."""

    quota: Quota | None = None


class Preemption(Frozen):
    """`[preemption]`."""

    enabled: bool = Field(
        default=False, description="Whether a job that has no room has preemptible jobs of lower priority stopped."
    )
    min_priority_difference: int = Field(
        default=20, ge=1, le=200, description="How much lower, the projects' priorities included."
    )
    min_runtime_s: float = Field(
        default=300, ge=0, le=10 * 365 * 86_400, description="How long a job runs before it makes room for another."
    )


class ProjectChange(Frozen):
    """What is to count for a project from now on, over `jobd.toml`. What is not named stays as it is."""

    values: dict[str, Any] = Field(
        min_length=1,
        description="As in [projects.NAME], quota.gpus for a key of the quota; null takes a change back.",
    )


class ProjectEntry(Frozen):
    """A project as it counts now."""

    name: str
    values: dict[str, Any] = Field(description="What counts for it and its jobs, key by key.")
    sources: dict[str, str] = Field(description="Whose word each is: run time, project, floor or default.")
    changed_at: datetime | None = Field(default=None, description="The last change at run time.")
    changed_by: str | None = None
    jobs: dict[str, int] = Field(description="Jobs that have not ended, per state.")
    gpus: int = Field(description="GPUs that its jobs hold.")
    used: float = Field(description="What it has used, for its share: seconds of a processor, decayed.")
    gpu_hours_today: float = Field(description="Since midnight UTC.")


class ProjectList(Frozen):
    projects: list[ProjectEntry]


class Reloaded(Frozen):
    """What the file says now, against what it said before."""

    changed: list[str] = Field(description="Keys that count differently from now on.")
    needs_restart: list[str] = Field(description="Keys that differ in the file and count from the next start on.")
