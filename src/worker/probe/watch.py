"""Looks at the machine now and then, and says so when something worth knowing has changed.

Small movements are not told: `moved` says which are small. So what the broker has may be off by that much, and an idle
fleet says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import structlog

from broker.wire.machines import Facts, Gpu, GpuState
from worker.patience import OutOfPatience, within
from worker.probe import resources
from worker.probe.devices import Devices, Found, Tree
from worker.probe.gpus import GpuProbe
from worker.probe.resources import Resources
from worker.process.clock import boot_s

log = structlog.get_logger("worker.probe")

LOOK_LIMIT_S = 10.0
GAP = 3.0  # looks that are further apart than so many usual pauses say nothing of the time between
GPU_STEP_MB = 256
RAM_STEP = 0.05  # of the total
DISK_STEP_GB = 1.0
DISK_SHORT_GB = 2.0  # below this every step counts
DISK_SHORT_STEP_GB = 0.1
LOAD_STEP = 0.25  # of the cores
BATTERY_STEP = 10
UTILISATION_STEP = 25

NOT_UNDERSTOOD = Found(GpuState.UNKNOWN, "the driver's answer was not understood", None, None, [])
NOT_YET = Found(GpuState.UNKNOWN, "not looked at yet", None, None, [])


class Watch:
    """`facts` are those to be told now; their number grows when they change. `on_change` is called for what must not
    wait: the rest goes with the next report, whenever that is."""

    def __init__(
        self,
        probe: GpuProbe,
        state: Path,
        every_s: float,
        devices: Devices | None = None,
        look: Callable[[Path], Resources] = resources.look,
    ) -> None:
        self._probe = probe
        self._state = state
        self.every_s = every_s
        self._devices = devices or Devices(held_s=3 * every_s)
        self._look = look
        self._found = NOT_YET
        self._one_asks = anyio.Lock()
        self.trees: Callable[[], Sequence[Tree]] = tuple
        self.on_change: Callable[[], None] = lambda: None
        self.on_look: Callable[[Sequence[Gpu], float], None] = lambda _gpus, _longest_gap_s: None
        self._resources = look(state)
        self.facts = _facts(1, self._resources, self._found)

    async def run(self) -> None:
        """Until cancelled. A driver that hangs holds up nothing but the news of its devices."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_gpus)
                tasks.start_soon(self._watch_resources)
        finally:
            with anyio.CancelScope(shield=True):
                await self._probe.aclose()

    async def _watch_gpus(self) -> None:
        while True:
            await self.devices_now()
            await anyio.sleep(self.every_s)

    async def devices_now(self) -> list[Gpu]:
        """What the devices are right now; what has changed is told."""
        async with self._one_asks:
            try:
                snapshot = await self._probe.look()
                trees = self.trees() if snapshot["processes"] else ()
                self._found = self._devices.found(snapshot, trees, boot_s())
            except Exception:
                if self._found is not NOT_UNDERSTOOD:
                    log.exception("the GPU probe's answer was not understood; the worker goes on without it")
                self._found = NOT_UNDERSTOOD
            self.on_look(self._found.gpus, GAP * self.every_s)
            self._consider()
            return self._found.gpus

    def ram_now_gb(self) -> float | None:
        """What is available right now; None where the system does not say."""
        ram = resources.ram()
        return None if ram is None else ram.available

    async def _watch_resources(self) -> None:
        while True:
            await anyio.sleep(self.every_s)
            try:
                self._resources = await within(LOOK_LIMIT_S, lambda: self._look(self._state))
            except OutOfPatience:
                continue  # the disk does not answer: what was known stays
            except Exception:
                log.exception("the machine could not be looked at")
                continue
            self._consider()

    def _consider(self) -> None:
        told, now = self.facts, _facts(self.facts.number + 1, self._resources, self._found)
        if urgent(told, now):
            self.facts = now
            self.on_change()
        elif moved(told, now):
            self.facts = now


def urgent(told: Facts, now: Facts) -> bool:
    """Whether there are other devices or processes, or some do otherwise than before."""
    return _core(told) != _core(now)


def moved(told: Facts, now: Facts) -> bool:
    """Whether a number has moved by its step."""
    return (
        _moved(_available(told), _available(now), _ram_step(now))
        or _moved(told.disk_free_gb, now.disk_free_gb, _disk_step(now))
        or _moved(told.cpus.load, now.cpus.load, max(1.0, LOAD_STEP * now.cpus.usable))
        or _moved(_charge(told), _charge(now), BATTERY_STEP)
        or any(_gpu_moved(before, after) for before, after in zip(told.gpus, now.gpus, strict=False))
    )


def _facts(number: int, seen: Resources, found: Found) -> Facts:
    return Facts(
        number=number,
        cpus=seen.cpus,
        ram_gb=seen.ram_gb,
        disk_free_gb=seen.disk_free_gb,
        battery=seen.battery,
        gpu_state=found.state,
        gpus_why=found.why,
        driver=found.driver,
        cuda=found.cuda,
        gpus=found.gpus,
    )


def _core(facts: Facts) -> tuple[object, ...]:
    """What is told as soon as it changes."""
    gpus = [
        (
            gpu.uuid,
            gpu.index,
            gpu.model,
            gpu.parent,
            gpu.health,
            gpu.why if gpu.health.value != "memory_held" else None,
            gpu.unified,
            gpu.total_mb,
            gpu.processes is None,
            sorted((process.pid, process.job or "", process.mb is None) for process in gpu.processes or ()),
        )
        for gpu in facts.gpus
    ]
    return (
        facts.cpus.logical,
        facts.cpus.usable,
        facts.ram_gb and facts.ram_gb.total,
        facts.battery and facts.battery.on_battery,
        facts.gpu_state,
        facts.gpus_why,
        facts.driver,
        facts.cuda,
        gpus,
    )


def _gpu_moved(told: Gpu, now: Gpu) -> bool:
    """The devices are the same ones: `_core` has compared them."""
    before = {process.pid: process.mb for process in told.processes or ()}
    after = {process.pid: process.mb for process in now.processes or ()}
    return (
        _moved(told.free_mb, now.free_mb, GPU_STEP_MB)
        or _moved(told.unseen_mb, now.unseen_mb, GPU_STEP_MB)
        or _moved(told.utilisation, now.utilisation, UTILISATION_STEP)
        or any(_moved(mb, after.get(pid), GPU_STEP_MB) for pid, mb in before.items())
    )


def _moved(told: float | None, now: float | None, step: float) -> bool:
    if told is None or now is None:
        return told is not now
    return abs(told - now) >= step


def _available(facts: Facts) -> float | None:
    return facts.ram_gb.available if facts.ram_gb is not None else None


def _charge(facts: Facts) -> int | None:
    return facts.battery.percent if facts.battery is not None else None


def _ram_step(facts: Facts) -> float:
    return RAM_STEP * facts.ram_gb.total if facts.ram_gb else 0.0


def _disk_step(facts: Facts) -> float:
    return (
        DISK_SHORT_STEP_GB
        if (facts.disk_free_gb or 0) < DISK_SHORT_GB
        else max(DISK_STEP_GB, 0.05 * (facts.disk_free_gb or 0))
    )
