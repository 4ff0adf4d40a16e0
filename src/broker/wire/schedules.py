"""Jobs that are submitted again and again, by the clock."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from broker.wire.jobs import Frozen, JobSpec

LABEL = "schedule"


class Missed(StrEnum):
    """What becomes of instants at which the broker was not there."""

    SKIP = "skip"
    RUN_ONCE = "run_once"


class Overlap(StrEnum):
    """What becomes of an instant at which the job of the one before has not ended."""

    SKIP = "skip"
    ALLOW = "allow"


class ScheduleRequest(Frozen):
    """When, and what."""

    cron: Annotated[str, StringConstraints(max_length=200)] = Field(
        description="Minute, hour, day of month, month, day of week."
    )
    tz: Annotated[str, StringConstraints(max_length=100)] = Field(default="UTC", description="As Europe/Berlin.")
    job: JobSpec = Field(description="As for job_submit.")
    missed: Missed = Field(default=Missed.SKIP, description="Instants at which the broker was away.")
    overlap: Overlap = Field(default=Overlap.SKIP, description="While the job of the last instant has not ended.")
    paused: bool = False


class Schedule(Frozen):
    """A schedule as it stands."""

    name: str
    cron: str
    tz: str
    job: dict[str, Any] = Field(description="As it was asked for; environment values are left out.")
    missed: Missed
    overlap: Overlap
    paused: bool
    actor: str
    next_at: datetime | None = Field(default=None, description="Nothing while it is paused.")
    last_at: datetime | None = Field(default=None, description="The last instant that was a job.")
    last_job: int | None = None


class ScheduleList(Frozen):
    schedules: list[Schedule]
