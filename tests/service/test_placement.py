"""Devices, memory and counted things of workers: given with an assignment, and free when its tree is known gone."""

from __future__ import annotations

import asyncio

import pytest

from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.machines import Cpus, Facts, Gpu, GpuHealth, GpuProcess, GpuState, Ram
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState
from broker.wire.workers import Delivery, Outcome, Phase, WorkerGpu
from support.scripted_worker import ScriptedWorker
from support.waiting import eventually

A, B = "GPU-a", "GPU-b"
GIB = 1024


def gpu(uuid: str = A, *uses: tuple[str | None, int], total_gb: int = 24, **fields: object) -> Gpu:
    """A card with processes of these jobs, or of nobody's, that have so many GiB."""
    processes = [GpuProcess(pid=100 + n, mb=gb * GIB, job=job) for n, (job, gb) in enumerate(uses)]
    known = {
        "uuid": uuid,
        "index": 0 if uuid == A else 1,
        "health": GpuHealth.OK,
        "total_mb": total_gb * GIB,
        "driver_mb": 400,
        "free_mb": total_gb * GIB - 400 - sum(gb for _, gb in uses) * GIB,
        "processes": processes,
    }
    return Gpu.model_validate({**known, **fields})


def facts(number: int, *gpus: Gpu, available_gb: float = 60) -> Facts:
    ram = Ram(total=64, available=available_gb)
    return Facts(number=number, cpus=Cpus(logical=8, usable=8), ram_gb=ram, gpu_state=GpuState.OK, gpus=list(gpus))


async def with_gpus(bench, *gpus: Gpu, name: str = "w1", **fields: object) -> ScriptedWorker:
    worker = await bench.registered(name, **fields)
    await worker.report(facts=facts(1, *(gpus or (gpu(),))))
    return worker


async def device(bench, uuid: str = A, worker: str = "w1") -> WorkerGpu:
    found = next(one for one in (await bench.client.worker_list()).workers if one.name == worker)
    return next(one for one in found.gpus or () if one.uuid == uuid)


async def started(worker: ScriptedWorker, deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)


async def waiting(bench, job: int):
    return (await bench.client.job_get(job)).waiting


@pytest.mark.guarantee("G31")
@pytest.mark.trial("B44")
async def test_of_six_jobs_that_come_at_once_two_run_and_a_small_one_still_fits_beside_them(bench) -> None:
    worker = await with_gpus(bench, slots=16)
    jobs = [await bench.submit(vram_gb=10) for _ in range(6)]

    deliveries = (await worker.poll()).deliveries
    await started(worker, deliveries)

    assert [delivery.job for delivery in deliveries] == jobs[:2]
    shown = await device(bench)
    assert shown.vram_gb is not None and shown.vram_gb.reserved == 20
    assert shown.jobs == [f"{job}.1" for job in jobs[:2]]
    small = await bench.submit(vram_gb=3, priority=9)
    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [small]

    await worker.report(facts=facts(2, gpu(A, *((f"{job}.1", 10) for job in jobs[:2]))))
    after = await waiting(bench, jobs[2])
    assert (after.code, after.need, after.have) == ("gpus_busy", 10, 0.1)


async def test_after_they_have_allocated_a_small_job_still_fits(bench) -> None:
    worker = await with_gpus(bench, slots=16)
    jobs = [await bench.submit(vram_gb=10) for _ in range(2)]
    await started(worker, (await worker.poll()).deliveries)
    await worker.report(facts=facts(2, gpu(A, *((f"{job}.1", 10) for job in jobs))))
    small = await bench.submit(vram_gb=3)
    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [small]


@pytest.mark.trial("B45")
async def test_beside_foreign_memory_fits_what_is_left_and_who_waits_for_it_is_told(bench) -> None:
    worker = await with_gpus(bench, gpu(A, (None, 10)))
    large, fitting = await bench.submit(vram_gb=16, priority=9), await bench.submit(vram_gb=13)
    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [fitting]
    said = await waiting(bench, large)
    assert (said.code, said.need) == ("gpus_busy", 16)
    assert "10 used by others" in said.message


async def test_a_parked_poll_is_woken_when_foreign_memory_becomes_free(bench) -> None:
    worker = await with_gpus(bench, gpu(A, (None, 18)))
    job = await bench.submit(vram_gb=8)
    parked = asyncio.create_task(worker.poll(wait_s=5))
    await eventually(lambda: worker.id in bench.broker.wake._parked, within_s=20)
    await worker.report(facts=facts(2, gpu()))
    assert [delivery.job for delivery in (await parked).deliveries] == [job]


