"""A cgroup (v2) of its own for each job. No controller is needed: killing all its members is a core file."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

_PROBE_LIMIT_S = 5.0


def usable(name: str) -> str | None:
    """Make a directory for the groups of one worker; None where it can't be made or does not kill.

    Tried, not guessed: a process is put into a group there and killed by it.
    """
    try:
        parent = os.path.join(_own_group(), name)
        os.makedirs(parent, exist_ok=True)
        return parent if _kills(os.path.join(parent, f"probe-{os.getpid()}")) else None
    except (OSError, LookupError):
        return None


def make(group: str) -> bool:
    try:
        os.mkdir(group)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def join(group: str) -> None:
    """Put the calling process into `group`; its children follow."""
    _put(group, "cgroup.procs", b"0")


def kill(group: str) -> None:
    """SIGKILL to all members at once, forks in flight included."""
    with contextlib.suppress(OSError):
        _put(group, "cgroup.kill", b"1")


def populated(group: str) -> bool:
    """Whether `group` has members, zombies not counted; no group has none."""
    try:
        with open(os.path.join(group, "cgroup.events"), "rb") as file:
            return b"populated 1" in file.read()
    except OSError:
        return False


def remove(group: str) -> None:
    """Members of a nested group (a job may make some) are gone when this is called; their groups go too."""
    for path, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _own_group() -> str:
    """Our own group's directory on the v2 hierarchy. Raises LookupError where there is none."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ") for line in file]
    point = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        path = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    if point is None or path is None or "\\" in point:
        raise LookupError("no cgroup v2 here")
    return os.path.join(point, path.lstrip("/"))


def _kills(group: str) -> bool:
    os.mkdir(group)
    try:
        with subprocess.Popen(["/bin/sh", "-c", "read _"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as probe:
            try:
                _put(group, "cgroup.procs", b"%d" % probe.pid)
                kill(group)
                return _ends(probe)
            finally:
                probe.kill()
    finally:
        deadline = time.monotonic() + _PROBE_LIMIT_S
        while populated(group) and time.monotonic() < deadline:
            time.sleep(0.001)
        remove(group)


def _ends(probe: subprocess.Popen[bytes]) -> bool:
    try:
        return probe.wait(_PROBE_LIMIT_S) < 0
    except subprocess.TimeoutExpired:
        return False


def _put(group: str, name: str, data: bytes) -> None:
    fd = os.open(os.path.join(group, name), os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
