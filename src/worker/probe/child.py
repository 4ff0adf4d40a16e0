"""The process that talks to the driver: `python -I …/worker/probe/child.py [ROOT]`, kept by `worker.probe.gpus`.

A line on stdin asks; one line of JSON answers. It ends when stdin does, and after an answer that says that there is
nothing to talk to: whoever wants to know again starts another.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # -I leaves the script's own place out of the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from worker.probe.makers import Maker, open_maker
from worker.probe.nvml import Gone
from worker.probe.processes import processes
from worker.probe.snapshot import Snapshot, nothing
from worker.process.kernel import die_with_parent, set_name

_MOST_MEMORY = 1 << 30
"""A driver that says that there are two thousand million processes makes a failed call, and no full machine."""


def main() -> int:
    set_name("jobd-probe")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the worker, which ends this
    die_with_parent()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(hard, _MOST_MEMORY)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "/")
    maker: Maker | Snapshot | None = None
    for _ in sys.stdin:
        if maker is None:
            maker = open_maker(root)
        answer = maker if isinstance(maker, dict) else _snapshot(maker)
        sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
        sys.stdout.flush()
        if answer["state"] != "ok":
            break
    # Without the library's own farewell: that may hang too.
    os._exit(0)


def _snapshot(maker: Maker) -> Snapshot:
    try:
        found = maker.snapshot()
    except Gone as error:
        return nothing("failed", f"the NVIDIA driver does not answer: {error}")
    pids = [use["pid"] for device in found["devices"] for use in device["uses"] or ()]
    found["processes"] = processes(pids)
    return found


if __name__ == "__main__":
    main()
