"""Which devices a job is given, and why there are none for it. Pure: what the worker said, what is reserved, in; a choice out.

Free memory of a device is what its driver says is free now, less what our jobs there reserved and do not use yet, less a
margin. What they use is not free already, and so is not taken off again; nor is what foreign processes use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from broker.wire.jobs import JobSpec, Reason
from broker.wire.machines import FOREIGN_MB, Facts, Given, Gpu, GpuHealth, GpuShare

MARGIN_MB = 512
"""Sizes that workers tell may be off by a step of 256 MiB, of the device and of a process on it."""
RAM_MARGIN_GB = 0.25
"""The worker looks again before it runs anything, and what is available is never the same twice."""
MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job asks for besides cpus. `vram_mb` None: devices for itself."""

    gpus: int = 0
    vram_mb: int | None = None
    ram_gb: float = 0.0
    resources: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(spec: JobSpec) -> Demand:
        vram_mb = None if spec.vram_gb is None else math.ceil(spec.vram_gb * 1024)
        gpus = spec.gpus if spec.gpus is not None else 1 if vram_mb is not None else 0
        return Demand(gpus, vram_mb, spec.ram_gb or 0.0, tuple(sorted((spec.resources or {}).items())))

    def __bool__(self) -> bool:
        return bool(self.gpus or self.ram_gb or self.resources)


NOTHING = Demand()


@dataclass(frozen=True, slots=True)
class Held:
    """What one assignment holds, wherever it runs. `here`: on the worker that is looked at."""

    assignment: str
    given: Given
    here: bool = True


@dataclass(frozen=True)
class Host:
    """What a worker has besides cpus. `others`: devices that it shows, and that another worker has."""

    name: str
    facts: Facts | None
    resources: tuple[tuple[str, int], ...] = ()
    held: tuple[Held, ...] = ()
    others: frozenset[str] = frozenset()
    ram_foreign_gb: float | None = None
    """Memory that none of our jobs has; found out from the facts, by what is held when they are read."""
    _devices: list[Device] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        gpus = self.facts.gpus if self.facts is not None else []
        object.__setattr__(self, "_devices", [self._device(gpu) for gpu in gpus])
        if self.ram_foreign_gb is None and self.facts is not None and self.facts.ram_gb is not None:
            ram = self.facts.ram_gb
            foreign_gb = max(0.0, ram.total - ram.available - self.ram_reserved_gb)
            object.__setattr__(self, "ram_foreign_gb", foreign_gb + RAM_MARGIN_GB)

    @property
    def devices(self) -> Sequence[Device]:
        return self._devices

    @property
    def ram_gb(self) -> float | None:
        return self.facts.ram_gb.total if self.facts is not None and self.facts.ram_gb is not None else None

    @property
    def ram_reserved_gb(self) -> float:
        return sum(held.given.ram_gb or 0.0 for held in self.held if held.here)

    @property
    def ram_free_gb(self) -> float:
        """What is neither reserved nor used, by whomever: the worker looks at that too, before it runs anything."""
        return max(0.0, self.ram_at_rest_gb - self.ram_reserved_gb)

    @property
    def ram_at_rest_gb(self) -> float:
        """What there would be if no job of ours ran."""
        return max(0.0, (self.ram_gb or 0.0) - (self.ram_foreign_gb or 0.0))

    def used(self, resource: str) -> int:
        return sum((held.given.resources or {}).get(resource, 0) for held in self.held if held.here)

    def with_(self, held: Held) -> Host:
        """The same after something was given away."""
        return replace(self, held=(*self.held, held))

    def without(self, gone: Collection[str]) -> Host:
        """The same once these assignments have ended: what they use is free again, too."""
        held = tuple(held for held in self.held if held.assignment not in gone)
        if self.facts is None:
            return replace(self, held=held)
        gpus = [_freed(device, gone) for device in self.devices]
        return replace(self, held=held, facts=self.facts.model_copy(update={"gpus": gpus}))

    def _device(self, gpu: Gpu) -> Device:
        shares = {
            held.assignment: share for held in self.held for share in held.given.gpus or () if share.uuid == gpu.uuid
        }
        return Device(gpu, shares, has=gpu.uuid is not None and gpu.uuid not in self.others)


