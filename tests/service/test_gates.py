"""Not yet: jobs before their time, and on hold, until somebody releases them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest


async def waits(bench, job: int) -> str | None:
    waiting = (await bench.client.job_get(job)).waiting
    return waiting.code if waiting else None


def in_s(bench, seconds: float) -> str:
    return datetime.fromtimestamp(bench.clock.wall_ms() / 1000 + seconds, UTC).isoformat()


@pytest.mark.guarantee("G51")
@pytest.mark.parametrize("kind", ["seconds", "instant"])
async def test_a_job_is_given_to_nobody_before_its_time(bench, kind: str) -> None:
    job = await bench.submit(not_before=60 if kind == "seconds" else in_s(bench, 60))
    worker = await bench.registered()

    assert (await bench.state(job), await waits(bench, job)) == ("queued", "not_before")
    await bench.sweep(after_s=59)
    assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=2)

    assert (await worker.one()).job == job


async def test_a_time_that_has_come_is_no_reason_to_wait(bench) -> None:
    await bench.submit(not_before="2020-01-01T00:00:00Z")

    assert len((await (await bench.registered()).poll()).deliveries) == 1


@pytest.mark.trial("B115")
@pytest.mark.parametrize(
    ("zone", "shown"),
    [("+00:00", "2027-01-15T08:10:00"), ("+05:45", "2027-01-15T13:55:00"), ("-05:00", "2027-01-15T03:10:00")],
)
async def test_an_instant_is_the_same_in_every_zone_and_without_one_is_refused(bench, zone: str, shown: str) -> None:
    assert bench.clock.wall == 1_800_000_000_000  # 2027-01-15T08:00:00Z
    job = await bench.submit(not_before=f"{shown}{zone}")
    worker = await bench.registered()

    await bench.sweep(after_s=599)
    assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=1)
    assert (await worker.one()).job == job

    with pytest.raises(ValidationError, match="an instant with its offset"):
        await bench.submit(not_before=shown)


@pytest.mark.trial("B37")
@pytest.mark.guarantee("G51")
async def test_whoever_waits_for_its_time_takes_no_place_in_the_line(bench) -> None:
    first = await bench.submit(not_before=60, priority=50)
    second = await bench.submit()
    worker = await bench.registered(slots=1)

    delivery = await worker.running()
    assert delivery.job == second
    await worker.finish(delivery)
    await bench.sweep(after_s=61)

    assert (await worker.one()).job == first


@pytest.mark.guarantee("G51")
async def test_one_on_hold_starts_when_it_is_released(bench) -> None:
    job = await bench.submit(hold=True)
    worker = await bench.registered()
    assert (await waits(bench, job), (await worker.poll()).deliveries) == ("hold", [])

    released = await bench.client.job_update(job, release=True)

    assert released.changed == 1
    assert (await worker.one()).job == job
    told = (await bench.client.job_events(job=job, type=EventType.JOB_UPDATED)).events
    assert [event.data for event in told] == [{"hold": {"from": True, "to": False}}]


@pytest.mark.guarantee("G51")
async def test_one_that_waits_can_be_held_and_its_line_goes_on_without_it(bench) -> None:
    first, second = await bench.submit(), await bench.submit()

    await bench.client.job_update(first, hold=True)

    worker = await bench.registered(slots=1)
    delivery = await worker.running()
    assert delivery.job == second
    await worker.finish(delivery)
    assert (await worker.poll()).deliveries == []
    assert await waits(bench, first) == "hold"


@pytest.mark.guarantee("G51")
async def test_a_hold_outlasts_what_it_depends_on_and_its_time(bench) -> None:
    parent = await bench.submit()
    job = await bench.submit(hold=True, not_before=30, depends_on=[parent])
    worker = await bench.registered()
    await worker.finish(await worker.running())
    assert await waits(bench, job) == "hold"

    await bench.client.job_update(job, release=True)
    assert (await waits(bench, job), (await worker.poll()).deliveries) == ("not_before", [])
    await bench.sweep(after_s=31)

    assert (await worker.one()).job == job


@pytest.mark.guarantee("G51")
async def test_the_time_in_which_it_may_wait_counts_from_its_time_and_from_its_release(bench) -> None:
    timed = await bench.submit(not_before=100, scheduling_timeout_s=60)
    held = await bench.submit(hold=True, scheduling_timeout_s=60)
    await bench.sweep(after_s=101)
    await bench.client.job_update(held, release=True)
    await bench.sweep(after_s=50)
    assert (await bench.state(timed), await bench.state(held)) == ("queued", "queued")

    await bench.sweep(after_s=11)

    assert (await bench.state(timed), await bench.state(held)) == ("scheduling_timeout", "scheduling_timeout")


async def test_a_member_is_held_with_its_array_and_a_cancel_ends_it(bench) -> None:
    array = await bench.submit(count=3, hold=True, depends_on_each=[await bench.submit(count=3, hold=True)])
    worker = await bench.registered()
    assert (await worker.poll()).deliveries == []

    await bench.client.job_cancel(CancelRequest(array=array))

    assert (await bench.client.job_list(array=array)).counts == {"cancelled": 3}


async def test_all_members_of_an_array_are_released_together(bench) -> None:
    array = await bench.submit(count=3, hold=True)
    worker = await bench.registered(slots=3)

    assert (await bench.client.job_update(array, release=True)).changed == 3

    assert len((await worker.poll()).deliveries) == 3


async def test_it_wakes_a_worker_that_waits_when_its_time_comes(make_bench) -> None:
    bench = await make_bench(sweep_s=3600, poll_s=30)
    bench.clock.wall = bench.clock.wall_ms()
    job = await bench.submit(not_before=0.2)
    worker = await bench.registered()
    bench.clock.pass_s(1)  # the instant is over before the real time is: the loop looks by the broker's clock

    answer = await worker.poll(wait_s=30)

    assert [delivery.job for delivery in answer.deliveries] == [job]


async def test_a_preview_says_what_it_would_wait_for(bench) -> None:
    await bench.registered()

    held = await bench.client.job_preview({"command": "true", "hold": True})
    timed = await bench.client.job_preview({"command": "true", "not_before": 60})

    assert (held.waiting.code, timed.waiting.code) == ("hold", "not_before")
    assert (held.start_estimate_s, timed.start_estimate_s) == (None, None)
    explained = await bench.client.job_explain(await bench.submit(hold=True))
    assert (explained.waiting.code, explained.suggestion is not None and "--release" in explained.suggestion) == (
        "hold",
        True,
    )


@pytest.mark.guarantee("G50")
async def test_a_clock_that_is_set_back_makes_no_pause_longer(bench) -> None:
    tried, asked = await bench.submit(retries=1, retry_delay_s=10), await bench.submit(not_before=10)
    worker = await bench.registered()
    await worker.finish(await worker.running(), exit_code=1)

    bench.clock.wall -= 10 * 86_400 * 1000
    await bench.sweep(after_s=1)
    assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=10)

    assert {delivery.job for delivery in (await worker.poll()).deliveries} == {tried, asked}


async def test_an_instant_is_one_of_the_clock_however_that_is_set(bench) -> None:
    job = await bench.submit(not_before=in_s(bench, 10))
    worker = await bench.registered()

    bench.clock.wall -= 60_000
    await bench.sweep(after_s=30)
    assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=41)

    assert (await worker.one()).job == job
