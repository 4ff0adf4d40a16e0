"""A process that is not ours, by a descriptor that names it whatever becomes of its id: may it be looked after, is it
still there, and how did it end. Linux only."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import select
import struct
from typing import NamedTuple

from worker.process import records
from worker.process.identity import is_alive, read_small, stat_fields
from worker.process.records import AdopteeRecord

_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info of linux/pidfd.h: mask, cgroup, ids, exit status
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT = 8
_PARENT, _FLAGS, _START = 1, 6, 19  # of /proc/PID/stat, from the state on
_KERNEL_THREAD = 0x00200000
_COOKIE = re.compile(rb"(?:^|\0)JOBD_JOB_COOKIE=([^\0]*)")
_OURS = ("broker", "worker", "shim", "zygote", "probe")


class Refused(NamedTuple):
    """Why a process is not adopted: a code for programs, and a text for people."""

    code: str
    text: str


def find(adoptee: AdopteeRecord) -> int | Refused:
    """A descriptor of the process. It is opened before anything is looked at: what is found out while it lives is of
    that very process."""
    pid = adoptee["pid"]
    if not hasattr(os, "pidfd_open"):
        return Refused("adopt_unsupported", "this system can't name a process other than by its id, which is reused")
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        return Refused("adopt_pid_gone", f"there is no process {pid} ({os.strerror(error.errno or 0)})")
    refused = _why_not(pid, adoptee["starttime"])
    if has_exited(pidfd) and (refused is None or refused.code != "adopt_pid_mismatch"):
        refused = Refused("adopt_pid_gone", f"process {pid} has ended")
    if refused is None:
        return pidfd
    os.close(pidfd)
    return refused


def has_exited(pidfd: int) -> bool:
    """Whether it runs no more, be it that its parent has yet to ask how it ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def exit_status(pidfd: int) -> int | None:
    """As wait() told its parent, from Linux 6.15 on and once its parent has asked; None: it can't be known."""
    said = bytearray(_INFO.pack(_EXIT, *([0] * 13)))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, said)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(said)
    return int(status) if mask & _EXIT else None


def ancestors(pid: int) -> list[int]:
    """The process itself, its parent, and so on."""
    found = []
    while pid > 0 and pid not in found:
        found.append(pid)
        fields = stat_fields(pid)
        pid = int(fields[_PARENT]) if fields else 0
    return found


def _why_not(pid: int, starttime: int | None) -> Refused | None:
    fields = stat_fields(pid)
    if fields is None:
        return Refused("adopt_pid_gone", f"there is no process {pid}")
    if starttime is not None and int(fields[_START]) != starttime:
        return Refused("adopt_pid_mismatch", f"process {pid} is another one than the one named: that one has ended")
    if pid == 1 or int(fields[_FLAGS]) & _KERNEL_THREAD:
        return Refused("adopt_protected", f"process {pid} belongs to the system")
    return _of_another_user(pid) or _of_ours(pid) or _of_a_job(pid)


def _of_another_user(pid: int) -> Refused | None:
    try:
        status = read_small(f"/proc/{pid}/status").decode("utf-8", "replace")
    except OSError:
        return Refused("adopt_pid_gone", f"there is no process {pid}")
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    if ids and all(int(uid) == os.getuid() for uid in ids):
        return None
    owner = ids[0] if ids else "?"
    return Refused("adopt_uid_mismatch", f"process {pid} belongs to user {owner}, and the worker to {os.getuid()}")


def _of_ours(pid: int) -> Refused | None:
    """The worker, who it hangs on, and everything that says of itself that it is jobd's."""
    words: list[str] = []
    with contextlib.suppress(OSError):
        words = read_small(f"/proc/{pid}/cmdline").decode("utf-8", "replace").split("\0")
    named = any(one == "jobd" and other in _OURS for one, other in itertools.pairwise(words))
    if named or pid in ancestors(os.getpid()):
        return Refused("adopt_protected", f"process {pid} is part of jobd, or jobd hangs on it")
    return None


def _of_a_job(pid: int) -> Refused | None:
    """Neighbours of the own directory are the other assignments of this worker."""
    line = ancestors(pid)
    cookie = _cookie_of(pid)
    for name in sorted(os.listdir("..")):
        directory = os.path.join("..", name)
        if name == os.path.basename(os.getcwd()) or not _is_of(directory, pid, line, cookie):
            continue
        return Refused("adopt_of_a_job", f"process {pid} belongs to job {name.partition('.')[0]} already")
    if os.getppid() in line:
        return Refused("adopt_protected", f"process {pid} is part of jobd")
    return None


def _is_of(directory: str, pid: int, line: list[int], cookie: str | None) -> bool:
    spec, start = records.read_spec(directory), records.read_start(directory)
    if cookie is not None and spec is not None and spec["cookie"] == cookie:
        return True
    if start is None:
        return False
    living = [who["pid"] for who in (start["shim"], start["process"]) if is_alive(who)]
    return any(one in line for one in living) or any(pid in ancestors(one) for one in living[-1:])


def _cookie_of(pid: int) -> str | None:
    """What processes of a job have in their environment, also those that left their tree."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        found = _COOKIE.search(file.read(1 << 20))
        return found[1].decode("ascii", "replace") if found else None
    return None
