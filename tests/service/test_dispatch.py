"""Who gets which job, and when: parked polls, order, room, refusals."""

from __future__ import annotations

import asyncio

import pytest

from broker.wire.jobs import CancelRequest
from broker.wire.workers import Outcome, VerdictWord

W = VerdictWord


async def test_a_parked_poll_is_woken_by_a_submit(bench) -> None:
    worker = await bench.registered()
    parked = asyncio.create_task(worker.poll(wait_s=5))
    await until_parked(bench, worker)

    job = await bench.submit()

    assert [delivery.job for delivery in (await parked).deliveries] == [job]


async def test_a_parked_poll_is_woken_when_room_becomes_free(bench) -> None:
    worker = await bench.registered(slots=1)
    await bench.submit()
    first = await worker.running()
    second = await bench.submit()
    parked = asyncio.create_task(worker.poll(wait_s=5, process=False))
    await until_parked(bench, worker)

    await worker.finish(first)

    assert [delivery.job for delivery in (await parked).deliveries] == [second]


async def test_a_newer_poll_answers_the_older_with_nothing_and_without_a_number(bench) -> None:
    worker = await bench.registered()
    older = asyncio.create_task(worker.poll(wait_s=5))
    await until_parked(bench, worker)
    newer = asyncio.create_task(worker.poll(wait_s=5))

    answer = await asyncio.wait_for(older, 2)
    await bench.submit()

    assert (answer.number, answer.deliveries) == (None, [])
    assert len((await newer).deliveries) == 1


@pytest.mark.guarantee("G17")
async def test_a_client_that_has_gone_claims_nothing(bench) -> None:
    gone, here = await bench.registered("gone"), await bench.registered("here")
    parked = asyncio.create_task(gone.poll(wait_s=5))
    await until_parked(bench, gone)
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)
    await asyncio.sleep(0.05)  # the kernel tells the broker of the closed connection

    job = await bench.submit()

    assert await bench.state(job) == "queued"
    assert (await here.one()).job == job
    assert await bench.assignments(job) == ["pending"]


async def test_a_newer_poll_that_is_answered_at_once_lets_the_older_go(bench) -> None:
    worker = await bench.registered()
    older = asyncio.create_task(worker.poll(wait_s=5))
    await until_parked(bench, worker)

    newer = await worker.poll(wait_s=0)

    assert newer.deliveries == [] and (await asyncio.wait_for(older, 2)).deliveries == []
    await bench.submit()
    assert len((await worker.poll()).deliveries) == 1


async def test_a_poll_parked_before_an_expiry_does_not_claim_on_its_old_list(bench) -> None:
    await bench.submit()
    worker = await bench.registered(slots=1)
    await worker.running()
    parked = asyncio.create_task(worker.poll(wait_s=5, process=False))
    await until_parked(bench, worker)

    await bench.sweep(after_s=61)
    answer = await asyncio.wait_for(parked, 2)

    assert answer.deliveries == []


async def test_higher_priority_runs_first_and_equals_in_order(bench) -> None:
    jobs = [await bench.submit(priority=priority) for priority in (0, 5, 0, 9, 5)]
    worker = await bench.registered(slots=8)

    got = [delivery.job for delivery in (await worker.poll()).deliveries]

    assert got == [jobs[3], jobs[1], jobs[4], jobs[0], jobs[2]]


@pytest.mark.guarantee("G17")
async def test_a_worker_is_never_given_more_than_it_has(bench) -> None:
    for _ in range(5):
        await bench.submit(cpus=1.5)
    worker = await bench.registered(slots=4)

    assert len((await worker.poll()).deliveries) == 2
    assert (await worker.poll()).deliveries == []
    used = (await bench.client.worker_list()).workers[0].slots
    assert (used.total, used.used) == (4, 3)


@pytest.mark.guarantee("G16")
async def test_a_job_that_fits_nowhere_delays_nobody_and_says_why(bench) -> None:
    hopeless = await bench.submit(cpus=64, priority=50)
    pinned = await bench.submit(worker="elsewhere", priority=50)
    easy = await bench.submit()
    worker = await bench.registered(slots=2)

    got = [delivery.job for delivery in (await worker.poll()).deliveries]

    assert got == [easy]
    assert (await bench.client.job_get(hopeless)).waiting.code == "no_worker_fits"
    assert "elsewhere" in (await bench.client.job_get(pinned)).waiting.message


