"""The clock of all deadlines within a machine."""

from __future__ import annotations

import time

# Counts suspend and is never set. Where there is no such clock (macOS), CLOCK_MONOTONIC counts sleep too.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since this machine booted, suspend included: the same number in every process of the machine."""
    return time.clock_gettime(_BOOT)
