"""A cgroup (v2) of its own for each job. No controller is needed: killing all its members is a core file."""

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


def join(group: str) -> None:
    """Put the calling process into `group`; its children follow."""
    put(group, "cgroup.procs", b"0")


def kill(group: str) -> None:
    """SIGKILL to all members at once, forks in flight included."""
    with contextlib.suppress(OSError):
        put(group, "cgroup.kill", b"1")


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


def put(group: str, name: str, data: bytes) -> None:
    """Write to one of the group's control files."""
    fd = os.open(os.path.join(group, name), os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
