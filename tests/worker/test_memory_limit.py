"""A job's cgroup where memory can be limited: files that behave as the kernel's do. No real controller was there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.groups import can_limit_memory, is_delegated
from worker.probe.trees import look_at_tree
from worker.process import cgroup
from worker.process.identity import identify

GIB = 1 << 30


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """One with the memory controller, as its worker's directory lets it have."""
    made = tmp_path / "jobd-0f3a" / "42.1"
    made.mkdir(parents=True)
    (made.parent / "cgroup.subtree_control").write_text("")
    for name in ("memory.max", "memory.oom.group", "memory.swap.max"):
        (made / name).write_text("max\n")
    return made


def text(group: Path, name: str) -> str:
    return (group / name).read_text().split("\n")[0].removesuffix("max")


def test_a_limit_holds_for_all_together_and_kills_all_together(group: Path) -> None:
    assert cgroup.limit_memory(str(group), 4 * GIB)
    assert (group.parent / "cgroup.subtree_control").read_text() == "+memory"
    assert text(group, "memory.max") == str(4 * GIB)
    assert (group / "memory.oom.group").read_text().startswith("1")
    assert (group / "memory.swap.max").read_text().startswith("0")


def test_without_the_controller_nothing_is_limited_and_that_is_said(tmp_path: Path) -> None:
    assert not cgroup.limit_memory(str(tmp_path), GIB)
    assert list(tmp_path.iterdir()) == []


def test_an_older_kernel_without_the_newer_files_limits_all_the_same(group: Path) -> None:
    for name in ("memory.oom.group", "memory.swap.max"):
        (group / name).unlink()
    assert cgroup.limit_memory(str(group), GIB)


def test_what_the_kernel_counted(group: Path) -> None:
    assert (cgroup.oom_kills(str(group)), cgroup.memory_peak(str(group)), cgroup.memory_used(str(group))) == (
        0,
        None,
        None,
    )
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 17\noom 1\noom_kill 3\noom_group_kill 1\n")
    (group / "memory.peak").write_text(f"{4 * GIB}\n")
    (group / "memory.stat").write_text("anon 1048576\nfile 9999999\nkernel 1\nfile_mapped 2097152\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 1\n")
    assert (cgroup.oom_kills(str(group)), cgroup.memory_peak(str(group))) == (3, 4 * GIB)
    assert (cgroup.memory_used(str(group)), cgroup.cpu_s(str(group))) == (3 << 20, 2.5)
    use = look_at_tree(identify(os.getpid()), str(group))
    assert use is not None and (use.rss_mb, use.cpu_s) == (3, 2.5)


def test_whether_memory_can_be_limited_is_tried(tmp_path: Path) -> None:
    probe = tmp_path / "jobd-0f3a" / "probe-1"
    assert not can_limit_memory(str(tmp_path), str(probe))
    assert probe.is_dir()
    (probe / "memory.max").write_text("max\n")
    assert can_limit_memory(str(tmp_path), str(probe))


def test_a_group_is_ours_to_divide_only_if_it_was_delegated(tmp_path: Path) -> None:
    assert not is_delegated(str(tmp_path))
    try:
        os.setxattr(tmp_path, "user.delegate", b"1")
    except OSError:
        pytest.skip("this file system has no user attributes")
    assert is_delegated(str(tmp_path))
