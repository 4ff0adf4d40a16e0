"""Places at which a test lets the broker die as `kill -9` would: at once, with nothing tidied up.

`_JOBD_FAILPOINT=committed` in the environment of a starting broker names one of them, `committed:3` its third passing.
It is no setting, and nobody meets it by accident: without that name nothing here does anything.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final, Literal, get_args

Point = Literal[
    "locked",
    "migrating",
    "migrated",
    "bound",
    "writing",
    "committed",
    "published",
    "submitted",
    "registered",
    "claiming",
    "claimed",
    "claimed_parked",
    "reported",
    "cancelled",
    "append_torn",
    "appended",
    "sync_next",
    "synced",
    "swept",
    "expiring",
    "logs_forgotten",
    "rows_next",
    "checkpoint_next",
    "succession_asked",
    "polls_answered",
    "store_closed",
]
POINTS: Final[tuple[Point, ...]] = get_args(Point)
VARIABLE: Final = "_JOBD_FAILPOINT"

_CHOSEN, _, _passing = os.environ.get(VARIABLE, "").partition(":")
_passings_left = int(_passing) if _passing.isdecimal() else 1


def failpoint(point: Point, last_act: Callable[[], object] | None = None) -> None:
    """Die here if this is the chosen point, after a `last_act` that is left half done."""
    global _passings_left  # noqa: PLW0603 - one process dies once
    if point != _CHOSEN:
        return
    _passings_left -= 1
    if _passings_left <= 0:
        if last_act is not None:
            last_act()
        os.kill(os.getpid(), signal.SIGKILL)
