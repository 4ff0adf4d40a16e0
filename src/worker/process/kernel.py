"""The few prctl calls that Python has no name for. No-ops where the system has no prctl."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


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
