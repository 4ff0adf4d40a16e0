"""Much output, many lines, long lines: all of it arrives, in bounded memory, and what is shown of it stays small."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.logs import index
from broker.logs.files import LogFiles
from broker.logs.index import Stream
from support.fleet import Fleet, ended, submit
from support.waiting import eventually

GROWTH_MB = 64


def peak_mb(pid: int) -> float:
    """The most memory that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Memory:
    """What broker and worker have grown by, at most, since this was made."""

    def __init__(self, fleet: Fleet) -> None:
        assert fleet.broker is not None
        self._pids = {"broker": fleet.broker.pid, "worker": fleet.workers["w1"].pid}
        self._before = {name: peak_mb(pid) for name, pid in self._pids.items()}

    @property
    def growth_mb(self) -> dict[str, float]:
        return {name: peak_mb(pid) - self._before[name] for name, pid in self._pids.items()}


async def whole(client: BrokerClient, job: int) -> None:
    """Wait until the broker has all of its output."""

    async def complete() -> bool:
        deliveries = (await client.job_get(job, detail="full")).assignments or []
        return bool(deliveries and deliveries[-1].log_complete)

    await eventually(complete, within_s=90)


async def digest(client: BrokerClient, job: int) -> tuple[int, str]:
    size, summed = 0, hashlib.sha256()
    async for piece in client.job_output(job):
        size += len(piece)
        summed.update(piece)
    return size, summed.hexdigest()


async def found(client: BrokerClient, job: int, pattern: str) -> str:
    """The first view with a match. One look takes so long at most; its last line says where to go on."""
    cursor = 0
    while "(no line matches)" in (view := await client.job_logs(job, grep=pattern, cursor=cursor)):
        cursor = int(view.splitlines()[-1].partition("cursor=")[2].split()[0])
    return view


def files(fleet: Fleet) -> LogFiles:
    return LogFiles(fleet.state / "logs")


@pytest.mark.trial("B82")
@pytest.mark.guarantee("G15")
async def test_100_mb_at_full_speed_arrive_whole_and_nobody_keeps_them(shared: Fleet) -> None:
    memory = Memory(shared)
    program = "import os\nfor n in range(1600):\n  d = bytes([n % 251]) * 65536\n  while d: d = d[os.write(1, d):]"
    expected = hashlib.sha256()
    for n in range(1600):
        expected.update(bytes([n % 251]) * 65536)
    async with shared.client() as client:
        job = await submit(client, f'{sys.executable} -I -S -c "{program}"')
        await ended(client, job)
        await whole(client, job)

        assert await digest(client, job) == (1600 * 65536, expected.hexdigest())
        assert max(memory.growth_mb.values()) < GROWTH_MB, memory.growth_mb


@pytest.mark.guarantee("G15")
async def test_a_million_lines_arrive_with_few_rows_and_any_of_them_is_found(shared: Fleet) -> None:
    async with shared.client() as client:
        job = await submit(client, "seq 1 1000000")
        await ended(client, job)
        await whole(client, job)

        expected = b"".join(b"%d\n" % n for n in range(1, 1_000_001))
        assert await digest(client, job) == (len(expected), hashlib.sha256(expected).hexdigest())
        assert files(shared).size(job, 1, "index") < len(expected) // 100
        assert (await client.job_logs(job, tail=2)).splitlines()[1:-1] == ["999999", "1000000"]
        assert "765432: 765432" in await found(client, job, "^765432$")
        assert "first 3 lines" in await client.job_logs(job, head=3)


@pytest.mark.guarantee("G15")
async def test_half_a_million_lines_that_alternate_between_the_streams_are_told_apart(shared: Fleet) -> None:
    program = shared.directory / "alternates.py"
    program.write_text(
        "import os\n"
        "for n in range(0, 500_000, 50):\n"
        "    data = b''.join(b'%d\\n' % k for k in range(n, n + 50))\n"
        "    fd = 1 + n // 50 % 2\n"
        "    while data: data = data[os.write(fd, data):]\n"
    )
    async with shared.client() as client:
        job = await submit(client, f"{sys.executable} -I -S {program}")
        await ended(client, job)
        await whole(client, job)

    with files(shared).opened(job, 1) as snapshot:
        for half, stream in enumerate(Stream):
            runs = index.forward(snapshot, 0, snapshot.size, stream)
            got = b"".join(snapshot.read(offset, length) for offset, length in runs)
            assert got == b"".join(b"%d\n" % n for n in range(500_000) if n // 50 % 2 == half)
        assert snapshot.index_size < snapshot.size // 8


@pytest.mark.guarantee("G15")
async def test_one_line_of_50_mb_is_kept_whole_and_shown_short(shared: Fleet) -> None:
    memory = Memory(shared)
    async with shared.client() as client:
        job = await submit(client, "echo before; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo after")
        await ended(client, job)
        await whole(client, job)
        views = {
            "tail": await client.job_logs(job),
            "head": await client.job_logs(job, head=10),
            "grep": await client.job_logs(job, grep="xxx"),
            "after": await client.job_logs(job, grep="after"),
            "page": await client.job_logs(job, cursor=25_000_000),
        }

        assert (await client.job_get(job)).log_bytes == len("before\n") + 50_000_001 + len("after\n")
        assert {name: len(text) for name, text in views.items() if len(text) > 4000} == {}
        assert views["tail"].splitlines()[-2] == "after"
        assert views["head"].splitlines()[1] == "before"
        assert "bytes]" in views["grep"]
        assert "after" in views["after"]
        assert max(memory.growth_mb.values()) < GROWTH_MB, memory.growth_mb
