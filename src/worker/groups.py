"""Whether this worker can give each of its jobs a cgroup of its own."""

from __future__ import annotations

import os
import subprocess
import time

from worker.process import cgroup

_PROBE_LIMIT_S = 5.0


def usable_groups(name: str) -> str | None:
    """Where the groups of one worker can be made; None where they can't be, or do not kill.

    Tried, not guessed: a process is put into a group there and killed by it.
    """
    try:
        parent = os.path.join(_own_group(), name)
        return parent if _kills(os.path.join(parent, f"probe-{os.getpid()}")) else None
    except (OSError, LookupError):
        return None


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
