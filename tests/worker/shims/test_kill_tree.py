"""When a job has ended, nothing of it runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.wire.states import LimitCode
from broker.wire.workers import Outcome
from support.waiting import eventually
from worker import handle
from worker.process import leftovers, records
from worker.process.leftovers import kill_leftovers, with_cookie
from worker.shims import boot_s

HYDRA = str(Path(__file__).with_name("hydra.py"))
KINDS = [
    "plain",
    "setsid",
    "ignores_term",
    "twice_forked_daemon",
    "daemon_that_ignores_term",
    "daemon_with_empty_environment",
    "halted",
    "hopper",
    "storm",
]
RESTLESS = {"hopper", "storm"}
NOBODY_KNOWS = RESTLESS | {"daemon_with_empty_environment"}
"""What is found neither by its parent nor by its environment: by the first only shim and zygote find it, and a list of
processes is too slow for what never rests. See G13."""


@pytest.fixture
def marks(short_dir: Path) -> Path:
    path = short_dir / "marks"
    path.mkdir()
    return path


async def begun(room, marks: Path, *kinds: str, **fields: object):
    shim = await room.run(sys.executable, "-I", "-S", HYDRA, str(marks), *kinds, **fields)
    await eventually((marks / "ready").exists)
    await eventually(shim.started)
    return shim


def living(marks: Path) -> list[str]:
    """Which of them still run."""
    return [kind for kind in KINDS if (marks / kind).exists() and _runs(int((marks / kind).read_text()))]


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def kill_shim(shim) -> None:
    os.kill(records.read_start(str(shim.directory))["shim"]["pid"], signal.SIGKILL)


# The ways in which a job's life can end, and what its shim, or its files, then say.


async def stopped(room, shim, marks) -> None:
    shim.stop("s1", 0.1)


async def out_of_lease(room, shim, marks) -> None:
    shim.until(0)


async def left_by_itself(room, shim, marks) -> None:
    (marks / "leave").touch()


async def over_a_limit(room, shim, marks) -> None:
    (marks / "quiet").touch()


async def main_process_killed(room, shim, marks) -> None:
    os.kill(shim.started().pid, signal.SIGKILL)


async def shim_killed(room, shim, marks) -> None:
    kill_shim(shim)


async def shim_and_zygote_killed(room, shim, marks) -> None:
    os.kill(room.shims.zygote, signal.SIGKILL)
    kill_shim(shim)


WAYS = {
    stopped: (Outcome.STOPPED, None),
    out_of_lease: (Outcome.LEASE_ENDED, None),
    over_a_limit: (Outcome.LIMIT, None),
    left_by_itself: (Outcome.EXITED, 3),
    main_process_killed: (Outcome.EXITED, None),
    shim_killed: (Outcome.LOST, None),
    shim_and_zygote_killed: (Outcome.LOST, None),
}


def matrix() -> Iterator[object]:
    """Every kind by itself, and all at once. Ways that wait for a grace of a second take those that don't hold still."""
    for way in WAYS:
        slow = way in (over_a_limit, left_by_itself, main_process_killed)
        for kind in ([kind for kind in KINDS if kind in RESTLESS] if slow else KINDS) + ["all"]:
            for cgroups in (True, False):
                kinds = KINDS if kind == "all" else [kind]
                if way is shim_and_zygote_killed and not cgroups:
                    kinds = [kind for kind in kinds if kind not in NOBODY_KNOWS]
                if kinds:
                    name = f"{way.__name__}-{kind}-{'cgroup' if cgroups else 'subreaper'}"
                    yield pytest.param(way, kinds, cgroups, id=name)


@pytest.mark.trial("B01")
@pytest.mark.parametrize(("way", "kinds", "cgroups"), list(matrix()))
@pytest.mark.guarantee("G13")
async def test_when_a_job_has_ended_nothing_of_it_runs(closed_room, marks, way, kinds, cgroups):
    closed_room.open(cgroups=cgroups)
    limits = {LimitCode.IDLE_TIMEOUT: 2.0} if way is over_a_limit else {}
    shim = await begun(closed_room, marks, *kinds, grace_s=0.1, linger_s=0.1, limits=limits)
    assert {*kinds} - RESTLESS <= {*living(marks)}
    await way(closed_room, shim, marks)
    final = await closed_room.ended(shim)
    if way in (shim_killed, shim_and_zygote_killed) and not cgroups:
        # What the zygote inherits, it kills at once; what was killed has no environment for a moment before it is gone.
        await eventually(lambda: not living(marks), within_s=5)
    assert living(marks) == []
    assert with_cookie(shim.id) == []
    outcome, exit_code = WAYS[way]
    assert final.outcome is outcome
    assert exit_code in (None, final.exit_code)
    assert final.stop == ("s1" if way is stopped else None)


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
    # Others' groups come and go meanwhile: os.walk passes over what is gone.
    assert not any(worker_groups in below for _, below, _ in os.walk("/sys/fs/cgroup"))


@pytest.mark.trial("B100")
async def test_orphans_that_end_while_the_job_runs_are_no_zombies(room):
    shim = await room.bash(
        "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.2; ps -o stat= --ppid $PPID | grep -c Z; echo end"
    )
    await room.printed(shim, b"end")
    assert shim.out.read_bytes() == b"0\nend\n"


@pytest.mark.trial("B92", "B102")
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


@pytest.mark.guarantee("G13")
async def test_what_a_dead_shim_left_and_cannot_be_killed_is_shown_too(closed_room, broken_code, monkeypatch):
    code = broken_code(("zygote.py", "            signal_each(living, signal.SIGKILL)\n", "            return\n"))
    closed_room.open(code=code, cgroups=False)
    shim = await closed_room.bash("sleep 300 & echo $! ready; wait")
    child = (await closed_room.printed(shim, b"ready")).split()[0].decode()
    with monkeypatch.context() as kills:
        kills.setattr(handle, "SURVIVORS_TOLD_AFTER_S", 0.2)
        kills.setattr(leftovers, "signal_each", lambda *_: None)
        kills.setattr(leftovers, "_kill_if_it_has", lambda *_: None)
        os.kill(records.read_start(str(shim.directory))["shim"]["pid"], signal.SIGKILL)
        stuck = await eventually(lambda: shim.final() is None and shim.stuck())
    assert f"{child}:S" in stuck
    assert (await closed_room.ended(shim)).outcome is Outcome.LOST


def _cpu_ticks(shim) -> int:
    pid = records.read_start(str(shim.directory))["shim"]["pid"]
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])
