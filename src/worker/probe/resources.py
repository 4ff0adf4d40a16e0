"""Cores, memory, disk, load and battery: what this process may use of them, not what the machine was built with.

`root` is where /proc and /sys lie.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.wire.machines import Battery, Cpus, Ram

GIB = 1 << 30
ROOT = Path("/")


@dataclass(frozen=True)
class Resources:
    cpus: Cpus
    ram_gb: Ram | None
    disk_free_gb: float | None
    battery: Battery | None


def look(state: Path, root: Path = ROOT) -> Resources:
    """`state`: the directory whose disk counts."""
    return Resources(cpus=cpus(root), ram_gb=ram(root), disk_free_gb=_disk(state), battery=battery(root))


def cpus(root: Path = ROOT) -> Cpus:
    logical = os.cpu_count() or 1
    return Cpus(logical=logical, usable=usable_cores(root), load=_load())


def usable_cores(root: Path = ROOT) -> float:
    """The least of what the machine has, affinity allows (taskset, cpusets) and the cgroups' quotas allow."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        cores = float(max(1, len(os.sched_getaffinity(0))))
    quotas = [quota for group in groups(root, "cpu") if (quota := _quota(group)) is not None]
    return min([cores, *quotas])


def ram(root: Path = ROOT) -> Ram | None:
    """None where the system does not say (no /proc)."""
    words = dict(line.split(":", 1) for line in _lines(root / "proc/meminfo") if ":" in line)
    total, available = _kib(words.get("MemTotal")), _kib(words.get("MemAvailable") or words.get("MemFree"))
    if total is None or available is None:
        return None
    for group in groups(root, "memory"):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        if limit is None or limit >= total:
            continue
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        total, available = limit, min(available, max(0, limit - used + _inactive(group)))
    return Ram(total=round(total / GIB, 2), available=round(min(available, total) / GIB, 2))


def battery(root: Path = ROOT) -> Battery | None:
    """The machine's own; that of a mouse does not count."""
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        if _text(supply / "type") == "Battery" and _text(supply / "scope") != "Device":
            percent = _number(supply / "capacity")
            return Battery(
                percent=min(100, percent) if percent is not None else None,
                on_battery=_text(supply / "status") == "Discharging",
            )
    return None


def groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup for `controller` and those above it, as far as they can be seen; versions 1 and 2."""
    mounts = [line.split(" ") for line in _lines(root / "proc/self/mounts")]
    for line in _lines(root / "proc/self/cgroup"):
        hierarchy, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        point = next((m[1] for m in mounts if len(m) > 3 and _is_mount(m, hierarchy, names, controller)), None)
        if point is None or (names and controller not in names.split(",")):
            continue
        top = root / point.lstrip("/")
        group = top / path.strip().lstrip("/")
        while True:
            if group.is_dir():
                yield group
            if group == top or top not in group.parents:
                break
            group = group.parent


def _is_mount(mount: list[str], hierarchy: str, names: str, controller: str) -> bool:
    if hierarchy == "0" and not names:
        return mount[2] == "cgroup2"
    return mount[2] == "cgroup" and controller in mount[3].split(",")


def _quota(group: Path) -> float | None:
    """Cores' worth of time that the group may use."""
    words = _text(group / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _inactive(group: Path) -> int:
    """Files in the page cache that nobody uses: the kernel takes this memory back before it kills anybody."""
    words = dict(line.split(" ", 1) for line in _lines(group / "memory.stat") if " " in line)
    text = words.get("inactive_file") or words.get("total_inactive_file") or "0"
    return int(text) if text.isdigit() else 0


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _disk(state: Path) -> float | None:
    try:
        return round(shutil.disk_usage(state).free / GIB, 2)
    except OSError:
        return None


def _kib(text: str | None) -> int | None:
    number = (text or "").split()[:1]
    return int(number[0]) * 1024 if number and number[0].isdigit() else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()
