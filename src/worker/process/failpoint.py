"""Places at which a test lets a worker or a shim die as the OOM killer would kill it: at once, with nothing tidied up.

`_JOBD_FAILPOINT=ack_accepted` in the environment of a starting process names one of them, `ack_accepted:3` its third
passing. It is no setting, and nobody meets it by accident: without that name nothing here does anything. (A module of
its own, not the broker's: shims run a copy of this directory.)
"""

from __future__ import annotations

import os
import signal
from typing import Final, Literal, get_args

ShimPoint = Literal[
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
WorkerPoint = Literal[
    "home_taken",
    "recovered",
    "registered",
    "delivered",
    "spec_written",
    "shim_requested",
    "report_next",
    "report_answered",
    "ack_accepted",
    "told_to_go",
    "start_seen",
    "end_read",
    "upload_next",
    "uploaded",
    "end_accepted",
    "log_settled",
    "removing",
    "stop_heard",
    "leaving",
]
SHIM_POINTS: Final[tuple[ShimPoint, ...]] = get_args(ShimPoint)
WORKER_POINTS: Final[tuple[WorkerPoint, ...]] = get_args(WorkerPoint)
VARIABLE: Final = "_JOBD_FAILPOINT"

_CHOSEN, _, _passing = os.environ.get(VARIABLE, "").partition(":")
_passings_left = int(_passing) if _passing.isdecimal() else 1


def failpoint(point: ShimPoint | WorkerPoint) -> None:
    """Die here if this is the chosen point."""
    global _passings_left  # noqa: PLW0603 - one process dies once
    if point != _CHOSEN:
        return
    _passings_left -= 1
    if _passings_left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
