"""What a shim and its files tell of a job's use of the machine, of its checkpoints, and of limits that others see."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.wire.states import LimitCode
from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process.sentinel import LINE

IDLE = LimitCode.GPU_IDLE_TIMEOUT
SAVED = LINE.decode()
GROUP_FILES = {"memory.max": "max", "memory.events": "oom_kill 0"}


@pytest.mark.parametrize("cgroups", [False, True])
async def test_the_memory_and_time_of_the_whole_tree_are_seen(closed_room, cgroups: bool) -> None:
    closed_room.open(cgroups=cgroups)
    hog = "import time; held = bytearray(60 << 20); print('held', flush=True); time.sleep(60)"
    burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo burnt"
    shim = await closed_room.bash(f'python3 -c "{hog}" & python3 -c "{hog}" & ({burn}); wait')
    await closed_room.printed(shim, b"burnt")
    output = await eventually(lambda: shim.out.read_bytes().count(b"held") == 2, within_s=20)
    assert output

    use = shim.used()

    assert use is not None and use.rss_mb is not None and use.cpu_s is not None
    assert 120 <= use.rss_mb < 400
    assert 0 < use.cpu_s < 60
    shim.stop("end", 0)
    final = await closed_room.ended(shim)
    assert final.cpu_s >= use.cpu_s * 0.9  # what nobody waited for is missing without a cgroup
    assert final.max_rss_mb >= 60


async def test_nothing_is_told_of_a_tree_that_is_not_there(room) -> None:
    shim = await room.prepare("true")
    assert shim.used() is None or shim.used().rss_mb is not None  # the child at its gate may be seen
    shim.close()
    await room.ended(shim)


async def test_a_checkpoint_is_noted_at_once_and_many_are_noted_together(room) -> None:
    shim = await room.bash(f"echo {SAVED}; sleep 0.3; for i in 1 2 3 4 5; do echo {SAVED}; done; exit 0")
    first = await eventually(shim.checkpoints)
    assert first.count >= 1 and first.age_s < 30
    await room.ended(shim)
    assert shim.checkpoints().count == 6


async def test_a_job_that_says_nothing_of_it_has_none(room) -> None:
    shim = await room.bash(f"echo x{SAVED}; printf {SAVED}")
    await room.ended(shim)
    assert shim.checkpoints() is None


@pytest.mark.guarantee("G25")
async def test_a_limit_that_the_worker_sees_stops_the_tree_as_any_other(room) -> None:
    shim = await room.bash("trap 'echo saved; exit 0' TERM; echo on; while :; do sleep 0.05; done", limits={IDLE: 30})
    await room.printed(shim, b"on")

    shim.limit(IDLE, 31.5)
    shim.limit(IDLE, 99.0)
    final = await room.ended(shim)

    assert (final.outcome, final.exit_code) == (Outcome.LIMIT, 0)
    assert (final.limit.code, final.limit.limit_s, final.limit.seen_s) == (IDLE, 30, 31.5)


async def test_a_limit_that_was_not_set_or_is_not_reached_stops_nothing(room) -> None:
    shim = await room.bash("echo on; sleep 0.5; echo off", limits={LimitCode.MAX_WALL: 60})
    await room.printed(shim, b"on")
    shim.limit(IDLE, 1000)
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 0)

    shim = await room.bash("echo on; sleep 0.5; echo off", limits={IDLE: 30})
    await room.printed(shim, b"on")
    shim.limit(IDLE, 29.9)
    shim.limit(IDLE, float("nan"))
    assert (await room.ended(shim)).outcome is Outcome.EXITED


async def test_a_limit_after_a_stop_changes_nothing(room) -> None:
    shim = await room.bash("trap 'sleep 0.3; exit 0' TERM; echo on; while :; do sleep 0.05; done", limits={IDLE: 1})
    await room.printed(shim, b"on")
    shim.stop("s1", 20)
    shim.limit(IDLE, 2)
    final = await room.ended(shim)
    assert (final.outcome, final.stop) == (Outcome.STOPPED, "s1")


async def out_of_memory(room, tmp_path: Path, script: str, events: str, **fields: object):
    """A job in a directory that behaves as a group with the memory controller; it writes the kernel's words itself."""
    group = tmp_path / "jobd-0" / "group"
    group.mkdir(parents=True)
    for name, text in GROUP_FILES.items():
        (group / name).write_text(text)
    (group / "memory.peak").write_text(str(3 << 29))
    room.shims._record = lambda spec, record=room.shims._record: record(spec) | {"cgroup": str(group)}
    said = f"cat {group}/memory.max; echo '{events}' > {group}/memory.events; {script}"
    return await room.ended(await room.bash(said, **fields))


async def test_the_kernels_word_makes_a_killed_job_one_that_ran_out_of_memory(room, tmp_path: Path) -> None:
    final = await out_of_memory(room, tmp_path, "kill -9 $$", "oom_kill 2", ram_gb=1.5)
    assert (final.outcome, final.signal, final.reason_code) == (Outcome.EXITED, "SIGKILL", "out_of_memory")
    assert "ram_gb=1.5" in final.reason and "1.50 GiB" in final.reason and "try ram_gb=2" in final.reason


@pytest.mark.parametrize(
    ("script", "events", "fields"),
    [
        ("kill -9 $$", "oom_kill 0", {"ram_gb": 1}),
        ("exit 137", "oom_kill 0", {"ram_gb": 1}),
        ("kill -9 $$", "oom_kill 2", {}),
        ("exit 0", "oom_kill 2", {"ram_gb": 1}),
    ],
    ids=["killed by somebody", "137 by itself", "no limit was asked for", "it ended well"],
)
async def test_without_evidence_an_end_stays_what_it_is(room, tmp_path: Path, script, events, fields) -> None:
    final = await out_of_memory(room, tmp_path, script, events, **fields)
    assert (final.outcome, final.reason_code) == (Outcome.EXITED, None)


async def test_ram_gb_is_the_limit_with_a_margin_where_there_is_a_controller(room, tmp_path: Path) -> None:
    await out_of_memory(room, tmp_path, "exit 0", "oom_kill 0", ram_gb=1)
    [limit] = [path.read_text() for path in tmp_path.rglob("memory.max")] or [None]
    assert int(limit) == (1 << 30) + (64 << 20)
