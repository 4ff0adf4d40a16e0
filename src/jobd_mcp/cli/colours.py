"""Whether to use colours, and which state has which."""

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
    "failed": "red",
    "orphaned": "red",
    "lost": "red",
}


def wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal that has them, unless NO_COLOR says no (no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