@dataclass(frozen=True)
class Device:
    """One device, with what is reserved on it: assignment → its share."""

    gpu: Gpu
    shares: dict[str, GpuShare]
    has: bool = True

    @property
    def usable(self) -> bool:
        return self.has and self.gpu.health is GpuHealth.OK

    @property
    def exclusive(self) -> bool:
        return any(share.mb is None for share in self.shares.values())

    @property
    def reserved_mb(self) -> int:
        return sum(share.mb or 0 for share in self.shares.values())

    @property
    def free_mb(self) -> int | None:
        """For one more that shares it; None: it does not say."""
        gpu = self.gpu
        if gpu.free_mb is None or gpu.total_mb is None:
            return None
        if self.exclusive:
            return 0
        unused = sum(max(0, (share.mb or 0) - self._used_mb(name)) for name, share in self.shares.items())
        return max(0, min(gpu.free_mb - unused, gpu.total_mb - self.reserved_mb) - MARGIN_MB)

    @property
    def foreign_mb(self) -> int:
        """Used by whoever is no job that it was given to: also memory that a job which has ended gives back just now."""
        if not self.shares:
            return self.gpu.used_mb
        return sum(process.mb or 0 for process in self.gpu.processes or () if process.job not in self.shares)

    @property
    def idle(self) -> bool:
        """Whether a job may have it for itself. A device that tells neither its memory nor its processes is not known,
        but for one that has no memory of its own: nobody else can be in the way there."""
        told = self.gpu.unified or self.gpu.free_mb is not None or self.gpu.processes is not None
        return told and not self.shares and self.foreign_mb <= FOREIGN_MB

    def alone(self, demand: Demand) -> bool:
        """A MIG instance, for a job that wants several devices: a program sees only one of those."""
        return demand.gpus > 1 and self.gpu.parent is not None

    def fits(self, demand: Demand) -> bool:
        if not self.usable or self.alone(demand):
            return False
        if demand.vram_mb is None:
            return self.idle
        free_mb = self.free_mb
        return free_mb is not None and free_mb >= demand.vram_mb

    def could_fit(self, demand: Demand) -> bool:
        """With nothing else on it."""
        if not self.has or self.alone(demand):
            return False
        if demand.vram_mb is None:
            return True
        return self.gpu.total_mb is not None and self.gpu.total_mb - (self.gpu.driver_mb or 0) - MARGIN_MB >= (
            demand.vram_mb
        )

    def _used_mb(self, assignment: str) -> int:
        """What cannot be told counts as not used yet: the reservation stays whole."""
        uses = [process.mb for process in self.gpu.processes or () if process.job == assignment]
        return sum(mb or 0 for mb in uses)

    def __str__(self) -> str:
        """In one breath why it is not free: GPU 0: 3.1 of 24 GiB free, 20 reserved, 0.4 used by others."""
        gpu = self.gpu
        if not self.has:
            return f"GPU {gpu.index} is another worker's"
        if gpu.health is not GpuHealth.OK:
            return f"GPU {gpu.index} is {gpu.health.value}"
        if self.exclusive:
            return f"GPU {gpu.index} is {' '.join(sorted(self.shares))}'s alone"
        parts = [f"GPU {gpu.index}: {gib(self.free_mb)} of {gib(gpu.total_mb)} GiB free"]
        if self.shares:
            parts.append(f"{gib(self.reserved_mb)} reserved by {', '.join(sorted(self.shares)[:MOST_NAMED])}")
        if self.foreign_mb >= MARGIN_MB:
            parts.append(f"{gib(self.foreign_mb)} used by others{self._others()}")
        return ", ".join(parts)

    def _others(self) -> str:
        """Who they are, as far as that is known."""
        others = [one for one in self.gpu.processes or () if one.job not in self.shares and one.name]
        told = ", ".join(f"{one.name} ({one.user or '?'}, pid {one.pid})" for one in others[:2])
        return f": {told}" if told else ""


