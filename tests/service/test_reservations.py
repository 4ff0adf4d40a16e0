"""A job that fits nowhere now has room kept for it; smaller ones behind it pass only where they do not hold it up."""

from __future__ import annotations

import asyncio

import pytest

from broker.service import reservations
from broker.wire.jobs import CancelRequest
from broker.wire.machines import Cpus, Facts, Gpu, GpuHealth, GpuProcess, GpuState, Ram
from support.scripted_worker import ScriptedWorker
from support.waiting import eventually

GIB = 1024


def card(index: int, *uses: tuple[str | None, int]) -> Gpu:
    """24 GiB, with processes of these jobs, or of nobody's, that have so many."""
    known = {"uuid": f"GPU-{index}", "index": index, "total_mb": 24 * GIB, "driver_mb": 400, "health": GpuHealth.OK}
    free = 24 * GIB - 400 - sum(gb for _, gb in uses) * GIB
    processes = [GpuProcess(pid=100 + n, mb=gb * GIB, job=job) for n, (job, gb) in enumerate(uses)]
    return Gpu.model_validate({**known, "free_mb": free, "processes": processes})


async def with_gpus(bench, name: str, *gpus: Gpu, number: int = 1, **fields: object) -> ScriptedWorker:
    worker = await bench.registered(name, **{"slots": 16, **fields})
    await says(worker, number, *gpus)
    return worker


async def says(worker: ScriptedWorker, number: int, *gpus: Gpu) -> None:
    ram = Ram(total=64, available=60)
    cpus = Cpus(logical=16, usable=16)
    await worker.report(facts=Facts(number=number, cpus=cpus, ram_gb=ram, gpu_state=GpuState.OK, gpus=list(gpus)))


async def started(worker: ScriptedWorker) -> dict[int, object]:
    """All that is given to it now runs: job → delivery."""
    given = (await worker.poll()).deliveries
    for delivery in given:
        await worker.ack(delivery)
        await worker.start(delivery)
    return {delivery.job: delivery for delivery in given}


async def waiting(bench, job: int):
    return (await bench.client.job_get(job)).waiting


@pytest.mark.guarantee("G37")
@pytest.mark.trial("B37")
async def test_a_stream_of_small_jobs_does_not_starve_one_that_needs_two_devices(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1))
    small = [await bench.submit(gpus=1, priority=-10) for _ in range(6)]
    running = await started(worker)
    big = await bench.submit(gpus=2)
    impossible = await bench.submit(gpus=4, priority=50)
    later = await bench.submit(depends_on=[small[0]], dependency_policy="any_exit", priority=50)

    await worker.finish(running[small[0]])
    assert set(await started(worker)) == {later}
    await worker.finish(running[small[1]])

    assert set(await started(worker)) == {big}
    assert await bench.state(small[2]) == "queued"
    assert (await waiting(bench, impossible)).code == "no_worker_fits"


@pytest.mark.guarantee("G37")
@pytest.mark.trial("B37")
async def test_many_that_can_start_nowhere_do_not_end_the_protection_of_the_next(bench) -> None:
    """They could run here, but for what a stranger holds; each is looked for, and none of them has room kept."""
    worker = await with_gpus(bench, "anna", card(0), card(1), card(2, (None, 10)))
    small = [await bench.submit(gpus=1, priority=-10) for _ in range(2)]
    running = await started(worker)
    for ram_gb in range(1, reservations.MOST_LOOKED_FOR + 3):
        await bench.submit(gpus=3, ram_gb=ram_gb, priority=20)
    big = await bench.submit(gpus=2)
    behind = [await bench.submit(gpus=1, priority=-10) for _ in range(2)]
    await worker.poll()

    await worker.finish(running[small[0]])
    assert await started(worker) == {}
    await worker.finish(running[small[1]])

    assert set(await started(worker)) == {big}
    assert [await bench.state(job) for job in behind] == ["queued"] * 2


@pytest.mark.guarantee("G37")
async def test_both_say_why_they_wait(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1))
    small = [await bench.submit(gpus=1, priority=-10) for _ in range(3)]
    running = await started(worker)
    big = await bench.submit(gpus=2)
    await worker.finish(running[small[0]])
    await worker.poll()

    held = await waiting(bench, small[2])
    kept = await waiting(bench, big)

    assert (held.code, held.message) == (
        "reservation",
        f"anna is kept for job {big}, which waits for the end of {small[1]}.1",
    )
    assert kept.code == "gpus_busy"
    assert kept.message.endswith(f"; anna is kept for it until the end of {small[1]}.1")


