"""What is left of a job whose shim was killed: found by its cgroup and by the cookie in its environment.

Where there are no cgroups a process is not found that emptied its environment, or forks faster than a list is read;
the zygote, as subreaper, gets those while it lives.
"""

from __future__ import annotations

import contextlib
import os
import signal

from worker.process import cgroup
from worker.process.identity import LINUX, stat_fields
from worker.process.tree import descendants, signal_each

_ROUNDS = 200
_IN_VAIN = 5  # rounds that change nothing: the kernel does not let them die now


def kill_leftovers(cookie: str, group: str | None) -> bool:
    """SIGKILL to all of them. True: nothing is left that can be found. False: call again after a while.

    Reads the list of processes again and again: for a thread, where there may be thousands.
    """
    if group is not None:
        cgroup.kill(group)
    seen: list[list[int]] = []
    for _ in range(_ROUNDS):
        left = with_cookie(cookie)
        if not left:
            break
        seen = [*seen[1 - _IN_VAIN :], left]
        if len(seen) == _IN_VAIN and all(one == left for one in seen):
            return False  # nothing dies, and nothing is born
        for pid in left:
            signal_each(descendants(pid), signal.SIGKILL)
            _kill_if_it_has(cookie, pid)
    else:
        return False
    return leave_group(group)


def survivors(cookie: str, group: str | None) -> str:
    """What is left in spite of all, as pid:state, …"""
    left = sorted({*with_cookie(cookie), *(cgroup.members(group) if group is not None else ())})
    return " ".join(f"{pid}:{(stat_fields(pid) or '?')[0]}" for pid in left)


def leave_group(group: str | None) -> bool:
    """Kill what is in it and remove it. False: something in it still ends; call again."""
    if group is not None:
        cgroup.kill(group)
        if cgroup.populated(group):
            return False
        cgroup.remove(group)
    return True


def with_cookie(cookie: str) -> list[int]:
    """Living processes that carry it. Zombies have no environment any more, and are none."""
    if not LINUX:
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _has(cookie, int(name))]


def _has(cookie: str, pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"JOBD_JOB_COOKIE=" + cookie.encode() in file.read().split(b"\0")
    except OSError:
        return False


def _kill_if_it_has(cookie: str, pid: int) -> None:
    """The pid may be another process's by now: look again through a handle that can't change its owner."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _has(cookie, pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
