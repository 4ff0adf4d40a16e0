"""Does this worker fit this job? Reasons, not a boolean: no reasons means that it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from broker.core.placement import NOTHING, Demand, Host, impossible, possible, short
from broker.wire.jobs import JobSpec, Reason
from broker.wire.workers import WorkerState

COPIES = "snapshot copies"
"""What a worker needs for a job that runs in a copy; no tag that anybody could give it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The requirements that jobs share. Dispatch asks per shape, so its cost is that of the shapes.

    Never cwd, env or labels: these would make a shape of every job.
    """

    cpus: float
    needs: tuple[str, ...]
    worker: str | None
    project: str
    demand: Demand = NOTHING
    os: str | None = None
    arch: str | None = None
    token: str | None = None
    """Who submitted it, where that token has a quota: jobs that wait for different quotas are not alike."""
    array: int | None = None
    """Its array, where only some of the members may run at once."""

    @staticmethod
    def of(spec: JobSpec, token: str | None = None) -> Shape:
        needs = tuple(sorted({*(spec.needs or ()), *([COPIES] if spec.copied else [])}))
        return Shape(
            spec.cpus,
            needs,
            spec.worker,
            spec.project,
            Demand.of(spec),
            spec.os,
            spec.arch and _architecture(spec.arch),
            token,
        )

    def key(self) -> str:
        """Canonical text: equal shapes have equal keys. Of one that asks for nothing else it is what it always was."""
        words: list[object] = [self.cpus, self.needs, self.worker, self.project]
        demand = self.demand
        if demand or self.os or self.arch or self.token or self.array:
            words += [demand.gpus, demand.vram_mb, demand.ram_gb, demand.resources, self.os, self.arch]
        if self.token or self.array:
            words.append(self.token)
        if self.array:
            words.append(self.array)
        return json.dumps(words, separators=(",", ":"))

    @staticmethod
    @lru_cache(maxsize=1024)
    def from_key(key: str) -> Shape:
        cpus, needs, worker, project, *more = json.loads(key)
        if not more:
            return Shape(cpus, tuple(needs), worker, project)
        gpus, vram_mb, ram_gb, resources, os, arch, *whose = more
        demand = Demand(gpus, vram_mb, ram_gb, tuple((name, count) for name, count in resources))
        return Shape(cpus, tuple(needs), worker, project, demand, os, arch, *whose)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a worker offers, and what is left of it."""

    name: str
    online: bool
    slots: float
    free: float
    tags: frozenset[str]
    closed: WorkerState | None = None
    """Why it is given no new work, though it is there."""
    closed_why: str | None = None
    """And what for, where the broker decided it by itself."""
    platform: str | None = None
    gpus: int = 0
    """How many devices it shows: without any, its host is not looked at."""
    host: Host | None = field(default=None, compare=False)
    """What it has besides cpus; None where nobody asks for that."""


def fits(shape: Shape, machine: Machine) -> bool:
    """Whether there are no `reasons`: for where many are asked and nobody is told."""
    if not machine.online or machine.closed is not None or shape.cpus > machine.free or not suits(shape, machine):
        return False
    return not shape.demand or machine.host is None or not short(_to_ask(shape, machine), machine.host)


def could(shape: Shape, machine: Machine) -> bool:
    """Whether `never` has nothing against it: likewise without words."""
    if not suits(shape, machine):
        return False
    return not shape.demand or machine.host is None or possible(shape.demand, machine.host)


def suits(shape: Shape, machine: Machine) -> bool:
    """Whether it could ever run there, by what needs no look at its devices and memory."""
    if shape.worker is not None and shape.worker != machine.name:
        return False
    if shape.cpus > machine.slots or not machine.tags.issuperset(shape.needs):
        return False
    if (shape.os is not None or shape.arch is not None) and _another_platform(shape, machine):
        return False
    return bool(machine.gpus) or not shape.demand.gpus


def never(shape: Shape, machine: Machine) -> list[Reason]:
    """Why this worker could not run the shape even with nothing else to do."""
    found = _unfit(shape, machine)
    if shape.demand and machine.host is not None:
        found += impossible(_to_ask(shape, machine), machine.host)
    return found


def _unfit(shape: Shape, machine: Machine) -> list[Reason]:
    """The same, by what needs no look at its devices and memory."""
    found = []
    if shape.worker is not None and shape.worker != machine.name:
        found.append(Reason(code="worker", message=f"the job is pinned to {shape.worker}"))
    missing = [tag for tag in shape.needs if tag not in machine.tags]
    if missing:
        found.append(Reason(code="tags", message=f"{machine.name} lacks {', '.join(missing)}"))
    if shape.cpus > machine.slots:
        message = f"needs {shape.cpus:g} cpus, {machine.name} has {machine.slots:g}"
        found.append(Reason(code="cpus", message=message, need=shape.cpus, have=machine.slots))
    found += _another_platform(shape, machine)
    if shape.demand.gpus and not machine.gpus:
        message = f"needs a GPU, {machine.name} shows none"
        found.append(Reason(code="gpus", message=message, need=shape.demand.gpus, have=0))
    return found


