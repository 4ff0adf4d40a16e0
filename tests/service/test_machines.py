"""What workers say of their machines: what is kept of it, who has a device, and what is told of changes."""

from __future__ import annotations

import pytest

from broker.wire.events import EventType
from broker.wire.machines import Cpus, Facts, Gpu, GpuHealth, GpuProcess, GpuState, Ram
from broker.wire.workers import PROTOCOL, Registration, Worker

A, B = "GPU-a", "GPU-b"


def gpu(uuid: str, health: GpuHealth = GpuHealth.OK, **fields: object) -> Gpu:
    known = {"index": 0, "model": "RTX", "total_mb": 24576, "free_mb": 24000, "processes": [], **fields}
    return Gpu.model_validate({"uuid": uuid, "health": health, **known})


def facts(number: int, *gpus: Gpu, state: GpuState = GpuState.OK, **fields: object) -> Facts:
    known = {"cpus": Cpus(logical=8, usable=8), "ram_gb": Ram(total=64, available=32), **fields}
    return Facts.model_validate({"number": number, "gpu_state": state, "gpus": list(gpus), **known})


NOT_YET = {"state": GpuState.UNKNOWN, "gpus_why": "not looked at yet"}


async def shown(bench, name: str = "w1") -> Worker:
    return next(worker for worker in (await bench.client.worker_list()).workers if worker.name == name)


async def told(bench, kind: EventType) -> list[dict[str, object]]:
    return [event.data or {} for event in (await bench.client.job_events(type=kind)).events]


async def owners(bench) -> dict[str, list[str]]:
    """Device → the workers that show it as theirs."""
    found: dict[str, list[str]] = {}
    for worker in (await bench.client.worker_list()).workers:
        for device in worker.gpus or ():
            found.setdefault(device.uuid or "", []).extend([worker.name] if device.ignored is None else [])
    return found


async def test_facts_come_with_the_registration_and_with_reports_and_only_newer_ones_count(bench) -> None:
    worker = bench.worker("w1")
    said = Registration(
        name="w1", epoch=1, machine="m", host="h", version="0", protocol=PROTOCOL, slots=4, facts=facts(1)
    )
    await bench.client.register(worker.id, said)
    assert (await shown(bench)).ram_gb == Ram(total=64, available=32)
    await worker.report(facts=facts(3, ram_gb=Ram(total=64, available=8)))
    await worker.report(facts=facts(2, ram_gb=Ram(total=64, available=16)))
    await worker.report()
    await bench.client.register(worker.id, said)  # its answer was lost
    found = await shown(bench)
    assert found.ram_gb == Ram(total=64, available=8)
    assert found.cpus is not None and found.cpus.logical == 8


async def test_a_worker_that_says_nothing_of_its_machine_is_shown_without(bench) -> None:
    await bench.registered("w1")
    found = await shown(bench)
    assert (found.cpus, found.ram_gb, found.gpus, found.gpus_why, found.stale) == (None, None, None, None, None)


async def test_a_device_is_shown_with_who_uses_it(bench) -> None:
    worker = await bench.registered("w1")
    processes = [
        GpuProcess(pid=1, mb=4096, job="42.1", user="u", name="python"),
        GpuProcess(pid=2, mb=8192, user="x", name="blender"),
        GpuProcess(pid=3, mb=1024, seen=False),
        GpuProcess(pid=4, mb=None, user="x", name="Xorg"),
    ]
    device = gpu(A, free_mb=8192, processes=processes, utilisation=50)
    await worker.report(facts=facts(1, device, driver="570.86", cuda="12.8"))
    found = (await shown(bench)).model_dump(mode="json", exclude_none=True)
    assert found["driver"] == "570.86 (CUDA 12.8)"
    assert found["gpus"] == [
        {
            "uuid": A,
            "index": 0,
            "model": "RTX",
            "vram_gb": {"total": 24.0, "free": 8.0, "foreign": 8.0, "unseen": 1.0},
            "utilisation": 50,
            "health": "ok",
            "jobs": ["42.1"],
            "foreign": [{"pid": 2, "user": "x", "name": "blender", "gb": 8.0}, {"pid": 4, "user": "x", "name": "Xorg"}],
        }
    ]


@pytest.mark.guarantee("G30")
async def test_one_device_belongs_to_one_live_worker_and_the_other_offer_is_ignored_visibly(bench) -> None:
    first, second = await bench.registered("w1"), await bench.registered("w2")
    await first.report(facts=facts(1, gpu(A)))
    await second.report(facts=facts(1, gpu(A), gpu(B)))
    assert await owners(bench) == {A: ["w1"], B: ["w2"]}
    assert [device.ignored for device in (await shown(bench, "w2")).gpus or ()] == ["w1", None]
    assert await told(bench, EventType.GPU_OFFER_IGNORED) == [{"uuid": A, "owner": "w1"}]
    for number in range(2, 5):
        await second.report(facts=facts(number, gpu(A), gpu(B, free_mb=number)))
    assert len(await told(bench, EventType.GPU_OFFER_IGNORED)) == 1


