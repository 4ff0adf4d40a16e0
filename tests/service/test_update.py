"""Changes of jobs that have not ended."""

from __future__ import annotations

import pytest

from broker.wire.events import EventType
from broker.wire.problems import Refused


async def refused(bench, job: int, **changes: object) -> tuple[str, str | None]:
    with pytest.raises(Refused) as caught:
        await bench.client.job_update(job, **changes)
    return caught.value.code.value, caught.value.field


@pytest.mark.guarantee("G51")
async def test_a_higher_priority_brings_a_job_to_the_front_and_a_lower_one_to_the_back(bench) -> None:
    first, second, third = [await bench.submit() for _ in range(3)]
    await bench.client.job_update(third, priority=5)
    await bench.client.job_update(first, priority=-5)

    worker = await bench.registered(slots=3)

    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [third, second, first]


@pytest.mark.guarantee("G51")
async def test_limits_of_one_that_waits_are_those_it_is_delivered_with_and_say_their_source(bench) -> None:
    job = await bench.submit(max_wall_s=60)

    await bench.client.job_update(job, max_wall_s=120, idle_timeout_s="none")

    full = await bench.client.job_get(job, detail="full")
    assert (full.spec["max_wall_s"], full.spec["idle_timeout_s"]) == (120, "none")
    assert (full.sources["max_wall_s"], full.sources["idle_timeout_s"]) == ("update", "update")
    assert full.sources["checkpoint_grace_s"] == "default"
    [told] = (await bench.client.job_events(job=job, type=EventType.JOB_UPDATED)).events
    assert told.data["max_wall_s"] == {"from": 60, "to": 120}
    delivery = await (await bench.registered()).one()
    assert (delivery.spec.max_wall_s, delivery.spec.idle_timeout_s) == (120, "none")


@pytest.mark.guarantee("G51")
@pytest.mark.parametrize("change", [{"max_wall_s": 5}, {"hold": True}, {"release": True}, {"scheduling_timeout_s": 5}])
async def test_what_a_worker_has_keeps_its_limits_and_that_is_said(bench, change: dict) -> None:
    job = await bench.submit()
    await (await bench.registered()).running()

    assert await refused(bench, job, priority=3, **change) == ("already_started", next(iter(change)))

    assert (await bench.client.job_get(job, detail="full")).spec["priority"] == 0
    assert (await bench.client.job_update(job, priority=3)).changed == 1
    assert (await bench.client.job_get(job, detail="full")).spec["priority"] == 3


async def test_what_has_ended_or_is_unknown_is_not_changed(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.finish(await worker.running())

    assert await refused(bench, job, priority=3) == ("already_terminal", None)
    assert await refused(bench, 999, priority=3) == ("unknown_job", "job")
    assert await refused(bench, await bench.submit(), max_parallel=3) == ("invalid_request", "max_parallel")
    assert await refused(bench, await bench.submit(count=2), max_parallel=3) == ("invalid_request", "max_parallel")


async def test_a_change_to_what_is_so_changes_nothing(bench) -> None:
    job = await bench.submit(priority=3)

    assert (await bench.client.job_update(job, priority=3, release=True)).changed == 0
    assert "job_updated" not in await bench.kinds(job)


@pytest.mark.guarantee("G51")
async def test_members_that_wait_are_changed_and_those_that_run_are_counted(bench) -> None:
    array = await bench.submit(count=3)
    worker = await bench.registered(slots=1)
    delivery = await worker.running()

    answer = await bench.client.job_update(array, max_wall_s=99)

    assert (answer.changed, answer.started) == (2, 1)
    await worker.finish(delivery)
    assert (await worker.one()).spec.max_wall_s == 99


@pytest.mark.guarantee("G51")
async def test_more_members_may_run_at_once_from_the_change_on_and_fewer_too(bench) -> None:
    array = await bench.submit(count=6, max_parallel=1)
    worker = await bench.registered(slots=6)
    delivery = await worker.running()

    await bench.client.job_update(array, max_parallel=3)

    assert len((await worker.poll()).deliveries) == 2
    await bench.client.job_update(array, max_parallel=1)
    await worker.finish(delivery)
    assert (await worker.poll()).deliveries == []
    [told, _] = (await bench.client.job_events(job=array, type=EventType.JOB_UPDATED)).events
    assert told.data == {"max_parallel": {"from": 1, "to": 3}}