def _freed(device: Device, gone: Collection[str]) -> Gpu:
    """A device as it tells when these assignments have ended."""
    gpu = device.gpu
    shares = {name: share for name, share in device.shares.items() if name in gone}
    if not shares or gpu.free_mb is None or gpu.total_mb is None:
        return gpu
    most_mb = gpu.total_mb - (gpu.driver_mb or 0)
    untold = {name: share for name, share in shares.items() if not _is_told(gpu, name)}
    rest = [one for one in gpu.processes or () if one.job not in gone and (one.seen or not untold)]
    if any(share.mb is None for share in shares.values()):  # it was one job's alone: all but what others have
        free_mb = most_mb - sum(one.mb or 0 for one in rest)
    else:
        told_mb = sum(one.mb or 0 for one in gpu.processes or () if one.job in shares and one.job not in untold)
        nobodys_mb = gpu.used_mb - told_mb - sum(one.mb or 0 for one in rest)
        free_mb = gpu.free_mb + told_mb + min(sum(share.mb or 0 for share in untold.values()), max(0, nobodys_mb))
    return gpu.model_copy(update={"processes": rest, "free_mb": max(0, min(free_mb, most_mb))})


def _is_told(gpu: Gpu, assignment: str) -> bool:
    """Whether all that it uses is known: not of one behind another pid namespace, nor where sizes are not told."""
    mine = [one for one in gpu.processes or () if one.job == assignment]
    return bool(mine) and all(one.mb is not None for one in mine)


def choose(demand: Demand, host: Host) -> Given | None:
    """What a job of this demand is given on this host; None if it does not fit now.

    The fullest devices that still fit: for a job that shares, those with the least left; for one that does not, the
    smallest. So room for larger jobs is kept.
    """
    if short(demand, host):
        return None
    shares = None
    if demand.gpus:
        fitting = sorted((device for device in host.devices if device.fits(demand)), key=lambda d: _size(d, demand))
        shares = [GpuShare(uuid=device.gpu.uuid or "", mb=demand.vram_mb) for device in fitting[: demand.gpus]]
    return Given(gpus=shares, ram_gb=demand.ram_gb or None, resources=dict(demand.resources) or None)


def impossible(demand: Demand, host: Host) -> list[Reason]:
    """What this host could not give even with nothing else on it."""
    return [said() for said in _impossible(demand, host)]


def possible(demand: Demand, host: Host) -> bool:
    """Whether there is nothing of that: for where many are asked and nobody is told."""
    return next(_impossible(demand, host), None) is None


def _impossible(demand: Demand, host: Host) -> Iterator[Callable[[], Reason]]:
    """Words cost more than the look, so they are for whoever wants them."""
    if demand.gpus and sum(device.could_fit(demand) for device in host.devices) < demand.gpus:
        yield partial(_too_few, demand, host)
    if demand.ram_gb and (host.ram_gb is None or demand.ram_gb > host.ram_gb):
        yield partial(_too_little_ram, demand.ram_gb, host)
    has_of = dict(host.resources)
    for name, count in demand.resources:
        if count > has_of.get(name, 0):
            yield partial(_too_few_of, name, count, has_of.get(name, 0), host)


