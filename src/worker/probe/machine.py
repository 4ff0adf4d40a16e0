"""The machine under this worker: its name, its identity, how many cores of it may be used."""

from __future__ import annotations

import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from broker.places import machine_identity
from worker.probe.resources import usable_cores


@dataclass(frozen=True)
class Machine:
    host: str
    identity: str
    """`machine:boot`. A cloned state directory shows, since no two running machines share it."""
    platform: str
    cores: float


def look() -> Machine:
    host = platform.node() or "localhost"
    return Machine(
        host=host[:200],
        identity=machine_identity(),
        platform=f"{platform.system().lower()}-{platform.machine().lower()}"[:200],
        cores=usable_cores(),
    )


def name_of(host: str) -> str:
    """A worker name made of a host name: what a name may not contain becomes a dash."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", host.partition(".")[0]).strip("._-")[:64]
    return name or "worker"


def free_mb(path: Path) -> float:
    return shutil.disk_usage(path).free / 2**20