async def test_devices_that_are_found_while_a_poll_is_parked_are_given_without_a_wait(bench) -> None:
    worker = await bench.registered("w1")
    job = await bench.submit(gpus=1)
    assert (await waiting(bench, job)).code == "no_worker_fits"
    parked = asyncio.create_task(worker.poll(wait_s=5))
    await eventually(lambda: worker.id in bench.broker.wake._parked, within_s=20)
    await worker.report(facts=facts(1, gpu()))
    assert (await parked).deliveries == []  # it asks again at once
    assert (await worker.one()).job == job


async def test_one_that_has_a_device_for_itself_shares_with_nobody(bench) -> None:
    worker = await with_gpus(bench, gpu(A), gpu(B), slots=16)
    alone = await bench.submit(gpus=1)
    deliveries = (await worker.poll()).deliveries
    assert [(delivery.job, delivery.given.gpus[0].uuid) for delivery in deliveries] == [(alone, A)]
    sharing = [await bench.submit(vram_gb=10) for _ in range(3)]
    two = await bench.submit(gpus=2, priority=-9)  # one that came before them would have room kept for it
    got = (await worker.poll()).deliveries
    assert [(delivery.job, delivery.given.gpus[0].uuid) for delivery in got] == [(job, B) for job in sharing[:2]]
    assert (await waiting(bench, two)).code == "gpus_busy"
    assert (await device(bench, A)).exclusive
    assert (await device(bench, B)).exclusive is None


@pytest.mark.trial("B127")
@pytest.mark.trial("B128")
async def test_several_devices_are_given_together_or_not_at_all_and_are_shown(bench) -> None:
    worker = await with_gpus(bench, gpu(A), gpu(B), slots=16)
    first, second = await bench.submit(gpus=2), await bench.submit(gpus=2)
    [delivery] = (await worker.poll()).deliveries
    await started(worker, [delivery])
    job = await bench.client.job_get(first, detail="full")
    assert job.gpus == [A, B]
    assert [assignment.gpus for assignment in job.assignments] == [[A, B]]
    assert (await bench.client.job_get(second)).gpus is None
    await worker.finish(delivery)
    assert (await worker.one()).job == second
    assert (await bench.client.job_get(first)).gpus == [A, B]  # history says it still


@pytest.mark.guarantee("G31")
@pytest.mark.trial("B102")
async def test_a_stop_gives_no_device_away_before_the_tree_is_gone(bench) -> None:
    worker = await with_gpus(bench, slots=16)
    job, following = await bench.submit(gpus=1), await bench.submit(gpus=1)
    delivery = await worker.running()
    await bench.client.job_cancel(CancelRequest(job=[job]))
    stop = (await worker.report()).stops[0]
    worker.hold(delivery, Phase.RUNNING, stopping=stop.id)
    assert (await worker.poll()).deliveries == []
    assert (await waiting(bench, following)).code == "gpus_busy"
    await worker.finish(delivery, Outcome.STOPPED, stop=stop.id, signal="SIGTERM")
    assert (await worker.one()).job == following


@pytest.mark.guarantee("G31")
async def test_a_device_is_not_free_at_the_end_of_a_lease_and_what_comes_back_has_it_still(bench) -> None:
    worker = await with_gpus(bench, slots=16)
    job = await bench.submit(gpus=1, on_worker_lost="orphan")
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "orphaned"
    assert (await device(bench)).jobs == [f"{job}.1"]
    following = await bench.submit(gpus=1)

    assert (await worker.poll()).deliveries == []  # it lists the process, which has its device

    assert await bench.state(job) == "running"
    assert await bench.state(following) == "queued"
    await worker.finish(delivery)
    await worker.report(facts=facts(2, gpu()))
    assert (await worker.one()).job == following


async def test_a_device_that_changed_hands_is_not_free_while_its_last_owner_may_have_a_process_there(bench) -> None:
    first = await with_gpus(bench, name="w1")
    second = await with_gpus(bench, name="w2")
    job = await bench.submit(gpus=1, worker="w1", on_worker_lost="orphan")
    await first.running()
    bench.clock.pass_s(40)
    await second.report()
    await bench.sweep(after_s=40)
    assert (await device(bench, worker="w2")).ignored is None
    following = await bench.submit(gpus=1, worker="w2")
    assert (await second.poll()).deliveries == []
    assert f"{job}.1's alone" in (await waiting(bench, following)).message


