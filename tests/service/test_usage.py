"""What a job has used, and what it says of its checkpoints: kept for each delivery, told once."""

from __future__ import annotations

from broker.wire.events import EventType
from broker.wire.jobs import Peak
from broker.wire.workers import Checkpoints, Outcome


async def delivery_of(bench, job: int):
    return (await bench.client.job_get(job, detail="full")).assignments[-1]


def saying(worker, delivery, **fields: object) -> None:
    """Its entry in the list says this besides."""
    key = (delivery.job, delivery.attempt)
    worker.held[key] = worker.held[key].model_copy(update=fields)


async def running(bench):
    job = await bench.submit()
    worker = await bench.registered()
    return job, worker, await worker.running()


async def test_the_broker_says_that_it_wants_to_know(bench) -> None:
    assert (await bench.worker().register()).observes is True


async def test_the_largest_of_what_is_told_is_kept_over_restarts_of_the_worker(bench) -> None:
    job, worker, delivery = await running(bench)
    assert (await delivery_of(bench, job)).peak is None
    saying(worker, delivery, peak=Peak(rss_mb=900, vram_mb=4096, cpu_s=10, gpu=80))
    await worker.report()
    saying(worker, delivery, peak=Peak(rss_mb=100, cpu_s=2, gpu=60))
    await worker.report()
    assert (await delivery_of(bench, job)).peak == Peak(rss_mb=900, vram_mb=4096, cpu_s=10, gpu=60)

    await worker.finish(delivery, peak={"rss_mb": 950, "cpu_s": 12}, max_rss_mb=5)

    assert (await delivery_of(bench, job)).peak == Peak(rss_mb=950, vram_mb=4096, cpu_s=12, gpu=60)
    assert "peak" not in (await bench.client.job_get(job)).model_dump()


async def test_each_delivery_has_its_own(bench) -> None:
    job, worker, delivery = await running(bench)
    saying(worker, delivery, peak=Peak(rss_mb=900))
    await worker.report()
    await worker.finish(delivery, Outcome.LOST)
    again = await worker.running()
    await worker.finish(again, peak={"rss_mb": 7})
    deliveries = (await bench.client.job_get(job, detail="full")).assignments
    assert [one.peak for one in deliveries] == [Peak(rss_mb=900), Peak(rss_mb=7)]


async def test_a_stale_holder_says_nothing_of_it(bench) -> None:
    job, worker, delivery = await running(bench)
    await bench.sweep(after_s=61)
    other = await bench.registered("w2")
    await other.running()
    saying(worker, delivery, peak=Peak(rss_mb=900), checkpoints=Checkpoints(count=3, age_s=0))
    await worker.report()
    deliveries = (await bench.client.job_get(job, detail="full")).assignments
    assert [(one.peak, one.checkpoint_at) for one in deliveries] == [(None, None), (None, None)]
    assert "checkpoint_complete" not in await bench.kinds(job)


async def test_a_checkpoint_is_told_once_however_often_it_is_repeated(bench) -> None:
    job, worker, delivery = await running(bench)
    assert (await delivery_of(bench, job)).checkpoint_at is None
    saying(worker, delivery, checkpoints=Checkpoints(count=1, age_s=2.5))
    for _ in range(3):
        await worker.report()
        await worker.poll()
    first = (await delivery_of(bench, job)).checkpoint_at
    bench.clock.pass_s(10)
    saying(worker, delivery, checkpoints=Checkpoints(count=4, age_s=1))
    await worker.report()
    saying(worker, delivery, checkpoints=Checkpoints(count=2, age_s=1))  # an older word
    await worker.report()
    await worker.finish(delivery, checkpoints={"count": 5, "age_s": 0})

    events = (await bench.client.job_events(job=job, type=EventType.CHECKPOINT_COMPLETE)).events
    assert [(event.attempt, event.data) for event in events] == [(1, {"count": n}) for n in (1, 4, 5)]
    assert (events[0].at - first).total_seconds() == 2.5
    last = (await delivery_of(bench, job)).checkpoint_at
    assert (last - events[2].at).total_seconds() == 0
