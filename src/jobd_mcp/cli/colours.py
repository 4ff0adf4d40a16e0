"""Which state has which colour, and what a terminal can show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

OF_STATE: Mapping[str, str] = {
    "completed": "green",
    "online": "green",
    "running": "cyan",
    "started": "cyan",
    "assigned": "cyan",
    "stopping": "yellow",
    "cancelled": "yellow",
    "preempted": "yellow",
    "cordoned": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "paused": "yellow",
    "outdated": "yellow",
    "not_polling": "yellow",
    "failed": "red",
    "orphaned": "red",
    "scheduling_timeout": "red",
    "lost": "red",
}


def wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal that has them, unless NO_COLOR says no (no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def has_blocks(stream: TextIO) -> bool:
    """Whether its encoding has the characters that bars are drawn with."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
