"""Cores, memory, battery and tags, read from trees of files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.probe import resources, tags

MEMINFO = "MemTotal:       24684096 kB\nMemFree:        1000 kB\nMemAvailable:   20000000 kB\n"
V2 = "cgroup2 {point} cgroup2 rw 0 0\n"
V1 = "cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 12.0),
        (
            {
                "proc/self/mounts": V2.format(point="/sys/fs/cgroup"),
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
                "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/mounts": V1.format(name="cpu") + V1.format(name="memory"),
                "proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            },
            4.0,
        ),
        (
            {
                "proc/self/mounts": V1.format(name="cpu"),
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            12.0,
        ),
    ],
    ids=["no cgroup", "v2, limit of the parent", "v1", "no limit"],
)
def test_cores_are_what_affinity_and_quotas_leave(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    assert resources.usable_cores(tree(tmp_path, files)) == cores
    assert resources.cpus(tmp_path).logical == 16


def test_memory_is_the_machines_without_a_limit(tmp_path: Path) -> None:
    found = resources.ram(tree(tmp_path, {}))
    assert found is not None
    assert (found.total, found.available) == (23.54, 19.07)


def test_memory_is_the_cgroups_where_that_is_less_and_its_idle_cache_is_free(tmp_path: Path) -> None:
    files = {
        "proc/self/mounts": V2.format(point="/sys/fs/cgroup"),
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{8 << 30}\n",
        "sys/fs/cgroup/box/memory.current": f"{6 << 30}\n",
        "sys/fs/cgroup/box/memory.stat": f"anon 1\ninactive_file {1 << 30}\n",
    }
    found = resources.ram(tree(tmp_path, files))
    assert found is not None
    assert (found.total, found.available) == (8.0, 3.0)


def test_a_limit_beyond_the_machine_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/mounts": V1.format(name="memory"),
        "proc/self/cgroup": "4:memory:/box\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
    }
    found = resources.ram(tree(tmp_path, files))
    assert found is not None and found.total == 23.54


def test_without_proc_memory_is_not_guessed(tmp_path: Path) -> None:
    assert resources.ram(tmp_path) is None


def test_a_machines_battery_is_told_from_a_mouses(tmp_path: Path) -> None:
    assert resources.battery(tmp_path) is None
    mouse = {f"sys/class/power_supply/hid-0/{name}": text for name, text in MOUSE.items()}
    assert resources.battery(tree(tmp_path, mouse)) is None
    own = {f"sys/class/power_supply/hid-1-BAT0/{name}": text for name, text in OWN.items()}
    found = resources.battery(tree(tmp_path, own))
    assert found is not None
    assert (found.percent, found.on_battery) == (81, True)


MOUSE = {"type": "Battery\n", "scope": "Device\n", "capacity": "10\n", "status": "Discharging\n"}
OWN = {"type": "Battery\n", "capacity": "81\n", "status": "Discharging\n"}


def test_this_machine_is_read(tmp_path: Path) -> None:
    found = resources.look(tmp_path)
    assert 0 < found.cpus.usable <= found.cpus.logical
    assert found.disk_free_gb is not None
    assert found.ram_gb is None or 0 <= found.ram_gb.available <= found.ram_gb.total


def program(path: Path, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\ntouch was-run\n")
    path.chmod(mode)


def test_tags_are_programs_in_the_path_and_none_of_them_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("python3", "python3.11", "Rscript", "docker", "python3.11-config", "sbatch"):
        program(tmp_path / "bin" / name)
    program(tmp_path / "bin" / "ffmpeg", 0o644)
    program(tmp_path / "other" / "git")
    path = f"{tmp_path}/bin:relative:{tmp_path}/missing:"
    assert tags.found(path) == {"python", "python3.11", "R", "docker", "slurm"}
    assert not list(tmp_path.rglob("was-run"))


def test_the_version_of_cuda_is_where_its_compiler_lies(tmp_path: Path) -> None:
    program(tmp_path / "local" / "cuda-13.0" / "bin" / "nvcc")
    (tmp_path / "local" / "cuda").symlink_to(tmp_path / "local" / "cuda-13.0")
    assert tags.found(f"{tmp_path}/local/cuda/bin") == {"cuda", "cuda-13"}
    program(tmp_path / "plain" / "nvcc")
    assert tags.found(f"{tmp_path}/plain") == {"cuda"}


def test_settings_win_over_what_is_found() -> None:
    assert tags.effective({"docker", "git"}, ["home", "-docker"]) == ["git", "home"]
    assert tags.effective({"git"}, ["git", "-absent"]) == ["git"]
    assert tags.effective({"git"}, ["-git", "git"]) == ["git"]
