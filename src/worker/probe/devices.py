"""From what the driver said to devices that a broker can place jobs on. Pure: one snapshot in, one list out.

What makes no sense is not believed: free memory above the total, a process that has more than the device. A number
that can't be had is None, and never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.wire.machines import Gpu, GpuHealth, GpuProcess, GpuState
from worker.probe.snapshot import Device, ProcessFacts, Snapshot, Use

MIB = 1 << 20
MOST_MIB = 1 << 26  # 64 TiB: what claims more is garbage
MOST_PROCESSES = 512  # those with the most memory
HELD_MB = 1024
"""More than this, used by nobody who can be seen, is somebody's memory: drivers take a few hundred at most."""
HELD_WITHOUT_V2_MB = 2048
"""Where the driver does not say how much it takes for itself."""


HELD_OURS_MB = 256
"""Where the driver itself names a process of ours that is gone."""


@dataclass(frozen=True)
class Tree:
    """The processes of one assignment: what leads from one of them to its name."""

    name: str
    roots: frozenset[tuple[int, int | None]]  # (pid, start time) of its shim and its main process
    group: str | None  # the end of its cgroup's path: /jobd-0f3a/42.1


@dataclass(frozen=True)
class Found:
    """All that one look says of GPUs."""

    state: GpuState
    why: str | None
    driver: str | None
    cuda: str | None
    gpus: list[Gpu]


@dataclass
class Devices:
    """Remembers from one look to the next what a single snapshot can't tell: who a lost device was, and since when
    memory is held. `held_s`: for how long, before it is said to be."""

    held_s: float = 15.0
    _known: list[Gpu] = field(default_factory=list)
    _held_since: dict[str, float] = field(default_factory=dict)
    _ours: dict[str, dict[int, str]] = field(default_factory=dict)  # device → pid → the job that it belonged to

    def found(self, snapshot: Snapshot, trees: Sequence[Tree], now_s: float) -> Found:
        """`now_s`: of a clock that is never set back."""
        if snapshot["state"] != "ok":
            return self._none(snapshot)
        gpus = [self._gpu(device, snapshot["processes"], trees, now_s) for device in snapshot["devices"]]
        uuids = {gpu.uuid for gpu in gpus}
        self._held_since = {uuid: since for uuid, since in self._held_since.items() if uuid in uuids}
        self._known = gpus
        return Found(GpuState.OK, None, snapshot["driver"], snapshot["cuda"], gpus)

    def _none(self, snapshot: Snapshot) -> Found:
        """Nothing can be said of devices; those that were there are still shown."""
        self._held_since = {}
        if snapshot["state"] == "absent":
            self._known = []
            return Found(GpuState.ABSENT, snapshot["why"], None, None, [])
        self._known = [
            Gpu(
                uuid=gpu.uuid,
                index=gpu.index,
                model=gpu.model,
                parent=gpu.parent,
                health=GpuHealth.UNKNOWN,
                why=snapshot["why"],
                unified=gpu.unified,
                total_mb=gpu.total_mb,
            )
            for gpu in self._known
        ]
        return Found(GpuState.UNKNOWN, snapshot["why"], None, None, self._known)

    def _gpu(self, device: Device, processes: Mapping[str, ProcessFacts], trees: Sequence[Tree], now_s: float) -> Gpu:
        uuid = device["uuid"] or self._uuid_at(device)
        memory = _Memory.of(device)
        uses = None if device["uses"] is None else [_process(use, memory, processes, trees) for use in device["uses"]]
        gone = self._gone(uuid, uses)
        gone_mb = sum(use.mb or 0 for use in uses or () if use.pid in gone)
        uses = uses if uses is None else [use for use in uses if use.pid not in gone]
        unseen = memory.unseen_mb(uses)
        held = self._is_held(uuid, unseen, memory, now_s, gone_mb)
        health, why = _health(device, memory)
        if health is GpuHealth.OK and held:
            health = GpuHealth.MEMORY_HELD
            why = f"{(unseen or 0) / 1024:.1f} GiB of it are used, and by no process that can be seen"
            why += f"; {', '.join(sorted(set(gone.values())))} had it and is gone" if gone else ""
        return Gpu(
            uuid=uuid,
            index=device["index"],
            model=device["model"] or self._model_of(uuid),
            parent=device["parent"],
            health=health,
            why=why,
            unified=device["unified"],
            total_mb=memory.total,
            free_mb=memory.free,
            driver_mb=memory.driver,
            utilisation=device["utilisation"],
            processes=uses if uses is None else sorted(uses, key=lambda use: -(use.mb or 0))[:MOST_PROCESSES],
            unseen_mb=unseen,
        )

    def _gone(self, uuid: str | None, uses: Sequence[GpuProcess] | None) -> dict[int, str]:
        """Processes that the driver still names and that are no more: pid → the job that they belonged to."""
        if uuid is None or uses is None:
            return {}
        before = self._ours.get(uuid, {})
        gone = {use.pid: before[use.pid] for use in uses if not use.seen and use.pid in before}
        self._ours[uuid] = gone | {use.pid: use.job for use in uses if use.job is not None}
        return gone

    def _is_held(self, uuid: str | None, unseen: int | None, memory: _Memory, now_s: float, gone_mb: int) -> bool:
        limit = HELD_MB if memory.driver is not None else HELD_WITHOUT_V2_MB
        if uuid is None or ((unseen is None or unseen <= limit) and gone_mb < HELD_OURS_MB):
            self._held_since.pop(uuid or "", None)
            return False
        return now_s - self._held_since.setdefault(uuid, now_s) >= self.held_s

    def _uuid_at(self, device: Device) -> str | None:
        """A card that is lost, or garbled, does not say its name; the one that was there before is meant."""
        before = [gpu for gpu in self._known if gpu.index == device["index"] and gpu.parent == device["parent"]]
        return before[0].uuid if len(before) == 1 else None

    def _model_of(self, uuid: str | None) -> str | None:
        return next((gpu.model for gpu in self._known if gpu.uuid == uuid), None)


