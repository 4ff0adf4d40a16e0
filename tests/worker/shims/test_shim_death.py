"""Who dies when: shims at every named point, the worker, and what the next worker finds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process import records
from worker.process.failpoint import SHIM_POINTS, VARIABLE
from worker.process.identity import is_alive
from worker.process.leftovers import with_cookie
from worker.shims import LaunchError, Shims, ShimSpec, boot_s

NEVER, LOST, EXITED = Outcome.NEVER_EXECUTED, Outcome.LOST, Outcome.EXITED
VERDICTS = {
    "prepared": {NEVER},
    "forked": {NEVER},
    "ready": {NEVER},
    "start_staged": {NEVER},
    "start_durable": {LOST},
    "released": {LOST},
    "running": {LOST},
    "output": {LOST},
    "reaped": {LOST},
    "tree_gone": {LOST},
    "exit_staged": {LOST},
    "exit_durable": {EXITED},
}


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroup", "subreaper"])
@pytest.mark.parametrize("point", [point for point in SHIM_POINTS if point != "received"])
@pytest.mark.guarantee("G4", "G13")
async def test_a_shim_killed_at_any_point_leaves_the_right_verdict_and_no_process(
    closed_room, short_dir, point, cgroups
):
    closed_room.open(environ={VARIABLE: point}, cgroups=cgroups)
    ran = short_dir / "ran"
    script = f"echo x >> {ran}; (setsid sleep 300 >/dev/null 2>&1 &); echo out; sleep 0.05; exit 7"
    try:
        shim = await closed_room.prepare("bash", "-c", script, linger_s=0.1)
    except LaunchError:
        assert VERDICTS[point] == {NEVER}
        assert not ran.exists()
        return
    shim.go(boot_s() + 30)
    await eventually(lambda: not shim.alive())
    final = await closed_room.ended(shim)
    assert final.outcome in VERDICTS[point]
    assert with_cookie(shim.id) == []
    if final.outcome is NEVER:
        assert not ran.exists()
    if final.outcome is EXITED:
        assert (final.exit_code, shim.out.read_bytes()) == (7, b"out\n")
    covered = sum(row[1] for row in records.ROW.iter_unpack(shim.idx.read_bytes())) if shim.idx.exists() else 0
    assert (final.final_size, covered) == (shim.out_size(), shim.out_size())


async def test_a_shim_killed_before_it_listens_is_a_launch_that_failed(closed_room):
    shims = closed_room.open(environ={VARIABLE: "received"})
    with pytest.raises(LaunchError):
        await shims.launch(ShimSpec(1, 1, "t", ["true"], {}))
    assert shims.found() == []


def test_every_point_has_a_verdict():
    assert {*VERDICTS, "received"} == set(SHIM_POINTS)


async def test_leftovers_with_the_cookie_are_found_when_shim_and_zygote_are_dead(closed_room):
    shims = closed_room.open(cgroups=False)
    shim = await closed_room.bash("(setsid sleep 300 >/dev/null 2>&1 &); echo ready; sleep 300")
    await closed_room.printed(shim, b"ready")
    await shims.aclose()
    os.kill(records.read_start(str(shim.directory))["shim"]["pid"], signal.SIGKILL)
    await eventually(lambda: not shim.alive())
    again = closed_room.open(cgroups=False)
    (found,) = again.found()
    assert (await closed_room.ended(found)).outcome is LOST
    assert with_cookie(shim.id) == []


WORKER = """
import asyncio, sys
from pathlib import Path
from worker.shims import *
async def main():
    shims = Shims(Path(sys.argv[1])); shims.start()
    running = await shims.launch(ShimSpec(1, 1, "secret", ["bash", "-c", sys.argv[2]], {"PATH": "/usr/bin:/bin"},
                                          cwd="/", extra={"lease_s": 1.5, "nested": [1, None]}))
    running.go(boot_s() + 30)
    await shims.launch(ShimSpec(2, 3, "other", ["true"], {}))
    while not running.started():
        await asyncio.sleep(.01)
    print("up", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


async def test_a_worker_killed_in_the_middle_of_a_job_is_followed_by_one_that_finds_it(closed_room, short_dir):
    gate = short_dir / "gate"
    script = f"echo begun; while ! test -e {gate}; do sleep 0.02; done; head -c 500000 /dev/zero; echo end; exit 9"
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, closed_room.state, script],
        stdout=subprocess.PIPE,
        env={},
        start_new_session=True,
    ) as first:
        assert await asyncio.to_thread(first.stdout.readline) == b"up\n"
        first.kill()
        first.wait()
    room = closed_room
    running, prepared = room.open().found()
    assert (running.job, running.attempt, running.token) == (1, 1, "secret")
    assert running.spec.extra == {"lease_s": 1.5, "nested": [1, None]}
    assert running.alive()
    assert is_alive(running.started().process)
    assert (prepared.name, prepared.token) == ("2.3", "other")
    assert await prepared.closed_for_good()
    gate.touch()
    final = await room.ended(running)
    assert (final.outcome, final.exit_code) == (EXITED, 9)
    assert running.out.read_bytes() == b"begun\n" + bytes(500_000) + b"end\n"


