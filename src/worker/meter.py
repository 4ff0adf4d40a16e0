"""What one assignment has used, and for how long its devices stood idle. Fed now and then; what it says moves in steps.

Pure: samples in, numbers out. It survives its worker as a line of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from broker.wire.jobs import Peak
from broker.wire.machines import Gpu, GpuHealth
from broker.wire.workers import Final
from worker.probe.trees import TreeUse

RSS_STEP_MB, RSS_STEP = 16.0, 0.05
VRAM_STEP_MB = 256
CPU_STEP_S, CPU_STEP = 1.0, 0.1
GPU_STEP = 5.0
_UNREADABLE = frozenset({GpuHealth.LOST, GpuHealth.UNKNOWN, GpuHealth.UNHEALTHY})


@dataclass
class Meter:
    """Of one assignment, by its name (42.1) and the devices that it was given."""

    name: str
    uuids: Sequence[str] = ()
    rss_mb: float | None = None
    vram_mb: int | None = None
    cpu_s: float | None = None
    busy: float = 0.0  # percent, summed over `looks`
    looks: int = 0
    told: Peak | None = field(default=None, compare=False)
    _idle_since: float | None = None
    _looked_at: float | None = None

    def saw_tree(self, use: TreeUse) -> None:
        """What its tree uses now."""
        self.rss_mb = _larger(self.rss_mb, use.rss_mb)
        self.cpu_s = _larger(self.cpu_s, use.cpu_s)

    def saw_devices(self, gpus: Sequence[Gpu], now_s: float, longest_gap_s: float) -> None:
        """One look at all devices of the machine. Looks that are further apart than that say nothing of the time between."""
        uses = [process.mb for gpu in gpus for process in gpu.processes or () if process.job == self.name]
        if any(mb is not None for mb in uses):
            self.vram_mb = int(_larger(self.vram_mb, sum(mb or 0 for mb in uses)) or 0)
        known = {gpu.uuid: gpu for gpu in gpus}
        given = [known.get(uuid) for uuid in self.uuids]
        rates = [gpu.utilisation for gpu in given if gpu is not None and gpu.utilisation is not None]
        if rates:
            self.busy += sum(rates) / len(rates)
            self.looks += 1
        self._note_idle(given, now_s, longest_gap_s)

    def idle_s(self) -> float:
        """For how long now each look found all its devices unused by it."""
        if self._idle_since is None or self._looked_at is None:
            return 0.0
        return self._looked_at - self._idle_since

    def peak(self) -> Peak | None:
        """All that is known; None: nothing is."""
        gpu = round(self.busy / self.looks, 1) if self.looks else None
        rss_mb = round(self.rss_mb, 1) if self.rss_mb is not None else None
        cpu_s = round(self.cpu_s, 2) if self.cpu_s is not None else None
        found = Peak(rss_mb=rss_mb, vram_mb=self.vram_mb, cpu_s=cpu_s, gpu=gpu)
        return found if found != Peak() else None

    def moved(self) -> bool:
        """Whether what is told is to be another now: `told` is what it is."""
        now, told = self.peak(), self.told or Peak()
        if now is None or not (
            _moved(told.rss_mb, now.rss_mb, max(RSS_STEP_MB, RSS_STEP * (told.rss_mb or 0)))
            or _moved(told.vram_mb, now.vram_mb, VRAM_STEP_MB)
            or _moved(told.cpu_s, now.cpu_s, max(CPU_STEP_S, CPU_STEP * (told.cpu_s or 0)))
            or _moved(told.gpu, now.gpu, GPU_STEP)
        ):
            return False
        self.told = now
        return True

    def at_the_end(self, final: Final) -> Peak | None:
        """With what the kernel said when the processes were waited for: a short job was never looked at."""
        self.saw_tree(TreeUse(final.max_rss_mb, final.cpu_s))
        return self.peak()

    def dump(self) -> str:
        """What `load` reads. How long the devices stood idle is not kept: nobody looked while the worker was away."""
        kept = asdict(self)
        return json.dumps({name: kept[name] for name in _KEPT})

    def load(self, text: str) -> None:
        """Go on from what an earlier worker process saw. What can't be read is nothing."""
        try:
            said = json.loads(text)
        except ValueError:
            return
        if isinstance(said, Mapping):
            for name in _KEPT:
                if isinstance(said.get(name), int | float):
                    setattr(self, name, said[name])

    def _note_idle(self, given: Sequence[Gpu | None], now_s: float, longest_gap_s: float) -> None:
        gap = self._looked_at is not None and now_s - self._looked_at > longest_gap_s
        self._looked_at = now_s
        if not given or not all(_unused(gpu, self.name) for gpu in given):
            self._idle_since = None
        elif self._idle_since is None or gap:
            self._idle_since = now_s


_KEPT = ("rss_mb", "vram_mb", "cpu_s", "busy", "looks")


def _unused(gpu: Gpu | None, name: str) -> bool:
    """Whether it is known that this job does not use the device. A device that does not say how busy it is, or can't be
    read, is not known to be idle; one that others keep busy is, if the job has nothing there."""
    if gpu is None or gpu.health in _UNREADABLE or gpu.utilisation is None:
        return False
    if gpu.utilisation == 0:
        return True
    return bool(gpu.processes) and all(process.seen and process.job != name for process in gpu.processes or ())


def _larger(one: float | None, other: float | None) -> float | None:
    return max((number for number in (one, other) if number is not None), default=None)


def _moved(told: float | None, now: float | None, step: float) -> bool:
    return now is not None and (told is None or abs(now - told) >= step)
