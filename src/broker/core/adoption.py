"""The job that stands for a process that somebody else had started. Pure.

It is never run: it can't wait in the queue, be retried, or go to another worker. What it takes is reserved whether there
is room for it or not, since it takes it already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from broker.wire.jobs import JobSpec
from broker.wire.machines import Facts, Given, GpuShare
from broker.wire.states import OnPreempt, OnWorkerLost


def completed(said: Mapping[str, Any], pid: int, gpus: int) -> dict[str, Any]:
    """The fields of a whole specification, for `JobSpec` to judge: what was said, and what every adopted job is."""
    return {
        **said,
        "command": f"process {pid}",
        "gpus": gpus,
        "on_worker_lost": OnWorkerLost.ORPHAN,
        "on_preempt": OnPreempt.STOP,
        "first_output_timeout_s": "none",
    }


def devices(pid: int, facts: Facts | None) -> list[str]:
    """The devices of which this process has memory, as its machine's worker saw it last."""
    gpus = facts.gpus if facts is not None else []
    return [gpu.uuid for gpu in gpus if gpu.uuid and any(one.pid == pid and one.seen for one in gpu.processes or ())]


def given(spec: JobSpec, uuids: Sequence[str]) -> Given | None:
    """What it has besides cpus: as much of each of its devices as was said, or all of it."""
    mb = None if spec.vram_gb is None else math.ceil(spec.vram_gb * 1024)
    shares = [GpuShare(uuid=uuid, mb=mb) for uuid in uuids]
    if not (shares or spec.ram_gb or spec.resources):
        return None
    return Given(gpus=shares or None, ram_gb=spec.ram_gb, resources=spec.resources)