@pytest.mark.trial("B47")
async def test_a_lost_device_is_given_to_nobody_and_what_runs_there_is_not_touched(bench) -> None:
    worker = await with_gpus(bench, gpu(A), gpu(B), slots=16)
    running = await bench.submit(gpus=1)
    await worker.running()
    lost = gpu(A, health=GpuHealth.LOST, free_mb=None, processes=None)
    await worker.report(facts=facts(2, lost, gpu(B)))
    two, one = await bench.submit(gpus=2), await bench.submit(gpus=1)
    [delivery] = (await worker.poll()).deliveries
    assert (delivery.job, delivery.given.gpus[0].uuid) == (one, B)
    said = await waiting(bench, two)
    assert (said.code, said.need, said.have) == ("gpus_unusable", 2, 1)
    assert "GPU 0 is lost" in said.message
    assert await bench.state(running) == "running"
    assert (await device(bench, A)).jobs == [f"{running}.1"]
    assert len((await bench.client.job_events(type=EventType.WORKER_GPUS_CHANGED)).events) == 1


async def test_a_worker_that_restarted_gives_nothing_before_it_has_looked(bench) -> None:
    worker = await with_gpus(bench)
    again = worker.restarted()
    await again.register()
    unknown = Facts(number=1, cpus=Cpus(logical=8, usable=8), gpu_state=GpuState.UNKNOWN, gpus_why="not looked at yet")
    await again.report(facts=unknown)
    job = await bench.submit(gpus=1)
    assert (await again.poll()).deliveries == []
    assert (await waiting(bench, job)).code == "gpus_unusable"
    await again.report(facts=facts(2, gpu()))
    assert (await again.one()).job == job


async def test_a_worker_that_finds_the_device_busy_says_no_and_the_job_goes_elsewhere(bench) -> None:
    first = await with_gpus(bench, name="w1")
    second = await with_gpus(bench, gpu(B), name="w2")
    job = await bench.submit(vram_gb=10)
    refused = await first.one()
    plain = await bench.submit(worker="w1")
    await first.finish(refused, Outcome.REFUSED, reason_code="gpu_busy", reason="it is not free after all")
    assert [delivery.job for delivery in (await first.poll()).deliveries] == [plain]  # only for what asks the same
    taken = await second.one()
    assert (taken.job, taken.given.gpus[0].uuid) == (job, B)
    assert await bench.assignments(job) == ["refused", "pending"]


async def test_a_refused_job_waits_and_is_tried_again_when_the_device_is_not_as_it_was(bench) -> None:
    worker = await with_gpus(bench)
    job = await bench.submit(vram_gb=10)
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="gpu_busy", reason="not free after all")
    assert (await worker.poll()).deliveries == []
    assert (await waiting(bench, job)).code == "gpu_busy"
    await worker.report(facts=facts(2, gpu(A, (None, 1))))
    assert (await worker.one()).job == job


async def test_ram_and_counted_things_are_reserved_and_free_again(bench) -> None:
    worker = await bench.registered("w1", slots=16, resources={"license": 2})
    await worker.report(facts=facts(1))
    for _ in range(3):
        await bench.submit(resources={"license": 1}, ram_gb=20)
    large = await bench.submit(ram_gb=60)
    first, second = (await worker.poll()).deliveries
    shown = (await bench.client.worker_list()).workers[0]
    assert (shown.resources["license"].total, shown.resources["license"].used) == (2, 2)
    assert shown.ram_reserved_gb == 40
    said = await waiting(bench, large)
    assert (said.code, said.need, said.have) == ("ram_busy", 60, 23)
    await started(worker, [first, second])
    await worker.finish(first)
    assert (await worker.one()).given.resources == {"license": 1}


@pytest.mark.trial("B127")
async def test_jobs_for_two_and_three_of_four_devices_never_hold_half_and_always_go_on(bench) -> None:
    worker = await with_gpus(bench, *(gpu(f"GPU-{n}", index=n) for n in range(4)))
    for _ in range(100):
        wanted = {await bench.submit(gpus=gpus): gpus for gpus in (3, 3, 2, 2)}
        left = set(wanted)
        while left:
            given = (await worker.poll()).deliveries
            devices = [share.uuid for one in given for share in one.given.gpus]
            assert given and len(devices) == len(set(devices)) <= 4
            assert [len(one.given.gpus) for one in given] == [wanted[one.job] for one in given]
            await started(worker, given)
            for one in given:
                await worker.finish(one)
            left -= {one.job for one in given}


