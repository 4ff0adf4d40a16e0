"""What a worker's machine has, as the worker saw it at one instant.

Sizes of device memory are whole MiB, other sizes GiB. What could not be found out is None, never 0.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from broker.wire.jobs import Frozen, Name, Text

Line = Annotated[Text, StringConstraints(max_length=300)]
Mib = Annotated[int, Field(ge=0, le=1 << 30)]
Gib = Annotated[float, Field(ge=0, le=1 << 30)]


class Cpus(Frozen):
    logical: int = Field(ge=1, le=1 << 20, description="Cores that the machine has.")
    usable: float = Field(gt=0, le=1 << 20, description="What this worker may use: affinity and cgroup limits.")
    load: float | None = Field(default=None, ge=0, description="Of the last minute.")


class Ram(Frozen):
    total: Gib = Field(description="Of the machine, or the cgroup's limit where that is less.")
    available: Gib


class Battery(Frozen):
    percent: int | None = Field(default=None, ge=0, le=100)
    on_battery: bool


FOREIGN_MB = 1024
"""A device of which more than this is used is nobody's alone: a desktop needs a few hundred."""


class GpuHealth(StrEnum):
    OK = "ok"
    MEMORY_HELD = "memory_held"  # much of its memory is used, and by no process that can be seen
    UNHEALTHY = "unhealthy"  # it answers, and says that it needs a reset, or what it says makes no sense
    LOST = "lost"  # it fell off the bus
    PARTITIONED = "partitioned"  # in MIG mode without instances: nothing of it can be given to a job
    UNKNOWN = "unknown"  # it was there; now nothing can be found out about it


class GpuProcess(Frozen):
    """A process that has memory of a device. One of our jobs has `job`, as 42.1; any other is foreign."""

    pid: int = Field(ge=0)
    mb: Mib | None = Field(default=None, description="None: the driver does not say.")
    job: Line | None = None
    user: Line | None = None
    name: Line | None = None
    seen: bool = Field(default=True, description="False: no such process here (another pid namespace, or gone).")


class Gpu(Frozen):
    """A device that can be given to a job: a card, or an instance of one in MIG mode."""

    uuid: Line | None = Field(description="None: lost before it was ever read.")
    index: int = Field(ge=0, le=4096)
    model: Line | None = None
    parent: Line | None = Field(default=None, description="Of a MIG instance: the card's uuid.")
    health: GpuHealth
    why: Line | None = Field(default=None, description="Why health is not ok, or what could not be found out.")
    unified: bool = Field(default=False, description="It has no memory of its own, but the machine's.")
    total_mb: Mib | None = None
    free_mb: Mib | None = None
    driver_mb: Mib | None = Field(default=None, description="What the driver keeps for itself.")
    utilisation: int | None = Field(default=None, ge=0, le=100)
    processes: list[GpuProcess] | None = Field(default=None, max_length=512, description="None: it can't be told.")
    unseen_mb: Mib | None = Field(
        default=None, description="Used, but neither by the driver nor by a process in the list."
    )

    @property
    def used_mb(self) -> int:
        """By anybody but the driver, as far as it is told."""
        if self.total_mb is None or self.free_mb is None:
            return sum(process.mb or 0 for process in self.processes or ())
        return max(0, self.total_mb - self.free_mb - (self.driver_mb or 0))


class GpuState(StrEnum):
    OK = "ok"  # the list of devices is what there is
    ABSENT = "absent"  # there is no GPU that jobs could use; `gpus_why` says what was looked for
    UNKNOWN = "unknown"  # there may be some: they can't be looked at, or not yet


class Facts(Frozen):
    """What the machine has. `number` grows with each that is told in an epoch: a broker keeps the highest."""

    number: int = Field(ge=1)
    cpus: Cpus
    ram_gb: Ram | None = None
    disk_free_gb: Gib | None = Field(default=None, description="Where the worker keeps its state.")
    battery: Battery | None = None
    gpu_state: GpuState
    gpus_why: Line | None = Field(default=None, description="Where the state is not ok.")
    driver: Line | None = None
    cuda: Line | None = Field(default=None, description="The newest CUDA that the driver can do.")
    gpus: list[Gpu] = Field(default=[], max_length=512)


class GpuShare(Frozen):
    """What an assignment was given of one device. Without `mb` it is the assignment's alone."""

    uuid: Line
    mb: Mib | None = None


class Given(Frozen):
    """What an assignment was given besides cpus: reserved with it, and free when its tree is known gone."""

    gpus: list[GpuShare] | None = None
    ram_gb: Gib | None = None
    resources: dict[Name, int] | None = None


class Vram(Frozen):
    total: float | None = None
    free: float | None = Field(default=None, description="Now, whoever uses the rest.")
    foreign: float | None = Field(default=None, description="Used by processes that are none of our jobs.")
    unseen: float | None = Field(default=None, description="Used by no process that can be seen.")
    reserved: float | None = Field(default=None, description="Given to assignments, whether they use it yet or not.")


class ForeignProcess(Frozen):
    pid: int
    user: str | None = None
    name: str | None = None
    gb: float | None = None


class HeldMemory(Frozen):
    """Memory of a device that no process has any more, and that is not free."""

    gb: float | None = None
    since: datetime = Field(description="When the broker heard of it.")


class WorkerGpu(Frozen):
    uuid: str | None = None
    index: int
    model: str | None = None
    parent: str | None = None
    vram_gb: Vram | None = None
    unified: bool | None = None
    utilisation: int | None = None
    health: GpuHealth
    why: str | None = None
    held: HeldMemory | None = Field(default=None, description="With health memory_held.")
    jobs: list[str] | None = Field(
        default=None, description="Assignments that were given it, or whose processes use it, as 42.1"
    )
    foreign: list[ForeignProcess] | None = None
    exclusive: bool | None = Field(default=None, description="One assignment has it for itself.")
    ignored: str | None = Field(default=None, description="The worker that has this device already.")


TagSetting = Annotated[str, StringConstraints(pattern=r"^-?[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A tag; with a minus before it, one that was found and is not to be shown."""

ResourceSetting = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}=[0-9]{1,6}$")]
"""Something that a worker has a number of, as license=2."""
