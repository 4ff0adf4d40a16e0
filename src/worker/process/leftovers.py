"""What is left of a job whose shim was killed: found by its cgroup and by the cookie in its environment.

Where there are no cgroups a process is not found that emptied its environment, or forks faster than a list is read;
the zygote, as subreaper, gets those while it lives.
"""

from __future__ import annotations

import contextlib
import os
import signal

from worker.process import cgroup
from worker.process.identity import LINUX
from worker.process.tree import descendants, signal_each

_ROUNDS = 200


def kill_leftovers(cookie: str, group: str | None) -> bool:
    """SIGKILL to all of them. True: nothing is left that can be found. False: call again after a while."""
    if group is not None:
        cgroup.kill(group)
    for _ in range(_ROUNDS):
        left = with_cookie(cookie)
        if not left:
            break
        for pid in left:
            signal_each(descendants(pid), signal.SIGKILL)
            _kill_if_it_has(cookie, pid)
    else:
        return False
    return leave_group(group)


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
