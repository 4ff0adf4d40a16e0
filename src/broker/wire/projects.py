"""What a configuration says of projects besides the defaults of their jobs, and of tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.wire.jobs import Conditions, Frozen


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