async def test_a_device_goes_to_the_other_worker_when_its_own_gives_it_up_or_is_lost_and_stays_there(bench) -> None:
    first, second = await bench.registered("w1"), await bench.registered("w2")
    await first.report(facts=facts(1, gpu(A), gpu(B)))
    await second.report(facts=facts(1, gpu(A), gpu(B)))
    await first.report(facts=facts(2, gpu(A)))
    assert await owners(bench) == {A: ["w1"], B: ["w2"]}
    bench.clock.pass_s(5)
    for _ in range(30):  # the second is heard all the time
        bench.clock.pass_s(5)
        await second.report()
        await bench.sweep()
    assert (await shown(bench, "w1")).state == "lost"
    assert await owners(bench) == {A: ["w2"], B: ["w2"]}
    await first.report(facts=facts(3, gpu(A), gpu(B)))
    assert (await shown(bench, "w1")).state == "online"
    assert await owners(bench) == {A: ["w2"], B: ["w2"]}


async def test_while_nobody_is_online_a_device_stays_where_it_was(bench) -> None:
    first, second = await bench.registered("w1"), await bench.registered("w2")
    await first.report(facts=facts(1, gpu(A)))
    await second.report(facts=facts(1, gpu(A)))
    for _ in range(30):
        await bench.sweep(5)
    assert [worker.state for worker in (await bench.client.worker_list()).workers] == ["lost", "lost"]
    await second.report()
    assert await owners(bench) == {A: ["w2"]}


async def test_facts_of_a_worker_that_is_lost_are_marked_stale(bench) -> None:
    worker = await bench.registered("w1")
    await worker.report(facts=facts(1, gpu(A, why="a note")))
    assert (await shown(bench)).stale is None
    for _ in range(30):
        await bench.sweep(5)
    found = await shown(bench)
    assert found.stale is True
    assert [(device.health, device.why) for device in found.gpus or ()] == [(GpuHealth.UNKNOWN, None)]
    await worker.report()
    found = await shown(bench)
    assert found.stale is None
    assert [device.health for device in found.gpus or ()] == [GpuHealth.OK]


@pytest.mark.guarantee("G30")
async def test_a_change_of_devices_is_told_once_and_numbers_are_not(bench) -> None:
    worker = await bench.registered("w1")
    await worker.report(facts=facts(1, **NOT_YET))
    await worker.report(facts=facts(2, gpu(A), gpu(B)))
    assert await told(bench, EventType.WORKER_GPUS_CHANGED) == []
    lost = gpu(B, GpuHealth.LOST, why="GPU is lost (NVML 15)", total_mb=None, free_mb=None)
    for number in range(3, 8):
        await worker.report(facts=facts(number, gpu(A, free_mb=1000 * number), lost))
    await worker.report(facts=facts(8, gpu(A)))
    assert await told(bench, EventType.WORKER_GPUS_CHANGED) == [
        {"changed": [{"uuid": B, "was": "ok", "now": "lost", "why": "GPU is lost (NVML 15)"}]},
        {"changed": [{"uuid": B, "was": "lost", "now": "absent", "why": ""}]},
    ]


@pytest.mark.guarantee("G33")
async def test_a_card_whose_memory_is_held_is_shown_with_how_much_and_since_when_and_given_to_nobody(bench) -> None:
    worker = await bench.registered("w1")
    await worker.report(facts=facts(1, gpu(A)))
    bench.clock.pass_s(10)
    held_at = bench.clock.wall
    for number in (2, 3):
        await worker.report(facts=facts(number, gpu(A, GpuHealth.MEMORY_HELD, why="7 GiB", unseen_mb=7168)))
        bench.clock.pass_s(10)
    job = await bench.submit(vram_gb=1)
    assert (await worker.poll()).deliveries == []
    [device] = (await shown(bench)).gpus or []
    assert device.held is not None
    assert (device.held.gb, int(device.held.since.timestamp() * 1000)) == (7.0, held_at)
    await worker.report(facts=facts(4, gpu(A)))
    [device] = (await shown(bench)).gpus or []
    assert device.held is None
    assert [one.job for one in (await worker.poll()).deliveries] == [job]
    changed = [
        change["now"] for told_ in await told(bench, EventType.WORKER_GPUS_CHANGED) for change in told_["changed"]
    ]
    assert changed == ["memory_held", "ok"]


async def test_a_restarted_worker_has_its_devices_before_it_has_looked(bench) -> None:
    first, second = await bench.registered("w1"), await bench.registered("w2")
    await first.report(facts=facts(5, gpu(A)))
    await second.report(facts=facts(1, gpu(A)))
    again = first.restarted()
    await again.register()
    await again.report(facts=facts(1, **NOT_YET))
    found = await shown(bench, "w1")
    assert [(device.uuid, device.health, device.vram_gb and device.vram_gb.free) for device in found.gpus or ()] == [
        (A, GpuHealth.UNKNOWN, None)
    ]
    assert await owners(bench) == {A: ["w1"]}
    await again.report(facts=facts(2, gpu(A)))
    assert await owners(bench) == {A: ["w1"]}
    assert [device.health for device in (await shown(bench, "w1")).gpus or ()] == [GpuHealth.OK]


async def test_facts_of_an_epoch_that_is_over_change_nothing(bench) -> None:
    worker = await bench.registered("w1")
    await worker.report(facts=facts(9, gpu(A)))
    again = worker.restarted()
    await again.register()
    await again.report(facts=facts(1, gpu(B)))
    assert [device.uuid for device in (await shown(bench)).gpus or ()] == [B]
