"""Whose devices this machine has: NVIDIA's, else AMD's, else Apple's. Never two kinds at once: a job that is given
devices by their names could not use a mixture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from worker.probe.amd import open_amd
from worker.probe.apple import open_apple
from worker.probe.nvml import Nvml, open_nvml
from worker.probe.snapshot import Snapshot


class Maker(Protocol):
    """What can be asked for its devices, again and again."""

    def snapshot(self) -> Snapshot: ...


def open_maker(
    root: Path, nvml: Callable[[], Nvml | Snapshot] = open_nvml, apple: Callable[[], Maker | None] = open_apple
) -> Maker | Snapshot:
    """Something to ask, or why there is nothing. An NVIDIA driver that is there and fails is said to fail: the others are
    looked for where there is none."""
    found = nvml()
    if isinstance(found, Nvml) or found["state"] != "absent":
        return found
    return open_amd(root) or apple() or found