@pytest.mark.trial("B66")
async def test_a_refused_directory_is_not_offered_to_that_worker_again_and_goes_elsewhere(bench) -> None:
    job, other = await bench.submit(cwd="/data"), await bench.submit()
    a = await bench.registered("a", slots=1)
    refused = await a.one()
    await a.finish(refused, Outcome.REFUSED, reason_code="cwd_missing", reason="/data is not there on a")

    next_of_a = await a.one()
    waiting = (await bench.client.job_get(job)).waiting
    b = await bench.registered("b")
    got = await b.one()

    assert refused.job == job and next_of_a.job == other
    assert waiting.code == "cwd_missing" and "/data" in waiting.message and "a" in waiting.message
    assert got.job == job
    assert await bench.assignments(job) == ["refused", "pending"]


async def test_a_refusal_holds_for_a_while_only(bench) -> None:
    await bench.submit(cwd="/data")
    worker = await bench.registered()
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="cwd_missing", reason="not there")
    now = await worker.poll()
    bench.clock.pass_s(61)
    later = await worker.poll()

    assert (len(now.deliveries), len(later.deliveries)) == (0, 1)


@pytest.mark.trial("B113")
async def test_a_refusal_ends_also_when_the_wall_clock_is_set_back(bench) -> None:
    jobs = [await bench.submit(cwd="/data"), await bench.submit()]
    worker = await bench.registered(slots=1)
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="cwd_missing", reason="not there")
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="disk_full", reason="no room")

    bench.clock.wall -= 2 * 3600 * 1000
    bench.clock.pass_s(61)

    assert (await worker.one()).job == jobs[0]


async def test_a_worker_in_trouble_gets_a_pause_not_one_job_after_the_other(bench) -> None:
    for _ in range(3):
        await bench.submit()
    worker = await bench.registered(slots=1)
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="disk_full", reason="no room")

    assert (await worker.poll()).deliveries == []


async def test_a_burst_spreads_over_parked_workers(bench) -> None:
    workers = [await bench.registered(f"w{n}") for n in range(3)]
    parked = [asyncio.create_task(worker.poll(wait_s=5)) for worker in workers]
    for worker in workers:
        await until_parked(bench, worker)

    await bench.submit(count=3)

    assert [len(answer.deliveries) for answer in await asyncio.gather(*parked)] == [1, 1, 1]


async def test_a_draining_worker_claims_nothing_but_its_stops_travel(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()
    await bench.submit()
    parked = asyncio.create_task(worker.poll(wait_s=5, accept=False))
    await until_parked(bench, worker)

    await bench.client.job_cancel(CancelRequest(job=[job]))
    answer = await asyncio.wait_for(parked, 2)

    assert answer.deliveries == []
    assert [(stop.job, stop.grace_s) for stop in answer.stops] == [(job, 10)]


async def test_numbers_of_answers_go_on_after_a_restart_of_the_broker(bench) -> None:
    await bench.submit()
    worker = await bench.registered(slots=1)
    delivery = await worker.running()
    first = worker.seen
    await worker.finish(delivery)
    await bench.submit()

    assert (await worker.poll()).number == first + 1


@pytest.mark.trial("B93")
@pytest.mark.parametrize("outcome", [Outcome.NEVER_EXECUTED, Outcome.STOPPED])
@pytest.mark.parametrize("policy", ["requeue", "orphan"])
async def test_an_accepted_assignment_that_does_not_start_is_stopped_and_goes_elsewhere(
    bench, outcome: Outcome, policy: str
) -> None:
    job = await bench.submit(on_worker_lost=policy)
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    for _ in range(6):
        await bench.sweep(after_s=13)  # counted from when the first of these sees it
        await worker.report()

    stop = (await worker.report()).stops[0]
    await worker.finish(delivery, outcome, stop=stop.id)
    other = await bench.registered("w2")

    assert "not started" in stop.why
    assert await bench.state(job) == "queued"
    assert (await worker.poll()).deliveries == []
    assert [given.job for given in (await other.poll()).deliveries] == [job]


@pytest.mark.parametrize("count", [1, 7])
async def test_an_array_has_one_block_of_ids_and_each_member_its_index(bench, count: int) -> None:
    said = await bench.client.job_submit(job_spec(count=count))
    worker = await bench.registered(slots=10)

    deliveries = (await worker.poll()).deliveries

    assert said.ids == f"{said.array}..{said.array + count - 1}"
    assert [(d.job, d.array, d.array_index) for d in deliveries] == [
        (said.array + n, said.array, n) for n in range(count)
    ]


def job_spec(**fields: object):
    from broker.wire.jobs import JobSpec

    return JobSpec.model_validate({"command": "true", **fields})


async def until_parked(bench, worker) -> None:
    for _ in range(400):
        if worker.id in bench.broker.wake._parked:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the poll was not parked")


@pytest.mark.trial("B113")
async def test_a_wall_clock_that_jumps_stops_nothing_that_is_about_to_start(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    await worker.ack(await worker.one())
    await bench.sweep()

    bench.clock.wall += 2 * 3600 * 1000
    await bench.sweep(after_s=1)

    assert (await worker.report()).stops == []
