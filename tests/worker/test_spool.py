"""Output on its way, against a broker that keeps bytes by offset and fails as a test tells it to."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from broker.client import Unreachable
from broker.wire.problems import ProblemCode, Refused
from support.scripted_broker import ScriptedBroker
from support.waiting import eventually
from worker.spool import CHUNK_BYTES, Fate, Output, Spool, StreamName

KEY = (1, 1)


@pytest.fixture
def store() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
async def spool(store: ScriptedBroker):
    spool = Spool(store, "a" * 32, 1, lambda refusal: None)
    running = asyncio.create_task(spool.run())
    yield spool
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def output(directory: Path, job: int = 1, *, resumed: bool = False) -> Output:
    base = directory / str(job)
    base.mkdir(exist_ok=True)
    return Output(job, 1, "t", base / "out", base / "idx", resumed)


def write(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


async def test_output_arrives_byte_for_byte_whatever_bytes_they_are(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    data = os.urandom(3 * CHUNK_BYTES + 17) + b"\xff\x00\xe2\x82"
    out = output(tmp_path)
    spool.follow(out)
    write(out.log, data[:1000])
    write(out.log, data[1000:])
    write(out.index, b"i" * 48)
    spool.news(KEY)
    assert await asyncio.wait_for(spool.settled(KEY, len(data), 48), 10) is Fate.DURABLE
    assert bytes(store.kept[1, "log"]) == data
    assert max(length for *_, length in store.chunks) <= CHUNK_BYTES


async def test_a_line_is_sent_within_a_tenth_of_a_second_of_the_bell(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    out = output(tmp_path)
    spool.follow(out)
    write(out.log, b"hello\n")
    spool.news(KEY)
    await eventually(lambda: store.kept[1, "log"] == b"hello\n", within_s=0.4, every_s=0.005)


async def test_output_is_found_without_a_bell(store: ScriptedBroker, spool: Spool, tmp_path: Path) -> None:
    out = output(tmp_path)
    spool.follow(out)
    write(out.log, b"unheard\n")
    await eventually(lambda: store.kept[1, "log"] == b"unheard\n", within_s=5)


@pytest.mark.guarantee("G15")
async def test_lost_requests_and_lost_answers_leave_no_gap_and_no_double(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    chance = random.Random(7)

    def fail(job: int, stream: StreamName, offset: int) -> None:
        if chance.random() < 0.4:
            raise Unreachable("lost")

    store.before_append = store.after_append = fail
    data = os.urandom(2 * CHUNK_BYTES)
    out = output(tmp_path)
    write(out.log, data)
    spool.follow(out)
    settled = asyncio.create_task(spool.settled(KEY, len(data), 0))
    for _ in range(200):
        spool.reachable()
        if settled.done():
            break
        await asyncio.sleep(0.02)
    assert await asyncio.wait_for(settled, 20) is Fate.DURABLE
    assert bytes(store.kept[1, "log"]) == data


async def test_a_broker_that_lost_its_tail_gets_it_again(store: ScriptedBroker, spool: Spool, tmp_path: Path) -> None:
    out = output(tmp_path)
    write(out.log, b"0123456789")
    spool.follow(out)
    await eventually(lambda: len(store.kept[1, "log"]) == 10)
    del store.kept[1, "log"][4:]  # a crash before its disk had them
    write(out.log, b"ab")
    spool.news(KEY)
    assert await asyncio.wait_for(spool.settled(KEY, 12, 0), 10) is Fate.DURABLE
    assert store.kept[1, "log"] == b"0123456789ab"


async def test_a_new_epoch_goes_on_from_the_brokers_size(store: ScriptedBroker, spool: Spool, tmp_path: Path) -> None:
    data = os.urandom(2 * CHUNK_BYTES)
    store.kept[1, "log"] += data[: CHUNK_BYTES + 5]
    out = output(tmp_path, resumed=True)
    write(out.log, data)
    spool.follow(out)
    assert await asyncio.wait_for(spool.settled(KEY, len(data), 0), 10) is Fate.DURABLE
    assert bytes(store.kept[1, "log"]) == data
    sent = sum(length for _, stream, _, length in store.chunks if stream == "log")
    assert sent == CHUNK_BYTES - 5


async def test_it_is_settled_only_when_it_is_on_the_brokers_disk(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    store.durable_lag = 3
    out = output(tmp_path)
    write(out.log, b"0123456789")
    spool.follow(out)
    settled = asyncio.create_task(spool.settled(KEY, 10, 0))
    await eventually(lambda: len(store.kept[1, "log"]) == 10)
    await eventually(lambda: len(store.chunks) > 3)  # it goes on asking
    assert not settled.done()
    store.durable_lag = 0
    assert await asyncio.wait_for(settled, 5) is Fate.DURABLE


async def test_what_a_stale_owner_sends_is_given_up(store: ScriptedBroker, spool: Spool, tmp_path: Path) -> None:
    def refuse(job: int, stream: StreamName, offset: int) -> None:
        raise Refused(ProblemCode.STALE_ASSIGNMENT, "another has it")

    store.before_append = refuse
    out = output(tmp_path)
    write(out.log, b"x")
    spool.follow(out)
    assert await asyncio.wait_for(spool.settled(KEY, 1, 0), 5) is Fate.STALE


async def test_after_a_lost_lease_output_is_kept_and_sent_when_it_is_wanted_again(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    lost = True

    def refuse(job: int, stream: StreamName, offset: int) -> None:
        if lost:
            raise Refused(ProblemCode.LEASE_LOST, "reconcile first", retryable=True)

    store.before_append = refuse
    out = output(tmp_path)
    write(out.log, b"kept")
    spool.follow(out)
    await eventually(lambda: store.chunks)
    lost = False
    assert await asyncio.wait_for(spool.settled(KEY, 4, 0), 10) is Fate.DURABLE


async def test_a_job_that_writes_without_end_does_not_delay_anothers_line(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    store.append_s = 0.02
    for job in range(10, 18):
        big = output(tmp_path, job)
        big.log.write_bytes(b"")
        os.truncate(big.log, 200 * CHUNK_BYTES)
        spool.follow(big)
    await eventually(lambda: len(store.chunks) > 10)
    small = output(tmp_path)
    spool.follow(small)
    write(small.log, b"me too\n")
    calls_before = len(store.chunks)
    spool.news(KEY)
    await eventually(lambda: store.kept[1, "log"] == b"me too\n", within_s=5, every_s=0.005)
    assert len(store.chunks) - calls_before < 40
    for job in range(10, 18):
        spool.forget((job, 1))


async def test_a_chatty_job_costs_no_request_a_line(store: ScriptedBroker, spool: Spool, tmp_path: Path) -> None:
    out = output(tmp_path)
    spool.follow(out)
    for number in range(100):
        write(out.log, b"%d\n" % number)
        spool.news(KEY)
        await asyncio.sleep(0.005)
    await spool.settled(KEY, out.log.stat().st_size, 0)
    assert len([call for call in store.chunks if call[1] == "log"]) < 40


async def test_of_a_file_that_is_gone_the_broker_is_told_that_nothing_comes(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    out = output(tmp_path, resumed=True)
    spool.follow(out)
    await asyncio.sleep(0.1)  # it has asked where the broker stands
    assert await asyncio.wait_for(spool.settled(KEY, 8, 0), 5) is Fate.DURABLE
    assert store.ends[1, "log"] == 0


async def test_a_spool_that_a_power_cut_shortened_is_sent_as_far_as_it_goes(
    store: ScriptedBroker, spool: Spool, tmp_path: Path
) -> None:
    out = output(tmp_path)
    write(out.log, b"half")
    spool.follow(out)
    assert await asyncio.wait_for(spool.settled(KEY, 8, 0), 5) is Fate.DURABLE
    assert store.kept[1, "log"] == b"half"