async def test_a_job_that_ended_while_no_worker_was_there_is_found_with_its_end(closed_room):
    shims = closed_room.open()
    shim = await closed_room.bash("echo out; exit 4")
    await shims.aclose()
    await eventually((shim.directory / records.EXIT).exists)
    (found,) = closed_room.open().found()
    assert (found.final().outcome, found.final().exit_code, found.final().final_size) == (EXITED, 4, 4)
    found.remove()
    assert closed_room.shims.found() == []
    assert not found.directory.exists()


@pytest.mark.trial("B23")
async def test_a_stop_from_a_new_worker_reaches_a_job_of_the_old_one(closed_room):
    shims = closed_room.open()
    shim = await closed_room.bash("echo ready; sleep 300")
    await closed_room.printed(shim, b"ready")
    await shims.aclose()
    (found,) = closed_room.open().found()
    found.stop("s1", 5)
    assert (await closed_room.ended(found)).stop == "s1"


async def test_half_made_and_half_deleted_directories_are_no_assignments(room):
    assignments = room.state / "assignments"
    for name in (".new-1.1-x", ".gone-2.1-1", "3.1"):
        (assignments / name).mkdir()
    (assignments / "3.1" / records.SPEC).write_text('{"proto": 99}')
    assert room.shims.found() == []
    assert [path.name for path in assignments.iterdir()] == ["3.1"]


async def test_files_that_lost_their_tail_in_a_power_failure_are_told_as_dropped(room):
    shim = await room.run("head", "-c", "1000", "/dev/zero")
    await room.ended(shim)
    os.truncate(shim.out, 600)
    (found,) = room.shims.found()
    assert (found.final().final_size, found.final().dropped) == (600, 400)


async def test_a_shim_that_fails_leaves_its_traceback_and_no_process(closed_room, broken_code):
    code = broken_code(
        (
            "shim.py",
            "    def _main_ended(self, status: int) -> None:\n",
            "    def _main_ended(self, status: int) -> None:\n        1 / 0\n",
        )
    )
    closed_room.open(code=code)
    shim = await closed_room.bash("(setsid sleep 300 >/dev/null 2>&1 &); exit 0")
    final = await closed_room.ended(shim)
    assert final.outcome is LOST
    assert "ZeroDivisionError" in final.reason
    assert "Traceback" in shim.crash()
    assert with_cookie(shim.id) == []


async def test_the_lock_is_held_without_a_gap_from_the_request_on(room):
    """Seen by a watcher in another process while twenty shims are made: a directory is never there with a free lock."""
    watcher = """
import fcntl, os, sys, json
seen, free = set(), []
while not os.path.exists(sys.argv[1] + "/enough"):
    for name in os.listdir(sys.argv[1] + "/assignments"):
        if name.startswith("."): continue
        seen.add(name)
        try: fd = os.open(f"{sys.argv[1]}/assignments/{name}/lock", os.O_RDONLY)
        except OSError: continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB); free.append(name)
        except BlockingIOError: pass
        os.close(fd)
print(json.dumps([len(seen), free]))
"""
    with subprocess.Popen([sys.executable, "-c", watcher, room.state], stdout=subprocess.PIPE) as process:
        shims = [await room.prepare("true") for _ in range(20)]
        (room.state / "enough").touch()
        seen, free = json.loads(await asyncio.to_thread(process.stdout.read))
    assert seen > 0
    assert free == []
    assert all(shim.alive() for shim in shims)


@pytest.mark.trial("B101")
async def test_the_state_directory_is_free_at_once_when_the_worker_dies_though_its_jobs_live(closed_room, short_dir):
    """Jobs and shims inherit none of the worker's descriptors: its locks and sockets are free when it is gone."""
    shims = closed_room.open()
    held = os.open(short_dir / "held", os.O_RDWR | os.O_CREAT)
    shim = await closed_room.bash("echo ready; sleep 300")
    await closed_room.printed(shim, b"ready")
    for pid in (shim.started().pid, records.read_start(str(shim.directory))["shim"]["pid"], shims.zygote):
        links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert str(short_dir / "held") not in links
    os.close(held)
    assert isinstance(shims, Shims)
