"""Whose turn it is: projects with their priorities and shares, with a real store."""

from __future__ import annotations

import asyncio

import pytest

from broker.core.order import Used
from broker.service import usage
from broker.service.holding import owner_of_project, read
from broker.wire.jobs import CancelRequest
from broker.wire.projects import Project
from broker.wire.workers import Outcome, Phase
from support.waiting import eventually


async def given(worker) -> list[int]:
    return [delivery.job for delivery in (await worker.poll()).deliveries]


async def used(bench, project: str) -> Used:
    return await bench.broker.store.read(lambda tx: read(tx, owner_of_project(project)))


async def amount(bench, project: str) -> float:
    return usage.terms(bench.broker).amount(await used(bench, project), bench.broker.listening.now_ms())


@pytest.mark.guarantee("G36")
async def test_a_projects_priority_and_the_jobs_are_added(make_bench) -> None:
    bench = await make_bench(projects={"high": Project(priority=40), "low": Project(priority=10)})
    low, high = await bench.submit(project="low"), await bench.submit(project="high")
    least, most = await bench.submit(project="high", priority=-31), await bench.submit(project="low", priority=31)
    worker = await bench.registered(slots=8)

    assert await given(worker) == [most, high, low, least]


@pytest.mark.guarantee("G36")
async def test_projects_of_equal_priority_take_turns_and_in_each_the_oldest_is_first(bench) -> None:
    a = [await bench.submit(project="a") for _ in range(4)]
    b = [await bench.submit(project="b") for _ in range(2)]
    worker = await bench.registered(slots=8)

    assert await given(worker) == [a[0], b[0], a[1], b[1], a[2], a[3]]


@pytest.mark.guarantee("G36")
async def test_parked_workers_are_shared_out_in_one_look(bench) -> None:
    workers = [await bench.registered(f"w{n}", slots=1) for n in range(4)]
    hold = [await bench.submit(worker=worker.name) for worker in workers]
    deliveries = [await worker.running() for worker in workers]
    a = await bench.submit(project="a", count=9)
    b = await bench.submit(project="b", count=9)

    for worker, delivery in zip(workers, deliveries, strict=True):
        await worker.finish(delivery)
    got = [job for worker in workers for job in await given(worker)]

    assert got == [a, b, a + 1, b + 1]
    assert len(hold) == 4


@pytest.mark.guarantee("G36")
async def test_with_twice_the_share_a_project_is_given_twice_as_much(make_bench) -> None:
    bench = await make_bench(projects={"big": Project(share=2)})
    big, small = await bench.submit(project="big", count=20), await bench.submit(project="small", count=20)
    worker = await bench.registered(slots=12)

    got = await given(worker)

    assert (sum(job < small for job in got), sum(job >= small for job in got)) == (8, 4)
    assert big == got[0]


@pytest.mark.guarantee("G36")
async def test_who_has_used_more_waits_until_that_is_long_ago(bench) -> None:
    bench.broker.settings.projects.clear()
    worker = await bench.registered(slots=1)
    await bench.submit(project="greedy")
    delivery = await worker.running()
    for _ in range(8):
        await bench.sweep(after_s=50)
        await worker.report()
    await worker.finish(delivery)
    greedy, modest = await bench.submit(project="greedy"), await bench.submit(project="modest")

    first = await worker.running()

    assert first.job == modest
    assert await amount(bench, "greedy") == pytest.approx(400, rel=0.02)
    await worker.finish(first)
    assert (await worker.one()).job == greedy


async def test_what_was_used_decays_and_is_forgotten(make_bench) -> None:
    bench = await make_bench(usage_half_life_s=100)
    worker = await bench.registered()
    await bench.submit(project="p", cpus=2)
    delivery = await worker.running()
    bench.clock.pass_s(10)
    await worker.finish(delivery)
    assert await amount(bench, "p") == pytest.approx(20)

    await bench.sweep()
    await bench.sweep(after_s=100)
    assert await amount(bench, "p") == pytest.approx(10)
    bench.clock.wall += 86_400_000
    await bench.sweep(after_s=1500)

    assert await bench.broker.store.read(lambda tx: tx.one("usage", owner=owner_of_project("p"))) is None


async def test_a_clock_that_jumps_changes_no_usage(bench) -> None:
    worker = await bench.registered()
    await bench.submit(project="p")
    delivery = await worker.running()
    bench.clock.wall += 400 * 86_400_000
    bench.clock.pass_s(10)
    bench.clock.wall -= 800 * 86_400_000
    await worker.finish(delivery)

    assert await amount(bench, "p") == pytest.approx(10)


@pytest.mark.trial("B95")
@pytest.mark.parametrize("end", ["finish", "cancel", "lost", "refused", "back"])
async def test_however_a_job_ends_its_project_holds_nothing_more(bench, end: str) -> None:
    worker = await bench.registered()
    job = await bench.submit(project="p", cpus=1.5)
    delivery = await worker.one()
    assert (await used(bench, "p")).millicpus == 1500
    match end:
        case "cancel":
            await bench.client.job_cancel(CancelRequest(job=[job]))
        case "refused":
            await worker.finish(delivery, Outcome.REFUSED, reason_code="cwd_missing", reason="not there")
        case _:
            await worker.ack(delivery)
            await worker.start(delivery)
            if end in ("lost", "back"):
                await bench.sweep(after_s=61)
                assert (await used(bench, "p")).millicpus == 0
            if end == "back":
                worker.hold(delivery, Phase.RUNNING)
                await worker.report()
                assert (await used(bench, "p")).millicpus == 1500
            if end != "lost":
                await worker.finish(delivery)

    assert (await used(bench, "p")).millicpus == 0


async def test_a_poll_that_is_parked_is_given_the_turn_of_the_project_that_has_used_least(bench) -> None:
    worker = await bench.registered(slots=1)
    await bench.submit(project="a")
    delivery = await worker.running()
    bench.clock.pass_s(5)
    a, b = await bench.submit(project="a"), await bench.submit(project="b")
    parked = asyncio.create_task(worker.poll(wait_s=5, process=False))
    await eventually(lambda: worker.id in bench.broker.wake._parked, within_s=20)
    await worker.finish(delivery)

    assert [delivery.job for delivery in (await parked).deliveries] == [b]
    assert await bench.state(a) == "queued"
