"""Which signals leave the looking-after processes alone, and how a job gets its own back."""

from __future__ import annotations

import contextlib
import signal

# What a service manager or a terminal sends to everybody, and what a full disk or a lost reader would send.
_NAMES = ("HUP", "INT", "QUIT", "TERM", "PIPE", "USR1", "USR2", "ALRM", "TSTP", "TTIN", "TTOU", "XCPU", "XFSZ")
_IGNORED = tuple(signal.Signals[f"SIG{name}"] for name in _NAMES)


def ignore() -> None:
    """Called once, by the zygote: its shims inherit it. Everything else gets the system's default."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN if number in _IGNORED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def restore() -> None:
    """The defaults, for the job's program: an ignored signal would stay ignored over exec."""
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
