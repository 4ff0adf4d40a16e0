"""The few system calls that Python has no name for."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_holding = ctypes.PyDLL(None, use_errno=True)
_holding.syscall.restype = ctypes.c_long


_CLONE3, _CLONE_INTO_CGROUP = 435, 0x200000000  # the same number on every machine


class _CloneArgs(ctypes.Structure):
    """struct clone_args of linux/sched.h, to its field `cgroup`."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack"),
            *("stack_size", "tls", "set_tid", "set_tid_size", "cgroup"),
        )
    ]


def fork_into(group: str) -> int:
    """os.fork(), with the child born in a cgroup. Raises OSError where the system can't; nothing was forked then.

    To join a group afterwards takes ten milliseconds or more where that is seldom done: the kernel waits until no
    process forks. Only for a process of a single thread, and a child that soon execs: Python's own handlers around
    a fork are not run.
    """
    if _libc is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    try:
        args = _CloneArgs(flags=_CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=directory)
        # PyDLL: the interpreter's lock stays ours, in both processes.
        pid = _holding.syscall(ctypes.c_long(_CLONE3), ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
        if pid < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(pid)
    finally:
        os.close(directory)


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc is not None:
        value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
        _libc.prctl(ctypes.c_int(option), value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def set_name(name: str) -> None:
    """What `ps -o comm` shows; 15 bytes at most."""
    _prctl(_PR_SET_NAME, name.encode())


def become_subreaper() -> None:
    """Orphans among our descendants become our children, however often they forked and called setsid.

    Only those that are orphaned from now on: call it before the first fork.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """SIGKILL when the parent dies. The caller checks afterwards that the parent was still there."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
