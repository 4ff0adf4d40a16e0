"""Which processes are a job's: real shims without cgroups, so that only parents can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.waiting import eventually
from worker.probe.devices import Devices
from worker.probe.processes import processes
from worker.probe.snapshot import Device, Snapshot
from worker.shims import Shims, ShimSpec, boot_s


def using(*pids: int) -> Snapshot:
    """Each of these has some memory of one device."""
    device: Device = {
        "index": 0,
        "uuid": "GPU-a",
        "parent": None,
        "model": "stub",
        "partitioned": False,
        "unified": False,
        "total": 1 << 34,
        "free": 1 << 33,
        "driver": 0,
        "utilisation": 0,
        "uses": [{"pid": pid, "bytes": 1 << 20} for pid in pids],
        "lost": False,
        "unhealthy": None,
        "faults": {},
    }
    return {
        "state": "ok",
        "why": None,
        "driver": None,
        "cuda": None,
        "devices": [device],
        "processes": processes(pids),
    }


@pytest.mark.parametrize("cgroups", [False, True])
@pytest.mark.trial("B125")
async def test_whatever_a_job_forks_is_its_own(state_dir: Path, cgroups: bool) -> None:
    state_dir.mkdir()
    shims = Shims(state_dir, cgroups=cgroups)
    shims.start()
    script = "(setsid sh -c 'setsid sleep 900 & echo $! > orphan' &); sleep 900 & echo $! > child; wait"
    spec = ShimSpec(1, 1, "t", ["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, str(state_dir))
    shim = await shims.launch(spec)
    try:
        assert shim.tree() is None or not shim.started()
        assert shim.go(boot_s() + 60)
        pids = {name: await eventually(lambda name=name: number_in(state_dir / name)) for name in ("orphan", "child")}
        await eventually(shim.started)
        tree = shim.tree()
        assert tree is not None and (tree.group is not None) == (cgroups and shims.supervision[-1] == "cgroup_kill")
        snapshot = using(pids["orphan"], pids["child"], os.getpid())
        [gpu] = Devices().found(snapshot, (tree,), 0).gpus
        owners = {process.pid: process.job for process in gpu.processes or ()}
        assert owners == {pids["orphan"]: "1.1", pids["child"]: "1.1", os.getpid(): None}
    finally:
        shim.stop("end", 0)
        await eventually(shim.final, within_s=20)
        await shims.aclose()


def number_in(path: Path) -> int | None:
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text else None
