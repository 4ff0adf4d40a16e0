"""What a configuration says of a project besides the defaults of its jobs."""

from __future__ import annotations

from pydantic import Field

from broker.wire.jobs import Conditions


class Project(Conditions):
    """`[projects.NAME]`. What its own table leaves open is what that of `_default` says."""

    priority: int = Field(default=0, ge=0, le=100, description="Added to the priority of each of its jobs.")
    share: float = Field(
        default=1,
        gt=0,
        le=1000,
        description="How much it may use beside projects of the same priority: with 2 twice as much as with 1.",
    )
