"""How long a job is willing to wait: from when it is ready, until a worker has accepted it."""

from __future__ import annotations

import pytest

from broker.wire.events import EventType
from broker.wire.workers import Outcome

LIMIT_S = 60


async def submit(bench, **fields: object) -> int:
    return await bench.submit(scheduling_timeout_s=LIMIT_S, **fields)


@pytest.mark.guarantee("G25")
async def test_a_job_that_nobody_takes_ends_when_its_time_is_over_and_says_why(bench) -> None:
    job = await submit(bench)
    child = await bench.submit(depends_on=[job])

    await bench.sweep(after_s=LIMIT_S - 1)
    assert await bench.state(job) == "queued"
    await bench.sweep(after_s=2)

    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code, got.attempt) == ("scheduling_timeout", "scheduling_timeout", None)
    assert "60 s" in got.reason.message
    assert (await bench.client.job_get(child)).state.value == "cancelled"
    assert (await bench.client.job_list()).counts == {"scheduling_timeout": 1, "cancelled": 1}
    assert len((await bench.client.job_events(type=EventType.SCHEDULING_TIMEOUT)).events) == 1
    assert (await (await bench.registered()).poll()).deliveries == []


async def test_every_member_of_an_array_has_it(bench) -> None:
    array = await submit(bench, count=3)

    await bench.sweep(after_s=LIMIT_S + 1)

    assert (await bench.client.job_list(array=array)).counts == {"scheduling_timeout": 3}


@pytest.mark.guarantee("G25")
@pytest.mark.trial("B91")
async def test_refusals_and_bounces_that_executed_nothing_do_not_reset_it(bench) -> None:
    job = await submit(bench, cwd="/nowhere")
    for n in range(5):
        worker = await bench.registered(f"w{n}")
        delivery = await worker.one()
        if n % 2:
            await worker.finish(delivery, Outcome.NEVER_EXECUTED)
        else:
            await worker.finish(delivery, Outcome.REFUSED, reason_code="cwd_missing", reason="no")
        await bench.sweep(after_s=10)
        assert await bench.state(job) == "queued"

    await bench.sweep(after_s=11)

    assert await bench.state(job) == "scheduling_timeout"


@pytest.mark.guarantee("G25")
@pytest.mark.trial("B91")
async def test_it_is_gone_for_good_once_a_worker_has_accepted_the_job(bench) -> None:
    job = await submit(bench)
    worker = await bench.registered()
    await bench.sweep(after_s=LIMIT_S - 1)
    await worker.running()
    await bench.sweep(after_s=61)  # its worker is lost
    assert await bench.state(job) == "queued"

    await bench.sweep(after_s=10 * LIMIT_S)

    assert await bench.state(job) == "queued"
    assert (await bench.client.job_get(job, detail="full")).spec["scheduling_timeout_s"] == LIMIT_S


async def test_it_counts_from_when_the_job_is_ready_not_from_the_submit(bench) -> None:
    parent = await bench.submit(worker="w1")
    child = await submit(bench, depends_on=[parent], worker="elsewhere")
    await bench.sweep(after_s=5 * LIMIT_S)
    assert await bench.state(child) == "queued"
    worker = await bench.registered()
    await worker.finish(await worker.running())

    await bench.sweep(after_s=LIMIT_S - 1)
    assert await bench.state(child) == "queued"
    await bench.sweep(after_s=2)

    assert await bench.state(child) == "scheduling_timeout"


async def test_a_child_that_came_back_with_its_parent_has_a_fresh_clock(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await submit(bench, depends_on=[parent])
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(child) == "cancelled"
    await bench.sweep(after_s=5 * LIMIT_S)

    await worker.finish(delivery)
    await bench.sweep(after_s=LIMIT_S - 1)
    assert await bench.state(child) == "queued"
    await bench.sweep(after_s=2)

    assert await bench.state(child) == "scheduling_timeout"


async def test_a_pending_assignment_that_is_accepted_in_time_saves_the_job(bench) -> None:
    job = await submit(bench)
    worker = await bench.registered()
    await bench.sweep(after_s=LIMIT_S - 1)
    delivery = await worker.one()
    await bench.sweep(after_s=5)  # the limit passes while it is on its way
    await worker.ack(delivery)

    await bench.sweep(after_s=10)

    assert await bench.state(job) == "assigned"


@pytest.mark.trial("B113")
async def test_clocks_that_are_set_and_time_in_which_the_broker_was_away_end_nothing(make_bench) -> None:
    bench = await make_bench(sweep_s=5)
    job = await submit(bench)
    bench.clock.wall += 3600 * 1000
    await bench.sweep(after_s=1)
    assert await bench.state(job) == "queued"

    await bench.sweep(after_s=3600)  # frozen: no sweep in all that time

    assert await bench.state(job) == "queued"
    for _ in range(7):
        await bench.sweep(after_s=9)
    assert await bench.state(job) == "scheduling_timeout"


@pytest.mark.parametrize("value", ["none", None])
async def test_without_it_a_job_waits_for_ever(bench, value) -> None:
    job = await bench.submit(scheduling_timeout_s=value)

    await bench.sweep(after_s=7000)

    assert await bench.state(job) == "queued"
