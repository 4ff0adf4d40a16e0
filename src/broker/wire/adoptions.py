"""What is said to make a process that is running already a job."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from broker.wire.jobs import Frozen, Name
from broker.wire.leases import Identity

SAID = frozenset(
    {
        *("name", "project", "labels", "priority", "cpus", "ram_gb", "vram_gb", "resources", "preemptible"),
        *("max_wall_s", "idle_timeout_s", "gpu_idle_timeout_s", "checkpoint_grace_s"),
    }
)
"""Fields of a specification that mean something for what runs already."""
LATEST_START = 1 << 62


class AdoptRequest(Frozen):
    """Which process, and how its job is kept from now on.

    `start` tells it from a later process with its id: field 22 of its /proc/PID/stat, and before it the machine and boot
    on which that was read, as workers register them: MACHINE:BOOT:START.
    """

    pid: int = Field(ge=1, le=1 << 31)
    worker: Name | None = None
    spec: dict[str, Any] | None = Field(default=None, description="As for job_submit.")
    start: Identity | None = None

    @model_validator(mode="after")
    def _start_can_be_read(self) -> AdoptRequest:
        _, colon, ticks = (self.start or ":0").rpartition(":")
        if not colon or not ticks.isascii() or not ticks.isdigit() or int(ticks) > LATEST_START:
            raise ValueError("start is MACHINE:BOOT:START, the last of them field 22 of /proc/PID/stat")
        return self

    @property
    def machine(self) -> str | None:
        """Where its start was read."""
        return self.start.rpartition(":")[0] if self.start is not None else None

    def started_on(self, machine: str) -> int | None:
        """Its start, if it was read on that machine."""
        return int(self.start.rpartition(":")[2]) if self.start is not None and self.machine == machine else None