def _to_ask(shape: Shape, machine: Machine) -> Demand:
    """What its host is asked for: that there is no device at all is said already."""
    return shape.demand if machine.gpus else replace(shape.demand, gpus=0)


def _another_platform(shape: Shape, machine: Machine) -> list[Reason]:
    os, _, arch = (machine.platform or "").partition("-")
    os, arch = "macos" if os == "darwin" else os, _architecture(arch)
    found = []
    if shape.os is not None and shape.os != os:
        found.append(Reason(code="os", message=f"needs {shape.os}, {machine.name} has {os or 'not said what'}"))
    if shape.arch is not None and shape.arch != arch:
        found.append(Reason(code="arch", message=f"needs {shape.arch}, {machine.name} has {arch or 'not said what'}"))
    return found


def _architecture(name: str) -> str:
    """One name for each: systems don't agree on them."""
    return {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}.get(name.lower(), name.lower())


def reasons(shape: Shape, machine: Machine) -> list[Reason]:
    """Why this worker can't take a job of this shape now: all of it, not only the first."""
    found = _unfit(shape, machine)
    if not machine.online:
        found.append(Reason(code="offline", message=f"{machine.name} is not online"))
    elif machine.closed is not None:
        found.append(Reason(code="closed", message=f"{machine.name} is {_closed(machine)}"))
    if machine.free < shape.cpus <= machine.slots:
        message = f"needs {shape.cpus:g} cpus, {machine.name} has {max(0.0, machine.free):g} free"
        found.append(Reason(code="busy", message=message, need=shape.cpus, have=max(0.0, machine.free)))
    if shape.demand and machine.host is not None:
        found += short(_to_ask(shape, machine), machine.host)
    return found


def _closed(machine: Machine) -> str:
    word = (machine.closed or "").replace("_", " ")
    return f"{word}: {machine.closed_why}" if machine.closed_why else word


def waiting(
    shape: Shape,
    machines: Sequence[Machine],
    refused: Sequence[tuple[str, Reason]],
    kept: Mapping[str, Reason] | None = None,
) -> Reason:
    """Why a queued job waits, in one sentence. `refused`: (worker, why) that still hold for its place; `kept`: worker →
    for whom its room is kept."""
    able = [m for m in machines if not never(shape, m)]
    if not machines:
        return Reason(code="no_worker", message="no worker has registered yet; one just started takes a second or two")
    if not able:
        why = "; ".join(never(shape, m)[0].message for m in machines[:3])
        return Reason(code="no_worker_fits", message=f"no worker fits: {why}")
    online = [m for m in able if m.online]
    if not online:
        return Reason(code="workers_offline", message=f"not online: {', '.join(m.name for m in able[:5])}")
    serving = [m for m in online if m.closed is None]
    if not serving:
        by_themselves = all(m.closed in (WorkerState.PAUSED, WorkerState.NOT_POLLING) for m in online)
        code = "workers_paused" if by_themselves else "workers_cordoned"
        return Reason(
            code=code, message=f"no new work for: {', '.join(f'{m.name} ({_closed(m)})' for m in online[:5])}"
        )
    online = serving
    saying_no = dict(refused)
    if all(m.name in saying_no or "*" in saying_no for m in online):
        first = next(iter(saying_no.values()))
        hosts = ", ".join(sorted(m.name for m in online)[:5])
        return Reason(code=first.code, message=f"{first.message} (refused by {hosts})")
    if all(shape.cpus > m.free for m in online if m.name not in saying_no):
        free = max(m.free for m in online)
        return Reason(
            code="capacity",
            message=f"needs {shape.cpus:g} cpus; at most {free:g} free on {len(online)} fitting worker(s)",
        )
    short_of = [reasons(shape, machine) for machine in serving if machine.name not in saying_no]
    if all(short_of):
        firsts = sorted((found[0] for found in short_of), key=lambda reason: reason.code == "busy")
        return firsts[0].model_copy(update={"message": "; ".join(reason.message for reason in firsts[:3])})
    ready = [machine.name for machine in serving if machine.name not in saying_no and not reasons(shape, machine)]
    if kept and all(name in kept for name in ready):
        return kept[ready[0]]
    return Reason(code="dispatching", message="about to be given to a worker")
