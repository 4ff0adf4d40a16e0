"""Reads AMD's devices from the files of their kernel driver. What a file does not say is not known.

Runs in the probe's child only: a card that hangs may hold up whoever reads its files. `root` is where /sys and /dev lie.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from broker.places import KFD
from worker.probe.snapshot import Device, Snapshot, blank, clean, nothing

VENDOR = "0x1002"
_CARD = re.compile(r"card[0-9]+")  # not card0-DP-1, which is a socket
_UNIQUE = re.compile(r"[0-9a-f]{1,16}")


@dataclass(frozen=True)
class Amd:
    root: Path

    def snapshot(self) -> Snapshot:
        """All devices, in the order of the bus."""
        cards = _cards(self.root)
        if not cards:
            return nothing("absent", "AMD's driver is loaded, and has no device")
        version = _text(self.root / "sys/module/amdgpu/version")
        return {
            "state": "ok",
            "why": None,
            "driver": clean(f"amdgpu {version or ''}"),
            "cuda": None,
            "devices": [_device(index, card) for index, card in enumerate(cards)],
            "processes": {},
        }


def open_amd(root: Path) -> Amd | None:
    """None: there is no device of AMD's on which jobs could compute. Without `KFD` a card is there for drawing only."""
    return Amd(root) if (root / KFD.relative_to("/")).exists() and _cards(root) else None


def _cards(root: Path) -> list[Path]:
    found = (card / "device" for card in (root / "sys/class/drm").glob("card*") if _CARD.fullmatch(card.name))
    return sorted((device.resolve() for device in found if _text(device / "vendor") == VENDOR), key=lambda at: at.name)


def _device(index: int, at: Path) -> Device:
    device = blank(index)
    unique = (_text(at / "unique_id") or "").lower()
    if _UNIQUE.fullmatch(unique) and int(unique, 16):
        device["uuid"] = f"GPU-{unique.zfill(16)}"  # as ROCm itself calls it
    else:
        device["faults"]["unique_id"] = "it has none, and so nothing by which a job could be given it"
    kind = (_text(at / "device") or "").removeprefix("0x")
    device["model"] = clean(_text(at / "product_name") or f"AMD {kind}")
    total, used = _number(device, at, "mem_info_vram_total"), _number(device, at, "mem_info_vram_used")
    if total is not None and used is not None:
        device["total"], device["free"] = total, total - used
    busy = _text(at / "gpu_busy_percent") or ""
    device["utilisation"] = int(busy) if busy.isdigit() and int(busy) <= 100 else None
    return device


def _number(device: Device, at: Path, name: str) -> int | None:
    text = _text(at / name)
    if text is not None and text.isdigit():
        return int(text)
    device["faults"][name] = "it can't be read" if text is None else clean(f"it says {text}")
    return None


def _text(path: Path) -> str | None:
    """None: it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
