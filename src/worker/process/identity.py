"""Who a process is. A pid alone is reused; see `records.Identity`."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

from worker.process.records import Identity

LINUX = sys.platform == "linux"


@functools.cache
def boot_id() -> str | None:
    try:
        return read_small("/proc/sys/kernel/random/boot_id").decode().strip()
    except OSError:
        return None


def read_small(path: str) -> bytes:
    """A file of the kernel's: short, and whole in one read."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def identify(pid: int) -> Identity:
    """The identity of a living process; what this system can't tell is None."""
    return Identity(
        pid=pid,
        starttime=_starttime(pid),
        pidfs_ino=_pidfs_inode(pid),
        boot_id=boot_id(),
        pidns=_pid_namespace(),
    )


def is_alive(who: Identity) -> bool:
    """Whether that very process, and no later one with its pid, still exists and is no zombie."""
    if who["boot_id"] != boot_id():
        return False
    try:
        os.kill(who["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not LINUX:
        return True
    if who["pidfs_ino"] is not None and _pidfs_inode(who["pid"]) != who["pidfs_ino"]:
        return False
    fields = stat_fields(who["pid"])
    return fields is not None and fields[0] not in ("Z", "X") and int(fields[19]) == who["starttime"]


def stat_fields(pid: int) -> list[str] | None:
    """/proc/<pid>/stat from the state on: [0] state, [1] parent, [19] start time. None: no such process."""
    try:
        return read_small(f"/proc/{pid}/stat").rpartition(b")")[2].decode().split()
    except OSError:
        return None


@functools.cache
def _pid_namespace() -> int | None:
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return None


def _starttime(pid: int) -> int | None:
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def _pidfs_inode(pid: int) -> int | None:
    """Unique for the life of the system from Linux 6.9 on; before that all pidfds share one inode."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)
