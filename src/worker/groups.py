"""Whether this worker can give each of its jobs a cgroup of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import NamedTuple

from worker.process import cgroup

_PROBE_LIMIT_S = 5.0
_LARGE = 1 << 40


class Groups(NamedTuple):
    """`path`: the directory that the groups of one worker lie in. `memory`: what their members have can be limited."""

    path: str
    memory: bool


def usable_groups(name: str) -> Groups | None:
    """Where the groups of one worker can be made; None where they can't be, or do not kill.

    Tried, not guessed: a process is put into a group there and killed by it. Memory can only be limited below a group
    that has no processes of its own, so not below ours; but below the one above it, if that was delegated to us.
    """
    found = None
    for base in _bases():
        groups = _tried(base, name)
        if groups is not None and groups.memory:
            return groups
        found = found or groups
    return found


def _bases() -> list[str]:
    try:
        own = _own_group()
    except (OSError, LookupError):
        return []
    above = os.path.dirname(own)
    return [own, above] if is_delegated(above) else [own]


def is_delegated(group: str) -> bool:
    """Whether whoever keeps the groups here has left all below this one to its user."""
    try:
        return os.getxattr(group, "user.delegate") == b"1"
    except OSError:
        return False


def _tried(base: str, name: str) -> Groups | None:
    parent = os.path.join(base, name)
    probe = os.path.join(parent, f"probe-{os.getpid()}")
    try:
        memory = can_limit_memory(base, probe)
        return Groups(parent, memory) if _kills(probe) else None
    except OSError:
        return None


def can_limit_memory(base: str, probe: str) -> bool:
    """Whether a group two levels below `base` can be given a limit: tried on `probe`."""
    with contextlib.suppress(OSError):
        cgroup.put(base, "cgroup.subtree_control", b"+memory")
    return cgroup.make(probe) and cgroup.limit_memory(probe, _LARGE)


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
    if not cgroup.make(group):
        return False
    try:
        with subprocess.Popen(["/bin/sh", "-c", "read _"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as probe:
            try:
                cgroup.put(group, "cgroup.procs", b"%d" % probe.pid)
                cgroup.kill(group)
                return _ends(probe)
            finally:
                probe.kill()
    finally:
        deadline = time.monotonic() + _PROBE_LIMIT_S
        while cgroup.populated(group) and time.monotonic() < deadline:
            time.sleep(0.001)
        cgroup.remove(group)


def _ends(probe: subprocess.Popen[bytes]) -> bool:
    try:
        return probe.wait(_PROBE_LIMIT_S) < 0
    except subprocess.TimeoutExpired:
        return False
