"""Output while somebody is missing: the broker is away, the worker was killed, the log is at its limit."""

from __future__ import annotations

import sys

import pytest

from support.fleet import Fleet, ended, output_of, submit
from support.waiting import eventually, eventually_sync


def writer(fleet: Fleet, *, lines: int, waits_at: int) -> str:
    """A job that writes numbered lines as fast as it can, and in the middle waits until it may go on."""
    program = fleet.directory / "writer.py"
    program.write_text(
        "import os, pathlib, time\n"
        f"here = pathlib.Path({str(fleet.directory)!r})\n"
        f"for at in range(0, {lines}, 1000):\n"
        f"    if at == {waits_at}:\n"
        "        (here / 'half').touch()\n"
        "        while not (here / 'on').exists(): time.sleep(0.01)\n"
        "    data = b''.join(b'line %010d\\n' % n for n in range(at, at + 1000))\n"
        "    while data: data = data[os.write(1, data):]\n"
        "(here / 'wrote').touch()\n"
    )
    return f"{sys.executable} -I -S {program}"


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %010d\n" % number for number in range(first, last))


@pytest.mark.trial("B76")
@pytest.mark.guarantee("G15")
async def test_a_broker_that_is_away_while_megabytes_are_written_gets_them_all_and_holds_up_nothing(
    fleet: Fleet,
) -> None:
    await fleet.start_worker()
    lines = 800_000
    async with fleet.client() as client:
        job = await submit(client, writer(fleet, lines=lines, waits_at=100_000))
        await eventually((fleet.directory / "half").exists, within_s=30)
        fleet.kill_broker()
        (fleet.directory / "on").touch()
        eventually_sync((fleet.directory / "wrote").exists, within_s=60)  # nobody takes it, and it is written
        await fleet.start_broker()
        done = await ended(client, job)

        assert done.state.value == "completed"
        assert await output_of(client, job) == numbered(0, lines)


@pytest.mark.trial("B82")
@pytest.mark.guarantee("G15")
async def test_a_log_at_its_limit_says_so_everywhere_also_when_the_worker_was_killed_meanwhile(fleet: Fleet) -> None:
    await fleet.start_worker(log_cap_mb="1")
    lines = 400_000
    async with fleet.client() as client:
        job = await submit(client, writer(fleet, lines=lines, waits_at=200_000))
        await eventually((fleet.directory / "half").exists, within_s=30)

        async def at_its_limit() -> bool:
            return "the log is at its limit of 1 MB" in await client.job_logs(job, tail=1)

        await eventually(at_its_limit, within_s=30)
        fleet.kill_worker("w1")
        (fleet.directory / "on").touch()
        await fleet.start_worker(log_cap_mb="1")
        done = await ended(client, job)
        log = await output_of(client, job)
        shown = await client.job_logs(job, tail=1)

    assert done.assignments
    dropped = done.assignments[-1].dropped_bytes
    assert dropped
    note = b"[jobd: %d bytes of stdout were dropped here]\n" % dropped
    head, _, tail = log.partition(note)
    kept, _, _ = head.partition(b"[jobd: the log is at its limit")
    assert kept == numbered(0, len(kept) // 16)
    assert tail == numbered(lines - len(tail) // 16, lines)
    assert len(kept) + dropped + len(tail) == lines * 16
    assert f"{dropped} bytes of output were not kept" in shown.splitlines()[-1]
