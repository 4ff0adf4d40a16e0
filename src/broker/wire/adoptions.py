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


class AdoptRequest(Frozen):
    """Which process, and how its job is kept from now on."""

    pid: int = Field(ge=1, le=1 << 31)
    worker: Name | None = None
    spec: dict[str, Any] | None = Field(default=None, description="As for job_submit: name, limits, vram_gb.")
    start: int | None = Field(default=None, ge=0, le=1 << 62, description="Field 22 of its stat.")
    machine: Identity | None = None

    @model_validator(mode="after")
    def _start_is_of_a_machine(self) -> AdoptRequest:
        if self.start is not None and self.machine is None and self.worker is None:
            raise ValueError("start is of a process on one machine: say machine, or worker")
        return self
