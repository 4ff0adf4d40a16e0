"""A cgroup (v2) of its own for each job. Killing all its members needs no controller; limiting their memory needs one."""

from __future__ import annotations

import contextlib
import os

_TRIES = 10


def make(group: str) -> bool:
    """Make it, and its worker's directory of groups if need be."""
    for _ in range(_TRIES):
        try:
            os.makedirs(group, exist_ok=True)
            return True
        except FileNotFoundError:
            continue  # the worker's directory was just removed with its last group
        except OSError:
            return False
    return False


def limit_memory(group: str, size: int) -> bool:
    """At most `size` bytes for all members together, swap included; beyond it all of them are killed. False: the memory
    controller is not to be had here, and nothing is limited."""
    with contextlib.suppress(OSError):  # it may be on already, and not ours to turn on
        put(os.path.dirname(group), "cgroup.subtree_control", b"+memory")
    try:
        put(group, "memory.max", b"%d" % size)
    except OSError:
        return False
    for name, value in (("memory.oom.group", b"1"), ("memory.swap.max", b"0")):
        with contextlib.suppress(OSError):  # before Linux 4.19; without swap
            put(group, name, value)
    return True


def oom_kills(group: str) -> int:
    """How many members the kernel killed because memory ran out. 0 where it does not say."""
    return _counters(group, "memory.events").get("oom_kill", 0)


def memory_peak(group: str) -> int | None:
    """Bytes that were charged to it at most, page cache included. None before Linux 5.19, or without the controller."""
    try:
        return int(_text(group, "memory.peak"))
    except (OSError, ValueError):
        return None


def memory_used(group: str) -> int | None:
    """Bytes of its processes now, page cache not included. None without the controller."""
    counters = _counters(group, "memory.stat")
    return counters["anon"] + counters.get("file_mapped", 0) if "anon" in counters else None


def cpu_s(group: str) -> float | None:
    """Processor time of all that were ever in it. Needs no controller."""
    used = _counters(group, "cpu.stat").get("usage_usec")
    return None if used is None else used / 1e6


def join(group: str) -> None:
    """Put the calling process into `group`; its children follow."""
    put(group, "cgroup.procs", b"0")


def kill(group: str) -> None:
    """SIGKILL to all members at once, forks in flight included."""
    with contextlib.suppress(OSError):
        put(group, "cgroup.kill", b"1")


def members(group: str) -> list[int]:
    """Processes in it now."""
    try:
        return [int(pid) for pid in _text(group, "cgroup.procs").split()]
    except (OSError, ValueError):
        return []


def populated(group: str) -> bool:
    """Whether `group` has members, zombies not counted; no group has none."""
    try:
        with open(os.path.join(group, "cgroup.events"), "rb") as file:
            return b"populated 1" in file.read()
    except OSError:
        return False


def remove(group: str) -> None:
    """Its members are gone when this is called. Groups that the job made in it go too.

    The worker's directory goes with its last group: nothing stays when a worker died and its jobs have ended.
    """
    with contextlib.suppress(OSError):
        os.rmdir(group)
    for path, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(group))


def _counters(group: str, name: str) -> dict[str, int]:
    """Words and numbers, one pair a line; empty where there is no such file."""
    try:
        pairs = [line.split() for line in _text(group, name).splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _text(group: str, name: str) -> str:
    with open(os.path.join(group, name), encoding="ascii", errors="replace") as file:
        return file.read()


def put(group: str, name: str, data: bytes) -> None:
    """Write to one of the group's control files."""
    fd = os.open(os.path.join(group, name), os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
