"""Workers with GPUs at work: what a driver's trouble does not do, and two workers on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.wire.events import EventType
from broker.wire.machines import GpuHealth
from broker.wire.states import JobState
from broker.wire.workers import Worker
from support.fleet import Fleet, ended, submit
from support.gpu_scenarios import H100, RTX, A, B
from support.hardware import Hardware
from support.waiting import eventually

SETTINGS = {"heartbeat_s": "0.2", "lease_s": "20", "poll_s": "2", "probe_s": "0.1", "sweep_s": "0.5"}


@pytest.fixture
def fleet(short_dir: Path, hardware: Hardware) -> Iterator[Fleet]:
    fleet = Fleet(short_dir, settings=dict(SETTINGS), within=dict.fromkeys(("w1", "w2"), hardware.words))
    yield fleet
    fleet.close()


async def worker_of(fleet: Fleet, name: str = "w1") -> Worker:
    async with fleet.client() as client:
        return next(worker for worker in (await client.worker_list()).workers if worker.name == name)


async def health(fleet: Fleet, name: str = "w1") -> list[str]:
    return [device.health.value for device in (await worker_of(fleet, name)).gpus or ()]


async def has(fleet: Fleet, *expected: str, name: str = "w1") -> None:
    async def check() -> bool:
        return await health(fleet, name) == list(expected)

    await eventually(check, within_s=40)


@pytest.mark.guarantee("G30")
@pytest.mark.trial("B123")
async def test_while_the_driver_hangs_the_worker_takes_and_ends_jobs_and_is_never_lost(
    fleet: Fleet, hardware: Hardware
) -> None:
    hardware.is_now(RTX)
    await fleet.start_broker()
    await fleet.start_worker("w1")
    await has(fleet, "ok")
    hardware.is_now(f"{RTX}\nhang DeviceGetMemoryInfo 600")
    async with fleet.client() as client:
        jobs = [await submit(client, "exit 0") for _ in range(5)]
        assert [(await ended(client, job)).state for job in jobs] == [JobState.COMPLETED] * 5
        await has(fleet, "unknown")
        assert (await ended(client, await submit(client, "exit 3"))).exit_code == 3
        hardware.is_now(RTX)
        await has(fleet, "ok")
        assert (await client.job_events(type=EventType.WORKER_LOST)).events == []
        told = [event.data or {} for event in (await client.job_events(type=EventType.WORKER_GPUS_CHANGED)).events]
    assert [change["now"] for data in told for change in data["changed"]] == ["unknown", "ok"]


async def test_two_workers_on_one_machine_do_not_both_have_its_card(fleet: Fleet, hardware: Hardware) -> None:
    fleet.settings["lease_s"] = "8"
    hardware.is_now(RTX)
    await fleet.start_broker()
    await fleet.start_worker("w1")
    await has(fleet, "ok")
    await fleet.start_worker("w2")
    await has(fleet, "ok", name="w2")
    assert [device.ignored for device in (await worker_of(fleet, "w1")).gpus or ()] == [None]
    assert [device.ignored for device in (await worker_of(fleet, "w2")).gpus or ()] == ["w1"]
    fleet.kill_machine("w1")

    async def taken() -> bool:
        return [device.ignored for device in (await worker_of(fleet, "w2")).gpus or ()] == [None]

    await eventually(taken, within_s=60)
    stale = await worker_of(fleet, "w1")
    assert stale.stale
    assert [(device.health, device.ignored) for device in stale.gpus or ()] == [(GpuHealth.UNKNOWN, "w2")]


async def test_a_worker_that_was_killed_finds_its_devices_and_its_jobs_use_of_them_again(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(f"{RTX}\n{H100}")
    await fleet.start_broker()
    await fleet.start_worker("w1")
    async with fleet.client() as client:
        job = await submit(client, f"echo $$ > {short_dir}/pid.new; mv {short_dir}/pid.new {short_dir}/pid; sleep 900")
    await eventually((short_dir / "pid").exists, within_s=30)
    hardware.is_now(f"{RTX}\n{H100}\nprocess 1 {(short_dir / 'pid').read_text().strip()} 4096 compute")

    async def seen() -> bool:
        return [(device.uuid, device.jobs) for device in (await worker_of(fleet)).gpus or ()] == [
            (A, None),
            (B, [f"{job}.1"]),
        ]

    await eventually(seen, within_s=40)
    fleet.kill_worker("w1")
    await fleet.start_worker("w1")
    await eventually(seen, within_s=40)
    async with fleet.client() as client:
        assert (await client.job_events(type=EventType.GPU_OFFER_IGNORED)).events == []


async def test_without_gpus_a_worker_is_a_healthy_one_that_says_why(short_dir: Path) -> None:
    fleet = Fleet(short_dir, settings=dict(SETTINGS))
    try:
        await fleet.start_broker()
        await fleet.start_worker("w1")

        async def says() -> Worker | None:
            worker = await worker_of(fleet)
            return worker if worker.gpus_why not in (None, "not looked at yet") or worker.gpus else None

        worker = await eventually(says, within_s=40)
        if worker.gpus:
            pytest.skip("this machine has GPUs")
        assert worker.gpus_why == "no NVIDIA driver: libnvidia-ml.so.1 is not on this machine"
        assert worker.cpus is not None and worker.cpus.usable > 0
        assert worker.ram_gb is not None and worker.disk_free_gb is not None
        assert "bash" in (worker.tags or ())
        async with fleet.client() as client:
            assert (await ended(client, await submit(client, "exit 0", needs=["bash"]))).state is JobState.COMPLETED
    finally:
        fleet.close()
