"""A shim that has seen one job to its end is the shim of the next: nothing of the first is left in it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from support.waiting import eventually
from worker.process import records
from worker.process.tree import children

BURN = "import time\nwhile time.process_time() < 0.4: pass\nx = bytearray(96 << 20)"


def shim_pid(shim) -> int:
    return records.read_start(str(shim.directory))["shim"]["pid"]


async def _nothing_of_the_first_is_left_for_the_second(room) -> bool:
    first = await room.run(sys.executable, "-I", "-S", "-c", BURN)
    await room.ended(first)
    await eventually(lambda: _idle(room), within_s=10)
    second = await room.bash("echo second; ls -l /proc/$PPID/fd | grep -c /assignments/1.1/; readlink /proc/$PPID/cwd")
    final = await room.ended(second)
    assert shim_pid(first) == shim_pid(second), "this test needs the same shim for both"
    said = second.out.read_text().splitlines()
    return (
        not first.alive()
        and said == ["second", "0", str(second.directory)]
        and final.cpu_s < 0.3
        and final.max_rss_mb < 64
    )


def _idle(room) -> bool:
    return all(_name(pid) == "jobd-spare" for pid in children(room.shims.zygote))


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "gone"


async def test_a_shim_that_is_used_again_has_nothing_of_the_job_before(room):
    assert await _nothing_of_the_first_is_left_for_the_second(room)


async def test_a_shim_that_keeps_what_it_opened_would_be_noticed(closed_room, broken_code):
    closed_room.open(code=broken_code(("shim.py", "os.closerange(own, _HIGHEST_FD)", "os.close(locks[0])")))
    assert not await _nothing_of_the_first_is_left_for_the_second(closed_room)


async def test_one_spare_is_there_before_the_first_job_and_after_many(closed_room, broken_code):
    closed_room.open(code=broken_code(("zygote.py", "_SPARE_S = 30.0", "_SPARE_S = 0.3")))
    await eventually(lambda: len(children(closed_room.shims.zygote)) == 1)
    shims = [await closed_room.run("sleep", "0.2") for _ in range(8)]
    assert len({shim_pid(shim) for shim in shims if await eventually(shim.started)}) == 8
    for shim in shims:
        assert (await closed_room.ended(shim)).exit_code == 0
    await eventually(lambda: len(children(closed_room.shims.zygote)) == 1, within_s=10)
    assert (await closed_room.final_of("true")).exit_code == 0


async def test_a_spare_that_was_killed_costs_no_job(room):
    for _ in range(5):
        for spare in children(room.shims.zygote):
            os.kill(spare, signal.SIGKILL)
        assert (await room.final_of("sh", "-c", "exit 3")).exit_code == 3


async def test_without_the_worker_spares_end_at_once_and_others_when_their_job_has_ended(room):
    busy = await room.bash("while test -e /proc/$PPID && ! test -e gate; do sleep 0.02; done", cwd=str(room.state))
    await eventually(busy.started)
    pids = {shim_pid(busy), *children(room.shims.zygote)}
    os.kill(room.shims.zygote, signal.SIGKILL)
    await eventually(lambda: [pid for pid in pids if _name(pid) != "gone"] == [shim_pid(busy)])
    (room.state / "gate").touch()
    assert (await room.ended(busy)).exit_code == 0
    await eventually(lambda: _name(shim_pid(busy)) == "gone")


async def test_jobs_at_the_same_time_never_share_a_shim(room):
    shims = await asyncio.gather(*(room.bash("sleep 0.1; exit 7") for _ in range(12)))
    finals = await asyncio.gather(*(room.ended(shim, within_s=30) for shim in shims))
    assert [final.exit_code for final in finals] == [7] * 12
