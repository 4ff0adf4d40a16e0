"""Places at which a test lets a shim die as the OOM killer would kill it: at once, with nothing tidied up."""

from __future__ import annotations

import os
import signal
from typing import Final, Literal, get_args

Point = Literal[
    "received",
    "prepared",
    "forked",
    "ready",
    "start_staged",
    "start_durable",
    "released",
    "running",
    "output",
    "reaped",
    "tree_gone",
    "exit_staged",
    "exit_durable",
]
POINTS: Final[tuple[Point, ...]] = get_args(Point)

_CHOSEN = os.environ.get("JOBD_FAILPOINT")


def failpoint(point: Point) -> None:
    if point == _CHOSEN:
        os.kill(os.getpid(), signal.SIGKILL)
