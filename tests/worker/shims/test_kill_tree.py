"""When a job has ended, nothing of it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process import records
from worker.process.leftovers import kill_leftovers
from worker.shims import boot_s

HYDRA = str(Path(__file__).with_name("hydra.py"))
KINDS = [
    "plain",
    "setsid",
    "ignores_term",
    "twice_forked_daemon",
    "daemon_that_ignores_term",
    "daemon_with_empty_environment",
    "hopper",
]
LEVELS = [pytest.param(True, id="cgroup"), pytest.param(False, id="subreaper")]


@pytest.fixture
def marks(short_dir: Path) -> Path:
    path = short_dir / "marks"
    path.mkdir()
    return path


async def begun(room, marks: Path, *kinds: str, **fields: object):
    shim = await room.run(sys.executable, "-I", "-S", HYDRA, str(marks), *kinds, **fields)
    await eventually((marks / "ready").exists)
    return shim


def living(marks: Path) -> list[str]:
    """Which of them still run."""
    return [path.name for path in marks.iterdir() if not path.name.startswith(".") and _runs(int(path.read_text()))]


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.mark.parametrize("cgroups", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.guarantee("G13")
async def test_a_stop_ends_every_kind_of_descendant(closed_room, marks, kind, cgroups):
    closed_room.open(cgroups=cgroups)
    shim = await begun(closed_room, marks, kind)
    assert kind in living(marks) or kind == "hopper"
    shim.stop("s1", 0.1)
    final = await closed_room.ended(shim)
    assert living(marks) == []
    assert (final.outcome, final.stop) == (Outcome.STOPPED, "s1")


@pytest.mark.parametrize("cgroups", LEVELS)
async def test_all_kinds_at_once_are_gone_when_the_job_has_ended(closed_room, marks, cgroups):
    closed_room.open(cgroups=cgroups)
    shim = await begun(closed_room, marks, *KINDS)
    shim.stop("s1", 0.0)
    await closed_room.ended(shim)
    assert living(marks) == []


@pytest.mark.parametrize("cgroups", LEVELS)
@pytest.mark.guarantee("G13")
async def test_a_main_process_that_exits_leaves_nothing_running(closed_room, marks, cgroups):
    closed_room.open(cgroups=cgroups)
    script = f"{sys.executable} -I -S {HYDRA} {marks} {' '.join(KINDS)} & while ! test -e {marks}/ready; do sleep 0.01; done; exit 3"
    shim = await closed_room.bash(script, linger_s=0.1)
    final = await closed_room.ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 3)
    assert living(marks) == []


async def test_the_end_of_the_lease_ends_the_whole_tree(room, marks):
    shim = await begun(room, marks, *KINDS, grace_s=0.1)
    shim.until(0)
    final = await room.ended(shim)
    assert final.outcome is Outcome.LEASE_ENDED
    assert living(marks) == []


async def test_a_kill_of_the_process_group_alone_would_be_noticed(closed_room, marks, broken_code):
    """The bug that this check is there for, planted: it must see survivors."""
    code = broken_code(
        (
            "shim.py",
            "        self._signal_tree(signal.SIGKILL)\n        self._reap()\n",
            (
                "        os.killpg(self._child.pid, signal.SIGKILL) if self._status is None else None\n"
                "        self._reap()\n        self._tree_gone = self._status is not None\n"
            ),
        ),
        ("zygote.py", "        if LINUX:\n            self._kill_strays()\n", ""),
    )
    closed_room.open(code=code, cgroups=False)
    shim = await begun(closed_room, marks, "plain", "daemon_that_ignores_term")
    shim.stop("s1", 0.0)
    await closed_room.ended(shim)
    assert living(marks) == ["daemon_that_ignores_term"]
    await eventually(lambda: kill_leftovers(shim.id, None))
    assert living(marks) == []


async def test_a_job_leaves_no_group_behind(room):
    if "cgroup_kill" not in room.shims.supervision:
        pytest.skip("no cgroup v2 can be made here")
    shim = await room.run("sleep", "60")
    await eventually(shim.started)
    pid = shim.started().pid
    group = next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
    assert group.endswith(f"/{shim.name}")
    shim.stop("s1", 0)
    await room.ended(shim)
    worker_groups = Path(group.removeprefix("0::")).parent.name
    assert worker_groups.startswith("jobd-")
    assert not any(Path("/sys/fs/cgroup").rglob(worker_groups))


async def test_orphans_that_end_while_the_job_runs_are_no_zombies(room):
    shim = await room.bash(
        "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.2; ps -o stat= --ppid $PPID | grep -c Z; echo end"
    )
    await room.printed(shim, b"end")
    assert shim.out.read_bytes() == b"0\nend\n"


@pytest.mark.guarantee("G13")
async def test_a_tree_that_cannot_be_killed_is_shown_and_not_declared_dead(closed_room, broken_code):
    """A process stuck in the kernel, as a kill that has no effect until a file says otherwise."""
    allowed = closed_room.state / "allow"
    code = broken_code(
        (
            "shim.py",
            "        self._signal_tree(signal.SIGKILL)\n",
            f"        os.path.exists({str(allowed)!r}) and self._signal_tree(signal.SIGKILL)\n",
        ),
        ("shim.py", "STUCK_AFTER_S = 5.0", "STUCK_AFTER_S = 0.2"),
    )
    closed_room.open(code=code, cgroups=False)
    shim = await closed_room.bash("trap '' TERM; echo ready; while :; do sleep 0.5; done")
    await closed_room.printed(shim, b"ready")
    shim.stop("s1", 0)
    stuck = await eventually(shim.stuck)
    assert f"{shim.started().pid}:S" in stuck
    assert shim.final() is None
    assert shim.alive()
    cpu_before = _cpu_ticks(shim)
    end = boot_s() + 1.0
    await eventually(lambda: boot_s() > end)
    assert _cpu_ticks(shim) - cpu_before < 30, "it tries on with pauses, not in a busy loop"
    allowed.touch()
    assert (await closed_room.ended(shim)).signal == "SIGKILL"


def _cpu_ticks(shim) -> int:
    pid = records.read_start(str(shim.directory))["shim"]["pid"]
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])
