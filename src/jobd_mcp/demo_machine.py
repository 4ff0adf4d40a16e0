"""The machines of the demonstration: a worker with all of its processes, which can lose its power, and what is left.

What belongs to a directory is found by what the processes say of themselves, not by a list that was kept: a
demonstration that was killed itself is cleared away by the next one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from broker import places

_PROC = Path("/proc")
_CLEAR_S = 10.0
_STOP_S = 20.0


class Machine:
    """One worker with a state directory of its own, as on another machine; checkpoints are shared, as on a cluster."""

    def __init__(self, name: str, directory: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        self._home = directory / name
        self._home.mkdir(parents=True)
        settings = {
            "JOBD_STATE_DIR": str(self._home),
            "JOBD_WORKER_NAME": name,
            "JOBD_WORKER_SLOTS": "1",
            "JOBD_CHECKPOINT_ROOT": str(directory / "checkpoints"),
        }
        with (self._home / "worker.log").open("wb") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-I", "-m", "worker", "jobd", "worker"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environ, **settings},
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._worker.poll() is None

    def lose_power(self) -> int:
        """SIGKILL for the worker and all that it started; how many processes that were."""
        killed = _kill_all(lambda: _descendants(self._worker.pid) | {self._worker.pid} | _naming(self._home))
        self._worker.wait()
        return killed

    def shut_down(self) -> None:
        """End the worker as a service manager would. Its jobs would outlive it."""
        self._worker.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._worker.wait(_STOP_S)


def clear(directory: Path) -> list[int]:
    """Kill what still runs for `directory`, and remove it, with its sockets wherever they stand.

    Answers with the processes that should not have been there any more.
    """
    left = sorted(_naming(directory))
    _kill_all(lambda: _naming(directory))
    shutil.rmtree(directory, ignore_errors=True)
    sockets = places.sockets(directory / "broker", os.environ)[0].parent
    if sockets != directory / "broker":  # the path was too long for a socket
        shutil.rmtree(sockets, ignore_errors=True)
        if sockets.parent.name == f"jobd-{os.getuid()}":  # ours too, and no runtime directory of the system
            with suppress(OSError):
                sockets.parent.rmdir()
    return left


def _kill_all(find: Callable[[], set[int]]) -> int:
    """SIGKILL for what `find` finds, until it finds nothing new that lives."""
    killed: set[int] = set()
    groups: set[Path] = set()
    deadline = time.monotonic() + _CLEAR_S
    while (found := {pid for pid in find() if _lives(pid)}) and time.monotonic() < deadline:
        for pid in found:
            groups |= _group_of(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        time.sleep(0.005)
    for group in groups:
        _remove_group(group)
    return len(killed)


def _descendants(root: int) -> set[int]:
    parents = _parents()
    found = {root}
    while grown := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= grown
    return found - {root}


def _parents() -> dict[int, int]:
    """Process id → id of its parent, of all processes here. Small systems have no ps, others no /proc."""
    if not (_PROC / "self/stat").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        return {int(pid): int(parent) for pid, parent in (line.split() for line in listing.stdout.splitlines())}
    return {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid))}


def _naming(directory: Path) -> set[int]:
    """Processes, apart from this one, that were started with `directory` in their arguments or environment."""
    wanted = os.fsencode(directory) + b"/"
    found = set()
    for pid in _pids():
        with suppress(OSError):
            said = (_PROC / f"{pid}/cmdline").read_bytes() + (_PROC / f"{pid}/environ").read_bytes()
            if wanted in said and pid != os.getpid() and _lives(pid):
                found.add(pid)
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []


def _stat(pid: int) -> list[bytes]:
    """State, parent, and so on; empty for a process that is gone."""
    try:
        return (_PROC / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _lives(pid: int) -> bool:
    if _PROC.is_dir():
        return (_stat(pid) or [b"X"])[0] not in (b"Z", b"X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _group_of(pid: int) -> set[Path]:
    """The job's cgroup in which a process is, if it is in one: a machine that lost its power keeps none."""
    try:
        lines = (_PROC / f"{pid}/cgroup").read_text().splitlines()
        mounts = [line.split(" ") for line in (_PROC / "self/mounts").read_text().splitlines()]
    except OSError:
        return set()
    point = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = Path(point or "/", path.lstrip("/"))
    return {group} if point and group.parent.name.startswith("jobd-") else set()


def _remove_group(group: Path) -> None:
    deadline = time.monotonic() + _CLEAR_S
    while group.exists() and time.monotonic() < deadline:  # zombies leave a little later than they die
        with suppress(OSError):
            group.rmdir()
        time.sleep(0.005)
    with suppress(OSError):
        group.parent.rmdir()
