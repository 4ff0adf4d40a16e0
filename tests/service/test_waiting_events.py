"""`job_waiting`: one event when why a job waits has changed, whatever is queued behind it and however often it is asked."""

from __future__ import annotations

import pytest

from broker.service import waits
from broker.wire.events import EventType

POLLS = 500


async def told(bench, job: int | None = None) -> list[tuple[int, str]]:
    found = await bench.client.job_events(type=EventType.JOB_WAITING, job=job, limit=500)
    return [(event.job, event.data["code"]) for event in found.events]


async def looks(bench, number: int = 2, most: int = waits.MOST_LOOKED_AT) -> None:
    for _ in range(number):
        await waits.tell(bench.broker, most)


async def test_the_history_of_its_reasons_is_told_once_each(bench) -> None:
    job = await bench.submit(cpus=2)
    await looks(bench, 5)
    small = await bench.registered("small", slots=1)
    await looks(bench, 5)
    big = await bench.registered("big", slots=2)
    await bench.submit(worker="big")
    pinned = await big.one()
    assert pinned.job == job
    other = await bench.submit(cpus=2)
    await looks(bench, 5)
    await small.poll()
    await looks(bench, 5)

    assert await told(bench, job) == [(job, "no_worker"), (job, "no_worker_fits")]
    assert await told(bench, other) == [(other, "capacity")]


async def test_the_event_says_what_is_short(bench) -> None:
    await bench.registered("w1", slots=4)
    await bench.submit(ram_gb=8)
    await looks(bench)
    [event] = (await bench.client.job_events(type=EventType.JOB_WAITING)).events
    assert event.data == {
        "code": "no_worker_fits",
        "message": "no worker fits: needs 8 GiB of RAM, w1 does not say how much it has",
    }
    assert event.project == "default"


async def test_what_does_not_last_from_one_look_to_the_next_is_no_news(bench) -> None:
    worker = await bench.registered(slots=1)
    await bench.submit()
    delivery = await worker.running()
    await bench.submit()
    await looks(bench, 1)
    await worker.finish(delivery)
    await looks(bench, 1)
    assert await told(bench) == []


@pytest.mark.trial("B111")
async def test_a_thousand_jobs_that_fit_nowhere_and_500_polls_make_one_event_a_change(bench) -> None:
    workers = [await bench.registered(f"w{n}") for n in range(4)]
    array = await bench.submit(needs=["matlab"], count=1000)
    for number in range(POLLS):
        await workers[number % 4].poll()
        if number % 10 == 0:
            await looks(bench)
    assert await told(bench) == [(array, "no_worker_fits")]

    await bench.sweep(after_s=61)
    await looks(bench)
    assert await told(bench) == [(array, "no_worker_fits")]  # still: none that is known would ever fit


async def test_lines_beyond_one_look_have_their_turn_in_the_next(bench) -> None:
    jobs = [await bench.submit(needs=[f"tag{n}"]) for n in range(5)]
    await looks(bench, 3, most=2)
    assert await told(bench) == []
    await looks(bench, 3, most=2)
    assert sorted(await told(bench)) == [(job, "no_worker") for job in jobs]
    await looks(bench, 6, most=2)
    assert len(await told(bench)) == len(jobs)


async def test_a_restarted_broker_tells_nothing_twice(make_bench) -> None:
    bench = await make_bench()
    job = await bench.submit()
    await looks(bench)
    for _ in range(2):
        bench.broker.waits.goes_on(None)  # another process knows nothing of the rounds before
    await looks(bench, 3)
    assert await told(bench) == [(job, "no_worker")]
