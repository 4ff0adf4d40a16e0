"""Preemption by policy, with a real store: who is stopped for whom, and who has the room then."""

from __future__ import annotations

import pytest

from broker.service import making_room
from broker.wire.projects import Preemption, Project
from broker.wire.workers import Outcome, Phase
from service.test_reservations import card, started, with_gpus

POLICY = Preemption(enabled=True, min_priority_difference=20, min_runtime_s=100)


async def after(bench, worker, seconds: float) -> None:
    """So much later, in steps that no lease is too short for."""
    await bench.sweep()
    while seconds > 0:
        step, seconds = min(seconds, 50), seconds - 50
        bench.clock.pass_s(step)
        await worker.report()
        await bench.sweep()


async def stopping(bench, *jobs: int) -> list[bool]:
    return [(await bench.client.job_get(job)).stopping is not None for job in jobs]


@pytest.mark.guarantee("G39")
async def test_a_job_of_higher_priority_has_room_made_and_nobody_else_takes_it(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await with_gpus(bench, "anna", card(0), card(1))
    victims = [await bench.submit(gpus=1, preemptible=True, on_preempt="requeue") for _ in range(2)]
    running = await started(worker)
    big = await bench.submit(gpus=2, priority=20)
    small = await bench.submit(gpus=1)

    await after(bench, worker, 100)
    shown = (await bench.client.job_get(victims[0])).stopping
    stops = {stop.job: stop for stop in (await worker.report()).stops}
    assert await stopping(bench, *victims) == [True, True]
    assert (shown.by, shown.why) == ("policy", f"makes room for job {big}, of priority 20; its own is 0")
    for job, delivery in running.items():
        worker.hold(delivery, Phase.RUNNING, stopping=stops[job].id)
        await worker.finish(delivery, Outcome.STOPPED, exit_code=0, stop=stops[job].id)
        assert (set(await started(worker)) == {big}) is (job == victims[1])

    assert [await bench.state(job) for job in (*victims, small)] == ["queued"] * 3
    assert (await bench.client.job_get(big)).state.value == "running"


@pytest.mark.guarantee("G39")
async def test_many_that_fit_nowhere_do_not_keep_the_next_from_having_room_made(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await with_gpus(bench, "anna", card(0))
    victim = await bench.submit(gpus=1, preemptible=True)
    await started(worker)
    for vram_gb in range(100, 101 + making_room.MOST_HELPED):
        await bench.submit(vram_gb=vram_gb, priority=50)
    await bench.submit(gpus=1, priority=40)

    await after(bench, worker, 100)

    assert await stopping(bench, victim) == [True]


@pytest.mark.guarantee("G39")
async def test_the_victim_goes_on_in_its_own_directory_on_the_same_worker(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await bench.registered(slots=1)
    victim = await bench.submit(preemptible=True, on_preempt="requeue")
    delivery = await worker.running()
    urgent = await bench.submit(priority=50)
    await after(bench, worker, 100)
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0)
    first = await worker.running()
    await worker.finish(first)

    again = await worker.running()

    assert (first.job, again.job, again.attempt, again.restarts) == (urgent, victim, 2, 1)
    assert "job_preempted" in await bench.kinds(victim)


@pytest.mark.guarantee("G39")
@pytest.mark.parametrize(
    ("fields", "difference", "seconds", "enabled"),
    [
        ({"preemptible": True}, 19, 100, True),
        ({"preemptible": True}, 20, 50, True),
        ({"preemptible": False}, 50, 100, True),
        ({"preemptible": True}, 50, 100, False),
    ],
    ids=["too little lower", "too short", "not preemptible", "off"],
)
async def test_who_is_left_alone(make_bench, fields: dict, difference: int, seconds: float, enabled: bool) -> None:
    bench = await make_bench(preemption=POLICY.model_copy(update={"enabled": enabled}))
    worker = await bench.registered(slots=1)
    job = await bench.submit(**fields)
    await worker.running()
    await bench.submit(priority=difference)

    await after(bench, worker, seconds)

    assert await stopping(bench, job) == [False]


@pytest.mark.guarantee("G39")
async def test_priorities_of_projects_count(make_bench) -> None:
    bench = await make_bench(preemption=POLICY, projects={"high": Project(priority=60), "mid": Project(priority=45)})
    worker = await bench.registered(slots=2)
    low, mid = await bench.submit(preemptible=True), await bench.submit(preemptible=True, project="mid")
    await started(worker)
    await bench.submit(project="high", cpus=1)

    await after(bench, worker, 100)

    assert await stopping(bench, low, mid) == [True, False]


@pytest.mark.guarantee("G39")
async def test_no_more_are_stopped_than_needed_also_in_later_looks(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await bench.registered(slots=4)
    jobs = [await bench.submit(preemptible=True) for _ in range(4)]
    await started(worker)
    await bench.submit(cpus=2, priority=30)

    await after(bench, worker, 100)
    first = await stopping(bench, *jobs)
    for _ in range(3):
        await bench.sweep(after_s=1)

    assert sum(first) == 2
    assert await stopping(bench, *jobs) == first


@pytest.mark.guarantee("G39")
async def test_nobody_is_stopped_where_it_would_not_help(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await bench.registered(slots=4)
    firm, soft = await bench.submit(cpus=3), await bench.submit(preemptible=True)
    await started(worker)
    await bench.submit(cpus=2, priority=50)
    await bench.submit(cpus=64, priority=50)

    await after(bench, worker, 100)

    assert await stopping(bench, firm, soft) == [False, False]


@pytest.mark.guarantee("G39")
async def test_one_that_can_start_elsewhere_has_nobody_stopped(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await bench.registered(slots=1)
    job = await bench.submit(preemptible=True)
    await worker.running()
    await bench.submit(priority=50)
    await after(bench, worker, 50)
    await bench.registered("other", slots=1)
    await after(bench, worker, 20)
    bench.clock.wall += 10**9  # a wall clock that jumps makes no job older
    await bench.sweep()

    assert await stopping(bench, job) == [False]
