"""The worker's last look before a process is made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from broker.wire.jobs import JobSpec
from broker.wire.machines import Given, Gpu, GpuHealth, GpuShare
from broker.wire.workers import Outcome
from worker.admission import Ground, Refusal, admit, look_at_given
from worker.patience import OutOfPatience, within


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(host="lovelace", login={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, state=tmp_path)


async def refusal_of(spec: JobSpec, ground: Ground) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await admit(spec, ground)
    return caught.value


@pytest.mark.trial("B66")
async def test_a_missing_cwd_is_refused_with_path_and_host(ground: Ground) -> None:
    refusal = await refusal_of(JobSpec(command="true", cwd="/no/such/place"), ground)
    assert refusal.code == "cwd_missing"
    assert "/no/such/place" in str(refusal)
    assert "lovelace" in str(refusal)
    final = refusal.final()
    assert final.outcome is Outcome.REFUSED
    assert final.reason_code == "cwd_missing"


async def test_a_cwd_that_is_a_file_is_refused(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (await refusal_of(JobSpec(command="true", cwd=str(tmp_path / "file")), ground)).code == "cwd_not_directory"


async def test_a_cwd_below_a_file_is_missing(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (await refusal_of(JobSpec(command="true", cwd=str(tmp_path / "file" / "x")), ground)).code == "cwd_missing"


async def test_a_cwd_that_may_not_be_reached_is_refused(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    spec = JobSpec(command="true", cwd=str(tmp_path / "closed" / "inside"))
    with unprivileged():
        refusal = await refusal_of(spec, replace(ground, state=Path("/")))
    assert refusal.code == "cwd_forbidden"


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may enter every directory; another user may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_missing_venv_and_conda_environment_are_refused_by_name(ground: Ground) -> None:
    venv = await refusal_of(JobSpec(command="true", venv="~/absent"), ground)
    assert venv.code == "venv_missing"
    assert ground.login["HOME"] in str(venv)
    assert (await refusal_of(JobSpec(command="true", conda="absent"), ground)).code == "conda_missing"


async def test_what_is_there_is_admitted_with_its_places_on_this_machine(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "project" / ".venv" / "bin").mkdir(parents=True)
    admitted = await admit(JobSpec(argv=["python"], cwd="~/project", venv=".venv"), ground)
    assert admitted.argv == ["python"]
    assert admitted.cwd == tmp_path / "project"
    assert admitted.tools == tmp_path / "project" / ".venv"


async def test_without_a_cwd_none_is_looked_at(ground: Ground) -> None:
    assert (await admit(JobSpec(command="true"), ground)).cwd is None


async def test_a_file_system_that_does_not_answer_refuses_the_job_and_blocks_nothing(
    ground: Ground, tmp_path: Path
) -> None:
    fifo = tmp_path / ".conda"
    fifo.mkdir()
    os.mkfifo(fifo / "environments.txt")  # opening it blocks for ever, as a dead network file system does
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    before = time.monotonic()
    with pytest.raises(Refusal) as caught:
        await admit(JobSpec(command="true", conda="any"), ground, limit_s=0.3)
    ticking.cancel()
    assert caught.value.code == "file_system_unresponsive"
    assert time.monotonic() - before < 5
    assert ticks > 3
    os.close(os.open(fifo / "environments.txt", os.O_RDWR | os.O_NONBLOCK))  # lets the stuck thread go


async def test_calls_that_hang_are_bounded_in_number_and_do_not_hold_the_exit() -> None:
    let_go = threading.Event()
    try:
        for _ in range(3):
            with pytest.raises(OutOfPatience):
                await within(0.01, let_go.wait)
        stuck = [thread for thread in threading.enumerate() if thread.name == "jobd-patience"]
        assert stuck
        assert all(thread.daemon for thread in stuck)
    finally:
        let_go.set()
    assert await within(5, lambda: 7) == 7


async def test_what_a_patient_call_raises_reaches_its_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await within(5, fail)


@dataclass
class Hardware:
    """What is there right now."""

    gpus: list[Gpu]
    ram_gb: float | None = 16.0

    async def devices_now(self) -> list[Gpu]:
        return self.gpus

    def ram_now_gb(self) -> float | None:
        return self.ram_gb


def card(free_mb: int | None = 20_000, health: GpuHealth = GpuHealth.OK) -> Gpu:
    return Gpu(uuid="GPU-a", index=3, health=health, total_mb=24_576, driver_mb=400, free_mb=free_mb)


SHARED, ALONE = Given(gpus=[GpuShare(uuid="GPU-a", mb=10_240)]), Given(gpus=[GpuShare(uuid="GPU-a")])


@pytest.mark.parametrize(
    ("given", "hardware", "code"),
    [
        (SHARED, Hardware([card(10_240)]), None),
        (SHARED, Hardware([card(10_000)]), "gpu_busy"),
        (SHARED, Hardware([card(None)]), "gpu_busy"),
        (SHARED, Hardware([]), "gpu_lost"),
        (SHARED, None, "gpu_lost"),
        (SHARED, Hardware([card(health=GpuHealth.MEMORY_HELD)]), "gpu_lost"),
        (ALONE, Hardware([card(24_000)]), None),
        (ALONE, Hardware([card(20_000)]), "gpu_busy"),
        (Given(ram_gb=16), Hardware([]), None),
        (Given(ram_gb=17), Hardware([]), "ram_short"),
        (Given(ram_gb=17), Hardware([], ram_gb=None), None),
        (Given(resources={"license": 1}), None, None),
    ],
)
async def test_devices_and_memory_are_looked_at_again_before_anything_runs(
    given: Given, hardware: Hardware | None, code: str | None
) -> None:
    if code is None:
        await look_at_given(given, hardware, "lovelace")
        return
    with pytest.raises(Refusal, match="lovelace") as refused:
        await look_at_given(given, hardware, "lovelace")
    assert refused.value.code == code
