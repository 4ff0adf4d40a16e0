"""A wait that outlives whoever asked for it: an id now, the ends of the jobs later."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from broker.wire.jobs import MOST_ID, Frozen, JobIds, Waited

KEPT_S = 7 * 86_400
"""How long the answer can be fetched."""


class WatchRequest(Frozen):
    """What `job_wait` waits for."""

    job: JobIds | None = None
    array: int | None = Field(default=None, ge=1, le=MOST_ID)
    mode: Literal["all", "any"] = "all"

    @model_validator(mode="after")
    def _names_something(self) -> WatchRequest:
        if not self.job and self.array is None:
            raise ValueError("name jobs: job (ids) or array")
        return self


class WatchState(StrEnum):
    WORKING = "working"
    COMPLETED = "completed"
    CANCELLED = "cancelled"  # nobody waits any more; the jobs go on


class Watch(Frozen):
    """How a wait stands now."""

    watch: str = Field(description="Whoever knows it may ask for it, if it is theirs.")
    state: WatchState
    message: str = Field(description="How the jobs stand, in a few words.")
    created_at: datetime
    updated_at: datetime
    kept_s: float = Field(description="From created_at: so long it can be asked for.")
    waited: Waited | None = Field(default=None, description="Once it is completed: what job_wait answers.")
