"""The broker's copy equals what the process wrote, byte for byte, whatever happens on the way."""

from __future__ import annotations

import asyncio
import hashlib
import sys

import pytest

from support.fleet import ended, output_of, submit

PYTHON = sys.executable

# Each program writes bytes that can be made again here, and their number is known.
TWENTY_MEGABYTES = "import sys; w = sys.stdout.buffer.write\nfor n in range(2000): w(bytes([n % 251]) * 10000)"


def expected_20_mb() -> bytes:
    return b"".join(bytes([n % 251]) * 10_000 for n in range(2000))


def same(got: bytes, wanted: bytes) -> None:
    assert len(got) == len(wanted)
    assert hashlib.sha256(got).digest() == hashlib.sha256(wanted).digest()


@pytest.mark.guarantee("G15")
async def test_20_mb_at_full_speed_arrive_exactly(fleet_with_worker) -> None:
    async with fleet_with_worker.client() as client:
        job = await submit(client, f'{PYTHON} -c "{TWENTY_MEGABYTES}"')
        done = await ended(client, job)

        same(await output_of(client, job), expected_20_mb())
        assert done.state.value == "completed"


@pytest.mark.trial("B79")
@pytest.mark.guarantee("G15")
async def test_bytes_of_every_kind_and_no_final_newline_arrive_exactly(fleet_with_worker) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300 + b'\\0\\0end')"
    async with fleet_with_worker.client() as client:
        job = await submit(client, f'{PYTHON} -c "{program}"')

        same(await output_of(client, job), bytes(range(256)) * 300 + b"\0\0end")


@pytest.mark.trial("B78")
async def test_characters_cut_at_chunk_edges_are_whole_again(fleet_with_worker) -> None:
    # Each character is flushed in pieces, so that reads and chunks end in the middle of it.
    program = fleet_with_worker.directory / "pieces.py"
    program.write_text(
        "import sys, time\n"
        "data = ('é€😀x' * 50).encode()\n"
        "for n in range(0, len(data), 3):\n"
        "    sys.stdout.buffer.write(data[n:n+3]); sys.stdout.buffer.flush(); time.sleep(0.002)\n"
    )
    async with fleet_with_worker.client() as client:
        job = await submit(client, f"{PYTHON} {program}")
        got = await output_of(client, job)

        same(got, ("é€😀x" * 50).encode())
        assert "\N{REPLACEMENT CHARACTER}" not in await client.job_logs(job)


@pytest.mark.parametrize("seconds", [5])
@pytest.mark.guarantee("G15")
async def test_a_broker_that_is_away_in_the_middle_loses_and_slows_nothing(fleet_with_worker, seconds: float) -> None:
    fleet = fleet_with_worker
    async with fleet.client() as client:
        job = await submit(client, "for i in $(seq 1 400); do echo line $i; sleep 0.01; done; date +%s.%N > ended")
        await asyncio.sleep(1)
        fleet.kill_broker()
        await asyncio.sleep(seconds)  # the job ends meanwhile: nothing waits for the broker
        await fleet.start_broker()
        done = await ended(client, job)

        assert await output_of(client, job) == b"".join(b"line %d\n" % n for n in range(1, 401))
        assert (done.state.value, len(done.assignments)) == ("completed", 1)


@pytest.mark.trial("B77")
async def test_the_last_burst_before_the_end_is_all_there(fleet_with_worker) -> None:
    async with fleet_with_worker.client() as client:
        jobs = [await submit(client, "seq 1 5000; printf last") for _ in range(10)]
        for job in jobs:
            await ended(client, job)

            assert await output_of(client, job) == b"".join(b"%d\n" % n for n in range(1, 5001)) + b"last"


async def test_stdout_and_stderr_are_told_apart(fleet_with_worker) -> None:
    async with fleet_with_worker.client() as client:
        job = await submit(client, "for i in 1 2 3; do echo out $i; sleep 0.05; echo err $i >&2; sleep 0.05; done")
        await ended(client, job)
        await output_of(client, job)

        async def lines(stream) -> list[str]:
            return (await client.job_logs(job, stream=stream)).splitlines()[1:-1]

        assert await lines("stdout") == ["out 1", "out 2", "out 3"]
        assert await lines("stderr") == ["err 1", "err 2", "err 3"]


async def test_progress_bars_and_colours_read_well_and_the_raw_bytes_stay(fleet_with_worker) -> None:
    command = r"printf '\033[31mred\033[0m\n'; for i in $(seq 1 100); do printf '\r%d%%' $i; done; printf '\ndone\n'"
    async with fleet_with_worker.client() as client:
        job = await submit(client, command)
        await ended(client, job)
        raw = await output_of(client, job)
        shown = await client.job_logs(job)

    assert b"\x1b[31mred" in raw and raw.count(b"\r") == 100
    assert "\x1b" not in shown and "red" in shown
    assert "100%" in shown and "\n7%" not in shown
