"""Apple's chips have one device each, which has the machine's memory. Who uses how much of it the system does not say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.probe.snapshot import Device, Snapshot, blank, clean

_LIMIT_S = 5.0
_MACHINE = re.compile(r'"IOPlatformUUID" = "([0-9A-Fa-f-]{36})"')

Asking = Callable[[Sequence[str]], str]


def ask(command: Sequence[str]) -> str:
    """What a program of the system prints; nothing, if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@dataclass(frozen=True)
class Apple:
    device: Device

    def snapshot(self) -> Snapshot:
        """The one device; nothing of it changes."""
        return {
            "state": "ok",
            "why": None,
            "driver": None,
            "cuda": None,
            "devices": [self.device],
            "processes": {},
        }


def open_apple(system: str = sys.platform, asking: Asking = ask) -> Apple | None:
    """None: this is no Mac, or one with a chip of somebody else."""
    if system != "darwin":
        return None
    chip = asking(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]).strip()
    if not chip.startswith("Apple"):
        return None
    device = blank(0)
    device["model"], device["unified"] = clean(chip), True
    machine = _MACHINE.search(asking(["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]))
    if machine is not None:
        device["uuid"] = f"GPU-{machine[1].lower()}"
    else:
        device["faults"]["uuid"] = "ioreg does not say IOPlatformUUID"
    return Apple(device)
