"""A real driver: what it says, whose memory is whose, and that memory is free again when its process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.wire.machines import Gpu, GpuHealth, GpuState
from support.fleet import Fleet, submit
from support.waiting import eventually
from worker.probe.devices import Devices, Found
from worker.probe.gpus import GpuProbe

HOLDER = Path(__file__).with_name("holder.py")
HELD_MB = 1024
ROOM_MB = 256  # for a context, and for what others do meanwhile


@contextmanager
def holding(**environ: str) -> Iterator[tuple[int, list[str]]]:
    """A process that holds memory of a device: its pid, and the devices as CUDA shows them to it."""
    process = subprocess.Popen(
        [sys.executable, str(HOLDER), str(HELD_MB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | environ,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        seen = []
        for line in process.stdout:
            if line.strip() == "holding":
                break
            seen.append(line.strip())
        assert process.poll() is None, "it could not take memory of a device"
        yield process.pid, seen
    finally:
        process.stdin.close()
        process.wait(30)


@pytest.fixture
async def probe() -> AsyncIterator[GpuProbe]:
    probe = GpuProbe(os.environ)
    yield probe
    await probe.aclose()


async def found(probe: GpuProbe) -> Found:
    return Devices().found(await probe.look(), (), 0)


async def device(probe: GpuProbe, uuid: str) -> Gpu:
    return next(gpu for gpu in (await found(probe)).gpus if gpu.uuid == uuid)


async def test_the_driver_is_read(probe: GpuProbe) -> None:
    told = await found(probe)
    assert told.state is GpuState.OK, told.why
    assert told.driver and told.cuda and told.gpus
    for gpu in told.gpus:
        assert gpu.uuid and gpu.model
        assert gpu.health in (GpuHealth.OK, GpuHealth.PARTITIONED)
        assert gpu.unified or gpu.health is GpuHealth.PARTITIONED or 0 < (gpu.free_mb or 0) <= (gpu.total_mb or 0)


async def test_cuda_shows_the_same_devices_in_the_same_order(probe: GpuProbe) -> None:
    cards = [gpu.uuid for gpu in (await found(probe)).gpus if gpu.parent is None]
    with holding() as (_, seen):
        assert seen == [uuid for uuid in cards if uuid in seen]


async def test_memory_is_seen_to_be_taken_and_to_be_free_again(probe: GpuProbe) -> None:
    [first, *_] = (await found(probe)).gpus
    assert first.uuid and first.free_mb is not None
    with holding(CUDA_VISIBLE_DEVICES=first.uuid) as (pid, seen):
        assert seen == [first.uuid]
        now = await device(probe, first.uuid)
        assert first.free_mb - (now.free_mb or 0) >= HELD_MB - ROOM_MB
        if now.processes is not None and any(process.seen for process in now.processes):
            [own] = [process for process in now.processes if process.pid == pid]
            assert own.mb is None or own.mb >= HELD_MB

    async def free_again() -> bool:
        return ((await device(probe, first.uuid or "")).free_mb or 0) >= (first.free_mb or 0) - ROOM_MB

    await eventually(free_again, within_s=30)


async def test_a_jobs_use_is_its_own_and_anothers_is_foreign(short_dir: Path) -> None:
    fleet = Fleet(short_dir, settings={"heartbeat_s": "0.5", "probe_s": "0.5", "lease_s": "60"})
    try:
        await fleet.start_broker()
        await fleet.start_worker("w1")
        async with fleet.client() as client:
            command = f"export CUDA_VISIBLE_DEVICES=0; sleep 900 | {sys.executable} {HOLDER} {HELD_MB}"
            job = await submit(client, command)
            with holding(CUDA_VISIBLE_DEVICES="0") as (pid, _):

                async def both() -> bool:
                    [worker] = (await client.worker_list()).workers
                    devices = worker.gpus or []
                    ours = [name for device in devices for name in device.jobs or ()]
                    foreign = [process.pid for device in devices for process in device.foreign or ()]
                    return ours == [f"{job}.1"] and pid in foreign

                await eventually(both, within_s=60)
    finally:
        fleet.close()
