"""What one act costs does not grow with what else there is. Counted in steps of the database, never in seconds."""

from __future__ import annotations

import asyncio

import pytest

from broker.core.forecast import MOST_AHEAD
from broker.service import waits
from broker.service.rivals import MOST_COUNTED
from broker.wire.states import JobState
from broker.wire.workers import Outcome

FEW, MANY = 40, 4_000
ALMOST_THE_SAME = 1.6
"""Trees get deeper with more rows, and pages fuller; walking past a hundred times as many rows costs far more."""


async def claimed_and_ended(worker) -> None:
    for delivery in (await worker.poll()).deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
        await worker.finish(delivery)


@pytest.mark.trial("B110")
async def test_a_life_costs_the_same_with_a_hundred_times_as_many_jobs_queued(counted) -> None:
    worker = await counted.registered("w1", slots=2)
    await counted.submit(count=FEW)
    await claimed_and_ended(worker)  # the first of its kind makes rows that later ones only change
    few = await counted.spent(lambda: claimed_and_ended(worker))
    await counted.submit(count=MANY)

    many = await counted.spent(lambda: claimed_and_ended(worker))

    assert len(many.statements) == len(few.statements)
    assert many.steps < few.steps * ALMOST_THE_SAME


async def test_jobs_that_a_worker_refused_are_not_walked_past(counted) -> None:
    worker = await counted.registered("w1", slots=1)
    await counted.submit(cwd="/elsewhere", count=FEW, priority=5)
    await counted.submit(cwd="/here", count=FEW)
    refused = await worker.one()
    await worker.finish(refused, Outcome.REFUSED, reason_code="cwd_missing", reason="not there")
    few = await counted.spent(lambda: claimed_and_ended(worker))
    await counted.submit(cwd="/elsewhere", count=MANY, priority=5)

    many = await counted.spent(lambda: claimed_and_ended(worker))

    assert (await counted.client.job_get(refused.job + FEW + 1)).state.value == "completed"
    assert many.steps < few.steps * ALMOST_THE_SAME


async def test_jobs_that_fit_nowhere_are_not_walked_past(counted) -> None:
    worker = await counted.registered("w1", slots=1)
    await counted.submit(needs=["gpu"], count=FEW, priority=5)
    await counted.submit(count=FEW)
    few = await counted.spent(lambda: claimed_and_ended(worker))
    await counted.submit(needs=["gpu"], count=MANY, priority=5)

    many = await counted.spent(lambda: claimed_and_ended(worker))

    assert many.steps < few.steps * ALMOST_THE_SAME


@pytest.mark.trial("B110")
@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"state": JobState.QUEUED},
        {"state": JobState.CANCELLED},
        {"project": "rare"},
        {"project": "rare", "state": JobState.QUEUED},
        {"project": "common", "state": JobState.CANCELLED},
        {"name": "rare"},
        {"name": "rare", "project": "common"},
        {"array": 1},
        {"array": 1, "state": JobState.QUEUED, "name": "rare"},
    ],
    ids=str,
)
async def test_a_page_of_jobs_costs_the_same_whatever_else_there_is(counted, wanted: dict) -> None:
    await counted.submit(project="common", name="rare", count=10)
    await counted.submit(project="rare", count=10)
    before = await counted.spent(lambda: counted.client.job_list(**wanted, limit=5))
    await counted.submit(project="common", name="common", count=MANY)

    after = await counted.spent(lambda: counted.client.job_list(**wanted, limit=5))

    assert after.steps <= before.steps * ALMOST_THE_SAME + 2


async def test_idle_workers_cost_a_submit_nothing_that_fits_none_of_them(counted) -> None:
    few = [asyncio.create_task((await counted.registered(f"few{n}")).poll(wait_s=30)) for n in range(2)]
    await until_parked(counted, 2)
    await a_hopeless_job(counted)  # the first one makes its shape
    spent_with_few = await counted.spent(lambda: a_hopeless_job(counted))
    more = [asyncio.create_task((await counted.registered(f"more{n}")).poll(wait_s=30)) for n in range(30)]
    await until_parked(counted, 32)

    spent_with_many = await counted.spent(lambda: a_hopeless_job(counted))

    assert len(spent_with_many.statements) == len(spent_with_few.statements)
    for task in [*few, *more]:
        task.cancel()
    await asyncio.gather(*few, *more, return_exceptions=True)


