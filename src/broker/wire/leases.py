"""A lease: devices, memory and slots of one machine for work that is no job, for as long as it is renewed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from broker.wire.jobs import Count, Frozen, Gibibytes, Limit, Name, Reason, Stopping, Text

LONGEST_TTL_S = 7 * 86_400
MAX_SHOWN = 4096
LESSEE = "JOBD_LESSEE"
"""In the holder's environment: `pid:start` of the lessee. For the holder itself, and for whoever counts memory."""

Shown = Annotated[Text, StringConstraints(max_length=MAX_SHOWN)]
Identity = Annotated[Text, StringConstraints(max_length=200)]


class LeaseState(StrEnum):
    """Where a lease stands. Its job says more."""

    WAITING = "waiting"  # in the queue, among jobs
    GRANTED = "granted"
    ENDING = "ending"  # to be given back: its command is to end
    ENDED = "ended"


class Lessee(Frozen):
    """The process for which a lease is: what it and its descendants have of a device is the lease's."""

    pid: int = Field(ge=1, le=1 << 31)
    start: int = Field(ge=0, le=1 << 62, description="Its start, as field 22 of /proc/PID/stat.")


class LeaseRequest(Frozen):
    """What is wanted, and for whom. The fields of a job, as far as they mean something here."""

    gpus: int | None = Field(default=None, ge=0, le=512, description="Exclusive without vram_gb.")
    vram_gb: Gibibytes | None = Field(default=None, description="Per GPU; shared.")
    cpus: float | None = Field(default=None, gt=0, le=4096, description="Slots it takes (default 1).")
    ram_gb: Gibibytes | None = None
    resources: dict[Name, Count] | None = Field(default=None, max_length=64)
    needs: list[Name] | None = Field(default=None, description="Tags of the worker.", max_length=64)
    worker: Name | None = Field(default=None, description="Of this worker; default: any on `machine`.")
    project: Name | None = None
    priority: int | None = Field(default=None, ge=-50, le=50, description="Higher comes first.")
    name: Annotated[Text, StringConstraints(max_length=200)] | None = None
    preemptible: bool | None = None
    scheduling_timeout_s: Limit | None = Field(default=None, description="Gives up the queue after so long.")
    grace_s: float | None = Field(
        default=None, ge=0, le=86_400, description="How long its command may take to end when it is to (default 10)."
    )
    ttl_s: float = Field(
        default=1200, gt=0, le=LONGEST_TTL_S, description="It ends when it was not renewed for so long."
    )
    what: Shown | None = Field(default=None, description="What is run under it: shown as the job's command.")
    machine: Identity | None = Field(
        default=None, description="The machine it is used on, as its workers register it: machine and boot."
    )
    lessee: Lessee | None = Field(default=None, description="Whose memory of the devices is the lease's.")

    @model_validator(mode="after")
    def _says_where(self) -> LeaseRequest:
        if self.machine is None and self.worker is None:
            raise ValueError("say where it is used: machine, or worker")
        if self.gpus == 0 and self.vram_gb is not None:
            raise ValueError("vram_gb is of a GPU, and gpus is 0")
        return self


class Lease(Frozen):
    """A lease as it stands now."""

    job: int = Field(description="The job that stands for it.")
    state: LeaseState
    worker: str | None = None
    gpus: list[str] | None = Field(default=None, description="The devices that it was given.")
    ttl_s: float
    expires_in_s: float | None = Field(default=None, description="Unless it is renewed.")
    idle: bool | None = Field(default=None, description="Its devices were not used for lease_idle_s.")
    waiting: Reason | None = None
    stopping: Stopping | None = None
    reason: Reason | None = None
