"""For Python programs that run as jobs: say how far you are, what came out, and save in time when you are stopped.

One file of the standard library. Outside of a job all of it does nothing, so a program needs no second path:

    from jobd_mcp import job

    job.on_checkpoint(save)
    for step in range(steps):
        job.progress(step / steps, f"step {step}")
    job.result({"loss": loss})
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

STOPPED = 128 + signal.SIGTERM


def progress(fraction: float, message: str | None = None) -> None:
    """How far the job is, from 0 to 1, with a word about it. As often as you like: it is one line in a file."""
    file = os.environ.get("JOBD_PROGRESS_FILE")
    if file is None:
        return
    said = " ".join(str(message).split()) if message is not None else ""
    with open(file, "a", encoding="utf-8", errors="replace") as lines:
        lines.write(f"{float(fraction):.6g} {said}".rstrip() + "\n")


def result(value: Any) -> None:
    """What came out: anything that JSON can say, up to 256 KiB. The last one counts. ValueError, TypeError: JSON can't."""
    file = os.environ.get("JOBD_RESULT_FILE")
    text = json.dumps(value, allow_nan=False)
    if file is None:
        return
    draft = f"{file}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as whole:
        whole.write(text)
    os.replace(draft, file)  # whole, or the one before


def on_checkpoint(handler: Callable[[], object]) -> None:
    """Have `handler` save when the job is asked to stop; then it is said that this is safe, and the program ends.

    There are `JOBD_CHECKPOINT_GRACE_S` seconds for it. From the main thread only, as all handlers of signals.
    """
    if "JOBD_JOB_ID" not in os.environ:
        return

    def save(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)  # a second one must not begin in the middle of the first
        handler()
        sys.stdout.write("jobd-checkpoint-complete\n")
        sys.stdout.flush()
        sys.exit(STOPPED)

    signal.signal(signal.SIGTERM, save)


def resume_dir() -> Path | None:
    """Where checkpoints lie, kept over all attempts, if this job has left any there. None: begin at the beginning."""
    directory = os.environ.get("JOBD_CHECKPOINT_DIR")
    if directory is None or not os.path.isdir(directory) or not os.listdir(directory):
        return None
    return Path(directory)


def artifacts_dir() -> Path:
    """Where to leave files for whoever submitted the job. Outside of a job: the current directory."""
    return Path(os.environ.get("JOBD_ARTIFACTS_DIR", os.curdir))