async def a_hopeless_job(counted) -> None:
    """Submitted, and looked at by dispatch."""
    await counted.submit(needs=["gpu"])
    await until(lambda: not counted.broker.wake._ready_shapes)
    await counted.broker.store.run(lambda tx: None)  # whatever dispatch does comes before this


async def test_a_page_of_waiting_jobs_asks_for_the_workers_once(counted) -> None:
    for n in range(5):
        await counted.registered(f"w{n}", slots=1)
    array = await counted.submit(count=50, cpus=2)

    spent = await counted.spent(lambda: counted.client.job_list(array=array, limit=50))

    assert sum("FROM workers\n" in statement for statement in spent.statements) == 1


async def until_parked(counted, number: int) -> None:
    await until(lambda: len(counted.broker.wake._parked) == number)


async def until(check) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.005)


async def test_jobs_without_devices_pay_nothing_for_those_with(counted) -> None:
    worker = await counted.registered("w1", slots=2)
    await counted.submit(count=FEW)
    await claimed_and_ended(worker)
    before = await counted.spent(lambda: claimed_and_ended(worker))
    for gb in (10, 20, 30):  # ahead of all others, and nothing for a worker without devices
        await counted.submit(vram_gb=gb, count=FEW, priority=5)

    after = await counted.spent(lambda: claimed_and_ended(worker))

    assert len(after.statements) == len(before.statements)
    assert after.steps < before.steps * ALMOST_THE_SAME


async def test_explaining_a_job_walks_past_nothing_that_is_behind_it(counted) -> None:
    await counted.registered("w1", slots=1)
    first = await counted.submit(count=FEW)
    few = await counted.spent(lambda: explained(counted, first + 1))
    await counted.submit(count=MANY)

    many = await counted.spent(lambda: explained(counted, first + 1))

    assert many.steps <= few.steps * ALMOST_THE_SAME


async def test_counting_what_is_ahead_is_bounded_and_reads_the_index_alone(counted) -> None:
    await counted.registered("w1", slots=1)
    for cpus in (0.1, 0.2, 0.3):
        await counted.submit(cpus=cpus, count=MOST_COUNTED // 2)
    last = await counted.submit()
    few = await counted.spent(lambda: counted.client.job_explain(last))
    for cpus in (0.4, 0.5, 0.6):
        await counted.submit(cpus=cpus, count=MOST_COUNTED, priority=1)

    many = await counted.spent(lambda: counted.client.job_explain(last))

    assert len(many.statements) == len(few.statements)
    assert many.steps < few.steps * ALMOST_THE_SAME


async def explained(counted, job: int) -> None:
    assert (await counted.client.job_explain(job)).ahead.jobs == 1
    await counted.client.job_get(job)


async def test_estimating_a_start_is_bounded_however_many_are_ahead(counted) -> None:
    await counted.registered("w1", slots=1)
    first = await counted.submit(count=MOST_AHEAD + FEW)
    few = await counted.spent(lambda: counted.client.job_get(first + MOST_AHEAD + FEW - 1))
    more = await counted.submit(count=MANY)

    many = await counted.spent(lambda: counted.client.job_get(more + MANY - 1))

    assert many.steps <= few.steps * ALMOST_THE_SAME


async def test_a_look_at_why_jobs_wait_costs_the_same_with_a_hundred_times_as_many(counted) -> None:
    await counted.registered("w1", slots=1)
    await counted.submit(needs=["matlab"], count=FEW)
    await waits.tell(counted.broker)
    few = await counted.spent(lambda: waits.tell(counted.broker))
    await counted.submit(needs=["matlab"], count=MANY)
    await waits.tell(counted.broker)

    many = await counted.spent(lambda: waits.tell(counted.broker))

    assert len(many.statements) <= len(few.statements)
    assert many.steps <= few.steps * ALMOST_THE_SAME
