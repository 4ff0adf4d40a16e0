"""What is told, and what is not: changes that count at once, numbers with the next report, and nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from broker.wire.machines import Battery, Cpus, GpuHealth, GpuState, Ram
from support.gpu_scenarios import H100, RTX
from support.hardware import Hardware
from support.waiting import eventually
from worker.probe import watch
from worker.probe.gpus import GpuProbe, Patience
from worker.probe.resources import Resources
from worker.probe.watch import Watch

STILL = Resources(Cpus(logical=8, usable=8, load=0.1), Ram(total=64, available=60), 500.0, None)


class Bench:
    """A watch over hardware that a test changes; `told` counts what could not wait."""

    def __init__(self, hardware: Hardware, every_s: float = 0.01, answer_s: float = 20) -> None:
        self.seen = STILL
        self.looks = 0
        self.told = 0
        self.before: Callable[[], object] = lambda: None
        probe = GpuProbe({"PATH": "/usr/bin", **hardware.environ}, Patience(answer_s, 5, 0, 0, 0))
        self.watch = Watch(probe, Path("/"), every_s, look=self._look)
        self.watch.on_change = self._tell

    def _look(self, state: Path) -> Resources:
        self.looks += 1
        self.before()
        return self.seen

    def _tell(self) -> None:
        self.told += 1

    async def some_looks(self, count: int = 20) -> None:
        target = self.looks + count
        await eventually(lambda: self.looks >= target, within_s=15)


async def test_a_machine_on_which_nothing_happens_is_told_once(hardware: Hardware) -> None:
    hardware.is_now(RTX)
    bench = Bench(hardware)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.watch.run)
        await eventually(lambda: bench.watch.facts.gpu_state is GpuState.OK, within_s=30)
        number, told = bench.watch.facts.number, bench.told
        await bench.some_looks()
        assert (bench.watch.facts.number, bench.told) == (number, told)
        tasks.cancel_scope.cancel()
    assert told == 1


async def test_small_movements_are_not_told_and_larger_ones_wait_for_the_next_report(hardware: Hardware) -> None:
    hardware.is_now(RTX)
    bench = Bench(hardware)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.watch.run)
        await eventually(lambda: bench.watch.facts.gpu_state is GpuState.OK, within_s=30)
        number = bench.watch.facts.number
        bench.seen = Resources(Cpus(logical=8, usable=8, load=1.0), Ram(total=64, available=58), 499.5, None)
        hardware.is_now(f"{RTX}\nused 0 100\nutilisation 0 20")
        await bench.some_looks()
        assert bench.watch.facts.number == number
        bench.seen = Resources(Cpus(logical=8, usable=8, load=7.5), Ram(total=64, available=30), 300.0, None)
        hardware.is_now(f"{RTX}\nused 0 900\nutilisation 0 90")
        await eventually(lambda: bench.watch.facts.cpus.load == 7.5 and bench.watch.facts.gpus[0].utilisation == 90)
        tasks.cancel_scope.cancel()
    assert bench.told == 1  # the first look at the GPUs, and nothing since
    assert bench.watch.facts.number <= number + 2


async def test_a_lost_card_and_a_pulled_plug_are_told_at_once_and_once(hardware: Hardware) -> None:
    hardware.is_now(f"{RTX}\n{H100}")
    bench = Bench(hardware)
    bench.seen = Resources(STILL.cpus, STILL.ram_gb, 500.0, Battery(percent=90, on_battery=False))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.watch.run)
        await eventually(lambda: bench.watch.facts.battery and bench.watch.facts.gpu_state is GpuState.OK, within_s=30)
        before = bench.told
        hardware.is_now(f"{RTX}\n{H100}\nfail DeviceGetHandleByIndex 15 1")
        await eventually(lambda: bench.watch.facts.gpus[1].health is GpuHealth.LOST)
        await bench.some_looks()
        assert bench.told == before + 1
        bench.seen = Resources(STILL.cpus, STILL.ram_gb, 500.0, Battery(percent=90, on_battery=True))
        await eventually(lambda: bench.told == before + 2)
        await bench.some_looks()
        assert bench.told == before + 2
        tasks.cancel_scope.cancel()


async def test_a_driver_that_hangs_holds_up_nothing_else(hardware: Hardware) -> None:
    hardware.is_now(f"{RTX}\nhang Init 600")
    bench = Bench(hardware, answer_s=600)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.watch.run)
        await bench.some_looks(3)
        bench.seen = Resources(STILL.cpus, STILL.ram_gb, 100.0, None)
        await eventually(lambda: bench.watch.facts.disk_free_gb == 100.0, within_s=10)
        assert bench.watch.facts.gpu_state is GpuState.UNKNOWN
        tasks.cancel_scope.cancel()


async def test_a_disk_that_hangs_keeps_what_was_known(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_LIMIT_S", 0.05)
    hardware.is_now(RTX)
    bench = Bench(hardware)
    answers = threading.Event()
    bench.before = answers.wait
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.watch.run)
        await eventually(lambda: bench.watch.facts.gpu_state is GpuState.OK, within_s=30)
        await eventually(lambda: bench.looks >= 3)
        assert bench.watch.facts.disk_free_gb == 500.0
        answers.set()
        tasks.cancel_scope.cancel()


async def test_an_answer_that_nobody_understands_does_not_end_the_worker(hardware: Hardware) -> None:
    hardware.is_now(RTX)
    bench = Bench(hardware)
    program = hardware.file.with_name("odd.py")
    program.write_text('import sys\nfor _ in sys.stdin:\n    print(\'{"state": "ok", "why": null}\', flush=True)\n')
    bench.watch._probe._command = (sys.executable, str(program))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.watch.run)
        await eventually(lambda: bench.watch.facts.gpus_why == "the driver's answer was not understood", within_s=30)
        await bench.some_looks(3)
        tasks.cancel_scope.cancel()