@pytest.mark.guarantee("G37")
@pytest.mark.parametrize(("limit_s", "passes"), [(10, True), (1000, False), ("none", False)])
async def test_one_passes_that_has_ended_before_the_other_can_start(bench, limit_s: object, passes: bool) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1))
    long = await bench.submit(gpus=1, max_wall_s=200)
    await started(worker)
    await bench.submit(gpus=2)
    short = await bench.submit(gpus=1, max_wall_s=limit_s)

    assert (short in await started(worker)) is passes
    assert await bench.state(long) == "running"


async def has_run(bench, worker: ScriptedWorker, command: str, *lengths_s: float) -> None:
    """Such jobs took so long before."""
    for duration_s in lengths_s:
        job = await bench.submit(command=command)
        delivery = (await started(worker))[job]
        await worker.finish(delivery, duration_s=duration_s)


@pytest.mark.guarantee("G37")
@pytest.mark.parametrize(("lengths_s", "passes"), [((90, 100, 110), True), ((90, 100, 300), False), ((90, 100), False)])
async def test_one_passes_whose_like_have_always_ended_in_time(bench, lengths_s: tuple[float], passes: bool) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1))
    await has_run(bench, worker, "python short.py", *lengths_s)
    await bench.submit(gpus=1, max_wall_s=200)
    await started(worker)
    await bench.submit(gpus=2)
    short = await bench.submit(command="python short.py", gpus=1)

    assert (short in await started(worker)) is passes


@pytest.mark.guarantee("G37")
async def test_who_waits_for_one_that_ends_soon_as_its_like_did_is_not_passed(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1))
    await has_run(bench, worker, "python train.py", 50, 60, 70)
    await bench.submit(command="python train.py", gpus=1)  # its limit is that of all jobs: days
    await started(worker)
    await bench.submit(gpus=2)
    short = await bench.submit(gpus=1, max_wall_s=100)

    assert short not in await started(worker)


@pytest.mark.guarantee("G37")
async def test_room_that_is_kept_stays_so_when_another_project_has_used_less_by_then(bench) -> None:
    worker, other = await with_gpus(bench, "anna", card(0), card(1)), await bench.registered("berta", slots=64)
    await bench.submit(gpus=1, project="b", worker="anna")
    await started(worker)
    bench.clock.pass_s(100)
    big = await bench.submit(gpus=2, project="a")
    small = await bench.submit(gpus=1, project="b")
    assert not await started(worker)
    assert (await waiting(bench, small)).code == "reservation"

    await bench.submit(cpus=60, project="a", worker="berta")
    await started(other)
    bench.clock.pass_s(1000)

    assert not await started(worker)
    assert (await bench.state(big), await bench.state(small)) == ("queued", "queued")


@pytest.mark.guarantee("G37")
async def test_one_passes_that_leaves_enough(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1), slots=4)
    running = await bench.submit(gpus=1)
    await started(worker)
    two = await bench.submit(gpus=2, cpus=2)
    beside, too_many = await bench.submit(cpus=2), await bench.submit(cpus=1, gpus=1)

    given = await started(worker)

    assert set(given) == {beside}
    assert (await waiting(bench, too_many)).code == "reservation"
    assert (await bench.state(running), await bench.state(two)) == ("running", "queued")


@pytest.mark.guarantee("G37")
async def test_a_job_before_it_in_rank_does_not_wait_for_it(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0), card(1))
    await bench.submit(gpus=1)
    await started(worker)
    await bench.submit(gpus=2)
    first = await bench.submit(gpus=1, priority=1)

    assert set(await started(worker)) == {first}


@pytest.mark.guarantee("G37")
@pytest.mark.trial("B37")
async def test_what_others_have_taken_is_kept_for_nobody(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0, (None, 20)), card(1))
    big, small = await bench.submit(gpus=2, priority=50), await bench.submit(gpus=1)

    assert set(await started(worker)) == {small}
    assert (await waiting(bench, big)).code == "gpus_busy"