@pytest.mark.trial("B128")
async def test_in_a_burst_what_runs_has_its_device_and_says_which(bench) -> None:
    worker = await with_gpus(bench, *(gpu(f"GPU-{n}", index=n) for n in range(3)), slots=64)
    jobs = [await bench.submit(gpus=1) for _ in range(50)]
    running: list[Delivery] = []
    for left in range(len(jobs), 0, -1):
        new = (await worker.poll()).deliveries
        await started(worker, new)
        running += new
        shown = {job.id: job.gpus for job in (await bench.client.job_list(state=JobState.RUNNING)).jobs}
        assert shown == {one.job: [one.given.gpus[0].uuid] for one in running}
        assert len({devices[0] for devices in shown.values()}) == min(3, left)
        await worker.finish(running.pop(0))
    assert (await bench.client.job_list()).counts == {"completed": len(jobs)}


async def test_memory_that_others_use_is_not_given_and_not_tried(bench) -> None:
    worker = await bench.registered("w1", slots=16)
    job = await bench.submit(ram_gb=40)
    for number, available in enumerate((30, 33, 36), start=1):
        await worker.report(facts=facts(number, available_gb=available))
        assert (await worker.poll()).deliveries == []
    said = await waiting(bench, job)
    await worker.report(facts=facts(4, available_gb=45))

    assert (said.code, said.need, said.have) == ("ram_busy", 40, 35)
    assert [given.job for given in (await worker.poll()).deliveries] == [job]


async def test_two_workers_of_unlike_kinds_get_what_fits_them(bench) -> None:
    arm = await bench.registered("arm", platform="linux-aarch64")
    intel = await with_gpus(bench, name="intel", platform="linux-x86_64")
    card, plain = await bench.submit(vram_gb=10), await bench.submit(arch="arm64", os="linux")
    nowhere = await bench.submit(os="macos")
    assert [delivery.job for delivery in (await arm.poll()).deliveries] == [plain]
    assert [delivery.job for delivery in (await intel.poll()).deliveries] == [card]
    said = await waiting(bench, nowhere)
    assert said.code == "no_worker_fits" and "macos" in said.message


async def test_what_fits_no_device_at_all_is_said_at_submit(bench) -> None:
    await with_gpus(bench)
    said = await bench.client.job_submit(JobSpec(command="true", vram_gb=80))
    assert said.waiting.code == "no_worker_fits"
    assert "the largest has 23.1" in said.waiting.message


async def test_a_delivery_that_is_repeated_has_the_same_devices(bench) -> None:
    worker = await with_gpus(bench)
    await bench.submit(gpus=1)
    first = await worker.poll(process=False)
    again = await worker.poll()
    assert first.deliveries[0].given == again.deliveries[0].given
    assert again.deliveries[0].given.gpus[0].uuid == A


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ({"command": "python -c 'import torch'"}, True),
        ({"argv": ["torchrun", "train.py"]}, True),
        ({"command": "export DEVICE=cuda:0; ./train"}, True),
        ({"command": "python -c 'import torch'", "gpus": 1}, False),
        ({"command": "python -c 'import torch'", "vram_gb": 1}, False),
        ({"command": "cat torches.txt; ls barracuda"}, False),
        ({"command": "python train_torch.py --device cuda0"}, True),
        ({"command": "CUDA_VISIBLE_DEVICES=0 python train.py"}, True),
        ({"command": "CUDA_VISIBLE_DEVICES=0 python train.py", "gpus": 1}, True),
        ({"command": "echo $CUDA_VISIBLE_DEVICES; CUDA_VISIBLE_DEVICES= ./prepare", "gpus": 1}, False),
    ],
)
@pytest.mark.trial("B42")
async def test_who_seems_to_use_a_gpu_and_asks_for_none_is_warned(bench, fields, warned: bool) -> None:
    said = await bench.client.job_submit(JobSpec.model_validate(fields))
    assert bool(said.warnings) is warned


@pytest.mark.trial("B42")
async def test_devices_can_not_be_taken_by_the_environment(bench) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        with pytest.raises(Refused, match=name) as refused:
            await bench.submit(env={name: "0"})
        assert refused.value.code is ProblemCode.INVALID_SPEC
    with pytest.raises(ValueError, match="gpus is 0"):
        JobSpec(command="true", gpus=0, vram_gb=1)


@pytest.mark.parametrize(
    ("last", "said"),
    [(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n", True), (b"ValueError\n", False)],
)
async def test_last_words_of_gpu_memory_are_a_hint_and_no_reason(bench, last: bytes, said: bool) -> None:
    worker = await with_gpus(bench)
    job = await bench.submit(gpus=1)
    delivery = await worker.running()
    await worker.write(delivery, last)
    await worker.finish(delivery, exit_code=1, final_size=len(last))

    got = await bench.client.job_get(job)

    assert got.reason.code == "exit_code"
    assert (got.warnings is not None and "vram_gb" in got.warnings[0]) is said
