"""Which processes belong to a test: those that name its directory in arguments, environment or working directory."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    command: str


def processes_of(directory: Path) -> list[Process]:
    """Live processes, apart from this one, that belong to `directory`. Zombies are gone and don't count."""
    return [found for pid in _pids() if (found := _belonging(pid, os.fsencode(directory))) is not None]


def kill_all(directory: Path) -> list[Process]:
    """Kill what belongs to `directory` until nothing is left; what was found first is returned."""
    first = found = processes_of(directory)
    for _ in range(50):
        if not found:
            break
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        found = processes_of(directory)
    return first


def _pids() -> Iterator[int]:
    own = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own:
            yield int(name)


def _belonging(pid: int, directory: bytes) -> Process | None:
    base = Path("/proc") / str(pid)
    try:
        arguments = (base / "cmdline").read_bytes()
        if (base / "stat").read_bytes().rpartition(b") ")[2][:1] in (b"Z", b"X"):
            return None
        environ = (base / "environ").read_bytes()
        cwd = os.fsencode(os.readlink(base / "cwd"))
    except OSError:
        return None
    inside = cwd == directory or cwd.startswith(directory + b"/")
    if inside or directory in arguments or directory in environ:
        return Process(pid, arguments.replace(b"\0", b" ").decode(errors="replace").strip())
    return None