@pytest.mark.guarantee("G37")
async def test_the_memory_that_a_running_job_uses_counts_as_free_after_its_end(bench) -> None:
    worker = await with_gpus(bench, "anna", card(0))
    running = await bench.submit(vram_gb=10)
    delivery = (await started(worker))[running]
    await says(worker, 2, card(0, (f"{running}.1", 10)))
    big, small = await bench.submit(vram_gb=20), await bench.submit(vram_gb=5)

    assert await started(worker) == {}
    await worker.finish(delivery)
    await says(worker, 3, card(0))

    assert set(await started(worker)) == {big}
    assert (await waiting(bench, small)).code == "gpus_busy"


@pytest.mark.guarantee("G37")
async def test_another_worker_goes_on_and_the_one_that_is_kept_stays_the_same(bench) -> None:
    anna = await with_gpus(bench, "anna", card(0), card(1))
    berta = await with_gpus(bench, "berta", card(2), card(3))
    jobs = [await bench.submit(gpus=1, worker=name) for name in ("anna", "anna", "berta", "berta")]
    on_anna, on_berta = await started(anna), await started(berta)
    big = await bench.submit(gpus=2)
    small = [await bench.submit(gpus=1) for _ in range(4)]

    await berta.finish(on_berta[jobs[2]])
    await anna.finish(on_anna[jobs[0]])
    first = set(await started(berta)), set(await started(anna))
    bench.clock.pass_s(reservations.STANDS_MS / 1000 + 1)
    second = set(await started(berta)), set(await started(anna))

    assert first in (({small[0]}, set()), (set(), {small[0]}))
    assert second == (set(), set())
    kept, delivery = (anna, on_anna[jobs[1]]) if first[0] else (berta, on_berta[jobs[3]])
    await kept.finish(delivery)
    assert set(await started(kept)) == {big}


@pytest.mark.guarantee("G37")
async def test_one_that_can_start_elsewhere_at_once_keeps_nothing(bench) -> None:
    anna = await with_gpus(bench, "anna", card(0), card(1))
    await bench.submit(gpus=1)
    await started(anna)
    big, small = await bench.submit(gpus=2), await bench.submit(gpus=1)
    berta = await with_gpus(bench, "berta", card(2), card(3))

    assert set(await started(anna)) == {small}
    assert set(await started(berta)) == {big}


@pytest.mark.guarantee("G37")
@pytest.mark.parametrize("leaves", ["cancel", "starts elsewhere"])
async def test_who_was_held_back_is_given_the_room_once_it_is_not_kept_any_more(bench, leaves: str) -> None:
    anna = await with_gpus(bench, "anna", card(0), card(1))
    await bench.submit(gpus=1)
    await started(anna)
    big, small = await bench.submit(gpus=2), await bench.submit(gpus=1)
    assert await started(anna) == {}
    parked = asyncio.create_task(anna.poll(wait_s=5, process=False))
    await eventually(lambda: anna.id in bench.broker.wake._parked, within_s=20)

    if leaves == "cancel":
        await bench.client.job_cancel(CancelRequest(job=[big]))
    else:
        berta = await with_gpus(bench, "berta", card(2), card(3))
        assert set(await started(berta)) == {big}

    assert [delivery.job for delivery in (await parked).deliveries] == [small]


@pytest.mark.guarantee("G37")
async def test_a_small_job_that_is_submitted_later_does_not_slip_in(bench) -> None:
    anna = await with_gpus(bench, "anna", card(0), card(1))
    await bench.submit(gpus=1)
    running = await started(anna)
    big = await bench.submit(gpus=2)
    parked = asyncio.create_task(anna.poll(wait_s=5, process=False))
    await eventually(lambda: anna.id in bench.broker.wake._parked, within_s=20)

    small = await bench.submit(gpus=1)
    await eventually(lambda: not bench.broker.wake._ready_shapes, within_s=20)
    await bench.broker.store.run(lambda tx: None)
    assert await bench.state(small) == "queued"

    for delivery in running.values():
        await anna.finish(delivery)
    assert [delivery.job for delivery in (await parked).deliveries] == [big]


@pytest.mark.guarantee("G37")
async def test_a_project_that_has_used_more_does_not_starve_the_large_job_of_another(bench) -> None:
    anna = await with_gpus(bench, "anna", card(0), card(1))
    stream = [await bench.submit(gpus=1, project="stream") for _ in range(8)]
    running = await started(anna)
    big = await bench.submit(gpus=2, project="other")
    for job in stream[:2]:
        bench.clock.pass_s(10)
        await anna.finish(running[job])
        running |= await started(anna)

    assert await bench.state(big) == "running"
    assert [await bench.state(job) for job in stream[2:]] == ["queued"] * 6
