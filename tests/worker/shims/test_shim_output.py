"""Every byte, in order, by stream; and a job that is never held up by its output."""

from __future__ import annotations

import hashlib
import os
import sys
import time

import pytest

from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process.records import ROW, STDERR, STDOUT


def rows(shim):
    return list(ROW.iter_unpack(shim.idx.read_bytes()))


def of_stream(shim, stream):
    data = shim.out.read_bytes()
    return b"".join(data[offset : offset + length] for offset, length, which, _ in rows(shim) if which == stream)


@pytest.mark.guarantee("G15")
async def test_20_mb_at_full_speed_arrive_whole(room):
    writer = "import os,random; r=random.Random(7); b=r.randbytes(1<<20)\nfor _ in range(20): os.write(1,b)"
    whole = "import random,hashlib; b=random.Random(7).randbytes(1<<20); print(hashlib.sha256(b*20).hexdigest())"
    begun = time.monotonic()
    shim = await room.run(sys.executable, "-I", "-S", "-c", writer)
    final = await room.ended(shim)
    took_s = time.monotonic() - begun
    assert (final.exit_code, final.final_size, final.dropped) == (0, 20 << 20, 0)
    expected = await room.run(sys.executable, "-I", "-S", "-c", whole)
    await room.ended(expected)
    assert hashlib.sha256(shim.out.read_bytes()).hexdigest() == expected.out.read_text().strip()
    assert final.final_index_size == shim.index_size() < 20_000
    assert took_s < 10


async def test_streams_are_told_apart_and_any_byte_is_just_a_byte(room):
    script = "for i in 1 2 3; do printf 'o%s\\0\\xff' $i; sleep 0.02; printf 'e%s\\xc3' $i >&2; sleep 0.02; done"
    before = time.time()
    shim = await room.bash(script)
    final = await room.ended(shim)
    assert of_stream(shim, STDOUT) == b"o1\0\xffo2\0\xffo3\0\xff"
    assert of_stream(shim, STDERR) == b"e1\xc3e2\xc3e3\xc3"
    assert final.final_size == shim.out_size() == 21
    index = rows(shim)
    assert [row[0] for row in index] == [sum(row[1] for row in index[:number]) for number in range(len(index))]
    assert all(before - 1 < row[3] < time.time() + 1 for row in index)
    assert sorted(index, key=lambda row: row[3]) == index


async def test_many_small_writes_share_few_rows(room):
    shim = await room.bash("for i in {1..2000}; do echo line $i; done")
    final = await room.ended(shim)
    assert shim.out.read_bytes() == b"".join(b"line %d\n" % number for number in range(1, 2001))
    assert final.final_index_size // ROW.size < 200


async def test_output_can_be_read_while_the_job_runs(room):
    shim = await room.bash("echo first; read -t 60 <> <(:); echo never")
    assert await room.printed(shim, b"first") == b"first\n"
    await eventually(lambda: shim.index_size() == ROW.size)
    assert shim.final() is None


@pytest.mark.trial("B76")
async def test_a_full_disk_drops_output_counts_it_and_holds_up_nothing(room):
    shim = await room.prepare("sh", "-c", "head -c 300000 /dev/zero; echo end >&2; exit 3")
    os.symlink("/dev/full", shim.out)
    os.symlink("/dev/full", shim.idx)
    shim.go(float("inf"))
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 3)
    assert (final.final_size, final.final_index_size, final.dropped) == (0, 0, 300_004)


async def test_a_background_child_that_holds_the_pipe_does_not_keep_the_job_running(room):
    begun = time.monotonic()
    shim = await room.bash("sleep 300 & echo started; exit 5", linger_s=0.3)
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code, final.final_size) == (Outcome.EXITED, 5, 8)
    assert final.duration_s < 5
    assert time.monotonic() - begun < 10


async def test_output_that_comes_soon_after_the_exit_is_kept(room):
    shim = await room.bash("(sleep 0.2; echo late) & exit 0", linger_s=10)
    final = await room.ended(shim)
    assert (final.exit_code, shim.out.read_bytes()) == (0, b"late\n")
    assert final.duration_s < 0.2


async def test_a_job_that_closed_its_output_is_waited_for(room):
    final = await room.final_of("bash", "-c", "exec >&- 2>&-; sleep 0.3; exit 9")
    assert (final.exit_code, final.final_size) == (9, 0)
    assert final.duration_s >= 0.3
