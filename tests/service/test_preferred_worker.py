"""A job that is queued again is left to the worker where it ran, and its checkpoints are, for a while; then to anybody."""

from __future__ import annotations

import pytest

from broker.wire.jobs import CancelRequest
from broker.wire.workers import Outcome, WorkerUpdate


async def preempted(make_bench, *, prefer_s: float = 30, **fields: object):
    """A job that ran on `anna` and is queued again, and two workers with room for it."""
    bench = await make_bench(prefer_s=prefer_s)
    job = await bench.submit(preemptible=True, on_preempt="requeue", **fields)
    anna = await bench.registered("anna", slots=1)
    delivery = await anna.running()
    bert = await bench.registered("bert", slots=1)
    await bench.client.job_preempt(job)
    await anna.finish(delivery, Outcome.STOPPED, exit_code=0)
    return bench, job, anna, bert


async def left_behind(bench, job: int) -> list[dict[str, object]]:
    events = (await bench.client.job_events(job=job)).events
    return [event.data for event in events if event.type.value == "checkpoint_left_behind"]


@pytest.mark.guarantee("G40")
async def test_it_is_left_to_the_worker_where_it_ran_and_takes_its_place_there(make_bench) -> None:
    bench, job, anna, bert = await preempted(make_bench)
    behind = await bench.submit()

    assert [given.job for given in (await bert.poll()).deliveries] == [behind]
    waiting = (await bench.client.job_get(job)).waiting
    assert (waiting.code, waiting.message) == (
        *("preferred_worker", "for a while it is left to anna, where it ran before"),
    )
    assert [given.job for given in (await anna.poll()).deliveries] == [job]
    assert await left_behind(bench, job) == []


@pytest.mark.guarantee("G40")
async def test_after_a_while_it_is_anybodys_and_says_what_it_leaves_behind(make_bench) -> None:
    bench, job, anna, bert = await preempted(make_bench, prefer_s=20)

    await bench.sweep(after_s=19)
    assert (await bert.poll()).deliveries == []
    await anna.report()
    await bench.sweep(after_s=1)
    await bert.running()

    assert (await bench.client.job_get(job)).worker == "bert"
    assert await left_behind(bench, job) == [{"left_on": "anna", "checkpoints": 0}]


@pytest.mark.guarantee("G40")
@pytest.mark.parametrize("how", ["cordon", "drain", "lost"])
async def test_a_worker_that_is_not_there_or_takes_nothing_is_not_waited_for(make_bench, how: str) -> None:
    bench, job, _, bert = await preempted(make_bench, prefer_s=86_400)
    if how == "lost":
        bench.clock.pass_s(bench.broker.settings.lease_s - 1)
        await bert.report()
        await bench.sweep(after_s=2)
    else:
        await bench.client.worker_update("anna", WorkerUpdate.model_validate({how: True}))
    await bench.sweep()

    assert [given.job for given in (await bert.poll()).deliveries] == [job]


async def test_it_stands_at_its_own_place_among_those_of_its_kind(make_bench) -> None:
    bench, job, anna, _ = await preempted(make_bench)
    first = await bench.submit(priority=1)
    await bench.submit()

    delivery = await anna.running()
    assert delivery.job == first
    await anna.finish(delivery)
    assert (await anna.running()).job == job


async def test_a_directory_that_both_share_is_not_left_behind(make_bench) -> None:
    bench = await make_bench(prefer_s=0)
    job = await bench.submit(preemptible=True, on_preempt="requeue")
    anna = await bench.registered("anna", checkpoint_root="/shared")
    delivery = await anna.running()
    await bench.client.job_preempt(job)
    await anna.finish(delivery, Outcome.STOPPED, exit_code=0)
    bert = await bench.registered("bert", checkpoint_root="/shared")
    await bert.running()

    assert (await bench.client.job_get(job)).worker == "bert"
    assert await left_behind(bench, job) == []


async def test_what_never_ran_prefers_nobody(make_bench) -> None:
    bench = await make_bench()
    job = await bench.submit(preemptible=True, on_preempt="requeue")
    anna, bert = await bench.registered("anna"), await bench.registered("bert")
    await anna.poll()
    await bench.client.job_preempt(job)

    assert [given.job for given in (await bert.poll()).deliveries] == [job]


async def test_its_cancel_reaches_it_while_it_is_left_to_one(make_bench) -> None:
    bench, job, *_ = await preempted(make_bench)
    await bench.client.job_cancel(CancelRequest(job=[job]))

    assert await bench.state(job) == "cancelled"
    assert (await bench.client.job_list()).counts == {"cancelled": 1}