def short(demand: Demand, host: Host) -> list[Reason]:
    """What it can't give now: of each thing the numbers of now, or, if it never could, of that."""
    found = impossible(demand, host)
    never = {reason.code for reason in found}
    if demand.gpus and not never & {"gpus", "vram"}:
        fitting = sum(device.fits(demand) for device in host.devices)
        if fitting < demand.gpus:
            found.append(_too_few_now(demand, host, fitting))
    if demand.ram_gb and "ram" not in never:
        left = host.ram_free_gb
        if demand.ram_gb > left:
            message = f"needs {demand.ram_gb:g} GiB of RAM, {host.name} has {left:.3g} neither reserved nor used"
            found.append(_reason("ram_busy", message, demand.ram_gb, math.floor(left)))
    has_of = dict(host.resources)
    for name, count in demand.resources:
        if count > has_of.get(name, 0):
            continue
        left_of = has_of[name] - host.used(name)
        if count > left_of:
            message = f"needs {count} {name}, {host.name} has {max(0, left_of)} free of {has_of[name]}"
            found.append(_reason("resources_busy", message, count, max(0, left_of)))
    return found


def _size(device: Device, demand: Demand) -> tuple[int, int]:
    if demand.vram_mb is None:
        return device.gpu.total_mb or 0, device.gpu.index
    return device.free_mb or 0, device.gpu.index


def _too_little_ram(ram_gb: float, host: Host) -> Reason:
    has = "does not say how much it has" if host.ram_gb is None else f"has {host.ram_gb:g}"
    at_rest = math.floor(host.ram_at_rest_gb) if host.ram_gb is not None else None
    return _reason("ram", f"needs {ram_gb:g} GiB of RAM, {host.name} {has}", ram_gb, at_rest)


def _too_few_of(name: str, count: int, has: int, host: Host) -> Reason:
    return _reason("resources", f"needs {count} {name}, {host.name} has {has or 'none'}", count, has)


def _too_few(demand: Demand, host: Host) -> Reason:
    mine = [device for device in host.devices if device.has and not device.alone(demand)]
    if len(mine) < demand.gpus or demand.vram_mb is None:
        instances = any(device.alone(demand) for device in host.devices)
        besides = " besides MIG instances, of which a program sees only one" if instances else ""
        message = f"needs {_wanted(demand)}, {host.name} has {len(mine) or 'none'}{besides}"
        return _reason("gpus", message, demand.gpus, len(mine))
    able = sorted((_most_mb(device) for device in mine), reverse=True)[demand.gpus - 1]
    what = "the largest has" if demand.gpus == 1 else f"{demand.gpus} of them have"
    message = f"needs {_wanted(demand)}; {what} {gib(able)} for jobs on {host.name}"
    return _reason("vram", message, _up(demand.vram_mb), _down(able))


def _too_few_now(demand: Demand, host: Host, fitting: int) -> Reason:
    usable = [device for device in host.devices if device.usable]
    told = "; ".join(str(device) for device in host.devices[:MOST_NAMED])
    message = f"needs {_wanted(demand)}, {host.name} has {fitting or 'none'} free now: {told}"
    if len(usable) < demand.gpus:
        return _reason("gpus_unusable", message, demand.gpus, len(usable))
    if demand.gpus == 1 and demand.vram_mb is not None:
        most = max(device.free_mb or 0 for device in usable)
        return _reason("gpus_busy", message, _up(demand.vram_mb), _down(most))
    return _reason("gpus_busy", message, demand.gpus, fitting)


def _wanted(demand: Demand) -> str:
    if demand.vram_mb is None:
        return f"{demand.gpus} GPU{'s' if demand.gpus > 1 else ''} of its own"
    return f"{demand.gpus} GPU{'s' if demand.gpus > 1 else ''} with {gib(demand.vram_mb)} GiB"


def _most_mb(device: Device) -> int:
    return max(0, (device.gpu.total_mb or 0) - (device.gpu.driver_mb or 0) - MARGIN_MB)


def _reason(code: str, message: str, need: float, have: float | None) -> Reason:
    return Reason(code=code, message=message, need=need, have=have)


def gib(mb: int | None) -> str:
    return "?" if mb is None else f"{_down(mb):g}"


def _down(mb: int) -> float:
    return math.floor(mb / 1024 * 10) / 10


def _up(mb: int) -> float:
    return math.ceil(mb / 1024 * 10) / 10