@dataclass(frozen=True)
class _Memory:
    """Whole MiB, or None."""

    total: int | None
    free: int | None
    driver: int | None
    nonsense: str | None = None

    @staticmethod
    def of(device: Device) -> _Memory:
        total, free, driver = (_mib(device["total"]), _mib(device["free"]), _mib(device["driver"]))
        if device["total"] is None or device["free"] is None:
            return _Memory(None, None, None)
        if not total or free is None or free > total:
            return _Memory(None, None, None, f"it says {device['free']} of {device['total']} bytes are free")
        return _Memory(total, free, driver if driver is not None and driver <= total - free else None)

    def unseen_mb(self, uses: Sequence[GpuProcess] | None) -> int | None:
        """What is used, less the driver's share and what each process has. None where one of these can't be told."""
        if self.total is None or self.free is None or uses is None or any(use.mb is None for use in uses):
            return None
        return max(0, self.total - self.free - (self.driver or 0) - sum(use.mb or 0 for use in uses))


def _health(device: Device, memory: _Memory) -> tuple[GpuHealth, str | None]:
    faults = "; ".join(f"{what}: {why}" for what, why in device["faults"].items())[:250] or None
    if device["lost"]:
        return GpuHealth.LOST, faults or "GPU is lost"
    if device["unhealthy"]:
        return GpuHealth.UNHEALTHY, device["unhealthy"]
    if device["uuid"] is None:
        return GpuHealth.UNHEALTHY, faults or "it does not say who it is"
    if memory.nonsense:
        return GpuHealth.UNHEALTHY, memory.nonsense
    if device["partitioned"]:
        return GpuHealth.PARTITIONED, faults or "it is in MIG mode and has no instances"
    if memory.total is None and not device["unified"]:
        return GpuHealth.UNHEALTHY, faults or "it does not say how much memory it has"
    return GpuHealth.OK, faults


def _process(use: Use, memory: _Memory, processes: Mapping[str, ProcessFacts], trees: Sequence[Tree]) -> GpuProcess:
    mb = _mib(use["bytes"])
    if mb is not None and memory.total is not None and mb > memory.total - (memory.free or 0):
        mb = None  # more than is used at all: not in bytes, or no number
    facts = processes.get(str(use["pid"]))
    if facts is None:
        return GpuProcess(pid=use["pid"], mb=mb, seen=False)
    owner = next((tree.name for tree in trees if _belongs(facts, tree)), None)
    return GpuProcess(pid=use["pid"], mb=mb, job=owner, user=facts["user"], name=facts["name"])


def _belongs(facts: ProcessFacts, tree: Tree) -> bool:
    """By its cgroup; else by its parents up to the shim, to whom whatever was orphaned there comes back."""
    if tree.group is not None and any(f"{tree.group}/" in f"{path}/" for path in facts["groups"]):
        return True
    return any((ancestor["pid"], ancestor["start"]) in tree.roots for ancestor in facts["line"])


def _mib(size: int | None) -> int | None:
    if size is None or size < 0 or size // MIB > MOST_MIB:
        return None
    return size // MIB
