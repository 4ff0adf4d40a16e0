"""An output that is larger than its log may be: its beginning, its end, and how much is missing between them."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process import records
from worker.process.records import ROW, STDERR, STDOUT

CAP = 1 << 20
LINE = 16
AT_ITS_LIMIT = (
    b"[jobd: the log is at its limit of 1 MB: of what follows the last 0.125 MB are kept, and shown here at the end]\n"
)
DROPPED = re.compile(rb"\[jobd: (\d+) bytes of (stdout|stderr) were dropped here\]\n")


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %010d\n" % number for number in range(first, last))


def writer(lines: int, *, streams: int = 1, every: int = 1) -> list[str]:
    """A program that writes numbered lines of 16 bytes as fast as it can: to stdout, or in turns to both streams."""
    script = (
        "import os, sys\n"
        f"for at in range(0, {lines}, {every}):\n"
        f"  data = b''.join(b'line %010d\\n' % n for n in range(at, min(at + {every}, {lines})))\n"
        f"  fd = 1 + at // {every} % {streams}\n"
        "  while data: data = data[os.write(fd, data):]\n"
    )
    return [sys.executable, "-I", "-S", "-c", script]


async def capped(room, lines: int, **options: int):
    shim = await room.run(*writer(lines, **options), log_cap=CAP)
    return shim, await room.ended(shim, within_s=60)


async def _both_ends_are_there_and_all_is_accounted_for(room, lines: int) -> bool:
    shim, final = await capped(room, lines, every=1000)
    log = shim.out.read_bytes()
    head, note, rest = log.partition(AT_ITS_LIMIT)
    marker = DROPPED.match(rest)
    if not note or marker is None or marker[2] != b"stdout" or int(marker[1]) != final.dropped:
        return False
    tail = rest[marker.end() :]
    kept_lines = (len(head) + len(tail)) // LINE
    rows = list(ROW.iter_unpack(shim.idx.read_bytes()))
    return (
        head == numbered(0, len(head) // LINE)
        and tail == numbered(lines - len(tail) // LINE, lines)
        and final.dropped == (lines - kept_lines) * LINE
        and final.final_size == len(log) == sum(row[1] for row in rows)
        and len(log) <= CAP + 1000
        and len(tail) > CAP // 8 - 1000
        and not (shim.directory / records.TAIL).exists()
    )


async def test_the_head_the_tail_and_a_note_of_what_is_missing(room):
    assert await _both_ends_are_there_and_all_is_accounted_for(room, 400_000)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("        at = self._end % self._limit\n", "        at = 0\n"),
        ("        self._forget(self._end - self._limit)\n", "        self._forget(self._end - self._limit - 4096)\n"),
        ("        self._given[stream] += len(data)\n", "        self._given[stream] += len(data) // 2\n"),
    ],
)
async def test_a_ring_that_is_kept_wrong_would_be_noticed(closed_room, broken_code, right, wrong):
    closed_room.open(code=broken_code(("process/tail.py", right, wrong)))
    assert not await _both_ends_are_there_and_all_is_accounted_for(closed_room, 400_000)


async def test_an_output_within_its_limit_is_kept_to_the_byte(room):
    lines = CAP * 7 // 8 // LINE - 100
    shim, final = await capped(room, lines, every=1000)
    assert shim.out.read_bytes() == numbered(0, lines)
    assert final.dropped == 0


async def test_where_the_tail_holds_all_that_followed_nothing_is_missing(room):
    lines = CAP * 15 // 16 // LINE
    shim, final = await capped(room, lines, every=1000)
    log = shim.out.read_bytes()
    assert log.replace(AT_ITS_LIMIT, b"").replace(b"[jobd: nothing was dropped]\n", b"") == numbered(0, lines)
    assert final.dropped == 0


async def test_each_stream_says_what_it_lost(room):
    lines = 300_000
    shim, final = await capped(room, lines, streams=2, every=100)
    log = shim.out.read_bytes()
    rows = list(ROW.iter_unpack(shim.idx.read_bytes()))
    lost = {bytes(match[2]): int(match[1]) for match in DROPPED.finditer(log)}
    for stream, name in ((STDOUT, b"stdout"), (STDERR, b"stderr")):
        data = b"".join(log[row[0] : row[0] + row[1]] for row in rows if row[2] == stream)
        theirs = b"".join(re.findall(rb"line \d{10}\n", data))
        assert len(theirs) + lost[name] == lines * LINE // 2
        assert DROPPED.search(data)[2] == name
    assert sum(lost.values()) == final.dropped


async def test_a_line_longer_than_the_whole_log_keeps_its_two_ends(room):
    script = "import os\nfor _ in range(80):\n  data = b'x' * 65536\n  while data: data = data[os.write(1, data):]\nos.write(1, b'end\\n')"
    shim = await room.run(sys.executable, "-I", "-S", "-c", script, log_cap=CAP)
    final = await room.ended(shim)
    log = shim.out.read_bytes()
    assert log.endswith(b"xend\n")
    assert len(log) + final.dropped - 80 * 65536 - 4 == sum(map(len, re.findall(rb"\n?\[jobd: [^]]*\]\n", log)))


async def test_what_stands_in_the_log_never_changes(room):
    """It is sent while it grows: each look at it must be the beginning of what it is in the end."""
    shim = await room.run(*writer(1_000_000, every=500), log_cap=CAP)
    looks: list[bytes] = []

    def ended() -> bool:
        looks.append(shim.out.read_bytes() if shim.out.exists() else b"")
        return shim.final() is not None

    await eventually(ended, within_s=60, every_s=0.01)
    log = shim.out.read_bytes()
    assert all(log.startswith(look) for look in looks)
    assert any(look.endswith(AT_ITS_LIMIT) for look in looks)


async def test_streams_that_alternate_all_the_time_take_no_more_room_in_the_index(room):
    _, final = await capped(room, 60_000, streams=2)
    assert final.final_size + final.final_index_size < CAP * 17 // 16
    assert final.final_index_size % ROW.size == 0


@pytest.mark.guarantee("G13")
async def test_of_a_shim_killed_beyond_the_limit_the_head_is_left_and_the_loss_is_told(room):
    endless = "import os\nwhile True: os.write(1, b'0123456789abcde\\n' * 1000)"
    shim = await room.run(sys.executable, "-I", "-S", "-c", endless, log_cap=CAP)
    await eventually((shim.directory / records.TAIL).exists)
    os.kill(records.read_start(str(shim.directory))["shim"]["pid"], signal.SIGKILL)
    final = await room.ended(shim)
    assert final.outcome is Outcome.LOST
    assert final.final_size == shim.out_size()
    assert final.dropped == (shim.directory / records.TAIL).stat().st_size
    assert shim.out.read_bytes().endswith(AT_ITS_LIMIT)


async def test_a_tail_that_the_disk_does_not_take_is_lost_and_told(room):
    shim = await room.prepare(*writer(400_000, every=1000), log_cap=CAP)
    os.symlink("/dev/full", shim.directory / records.TAIL)
    shim.go(float("inf"))
    final = await room.ended(shim)
    assert final.exit_code == 0
    assert shim.out.read_bytes().endswith(b"[jobd: %d bytes of stdout were dropped here]\n" % final.dropped)
    assert final.dropped > 400_000 * LINE - CAP
