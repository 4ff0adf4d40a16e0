"""AMD's devices, read from trees of files as their driver writes them, by the probe's real child."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from broker.wire.machines import Gpu, GpuHealth, GpuState
from worker.probe.devices import Devices, Found
from worker.probe.gpus import GpuProbe, Patience
from worker.probe.makers import open_maker
from worker.probe.nvml import Nvml
from worker.probe.snapshot import Snapshot, nothing

GIB = 1 << 30
CHILD = Path(sys.modules["worker.probe.gpus"].__file__ or "").with_name("child.py")
NO_NVIDIA = nothing("absent", "no NVIDIA driver")


class Machine:
    """A tree with /sys and /dev."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        (root / "dev/kfd").touch()
        self.write("sys/module/amdgpu/version", "6.7.0\n")

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def card(self, number: int, bus: str, **files: str) -> Path:
        """A card on this place of the bus. `files`: what differs from an idle one of 16 GiB; empty: there is no such file."""
        at = self.root / "sys/devices" / bus
        said = {
            "vendor": "0x1002",
            "device": "0x73bf",
            "product_name": "Radeon PRO W6800",
            "unique_id": f"{number:016x}",
            "mem_info_vram_total": str(16 * GIB),
            "mem_info_vram_used": str(GIB // 2),
            "gpu_busy_percent": "3",
            **files,
        }
        for name, text in said.items():
            if text:
                self.write(f"sys/devices/{bus}/{name}", f"{text}\n")
        for entry in (f"card{number}", f"card{number}-DP-1"):  # the second is a socket, and no card
            link = self.root / "sys/class/drm" / entry / "device"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(at)
        return at


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
async def look(machine: Machine) -> AsyncIterator[Callable[[], Awaitable[Found]]]:
    """What the child finds, as it is told to a broker."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver of its own")
    environ = {"PATH": os.environ["PATH"]}
    probe = GpuProbe(environ, Patience(30, 5, 0, 0, 0), command=(sys.executable, "-I", str(CHILD), str(machine.root)))
    devices = Devices()

    async def found() -> Found:
        return devices.found(await probe.look(), (), 0)

    yield found
    await probe.aclose()


async def test_cards_are_found_in_the_order_of_the_bus_with_their_memory(machine: Machine, look) -> None:
    machine.card(0, "0000:43:00.0", unique_id="a1b2c3d4e5f6", product_name="")
    machine.card(1, "0000:03:00.0", mem_info_vram_used=str(10 * GIB), gpu_busy_percent="97")

    found = await look()

    assert (found.state, found.driver, found.cuda) == (GpuState.OK, "amdgpu 6.7.0", None)
    assert found.gpus == [
        Gpu(
            uuid="GPU-0000000000000001",
            index=0,
            model="Radeon PRO W6800",
            health=GpuHealth.OK,
            total_mb=16 * 1024,
            free_mb=6 * 1024,
            utilisation=97,
        ),
        Gpu(
            uuid="GPU-0000a1b2c3d4e5f6",
            index=1,
            model="AMD 73bf",
            health=GpuHealth.OK,
            total_mb=16 * 1024,
            free_mb=16 * 1024 - 512,
            utilisation=3,
        ),
    ]


async def test_each_look_reads_the_files_anew(machine: Machine, look) -> None:
    at = machine.card(1, "0000:03:00.0")
    first = await look()
    (at / "mem_info_vram_used").write_text(str(8 * GIB))
    second = await look()

    assert [found.gpus[0].free_mb for found in (first, second)] == [16 * 1024 - 512, 8 * 1024]


async def test_cards_of_other_makers_and_sockets_are_no_devices(machine: Machine, look) -> None:
    machine.card(0, "0000:00:02.0", vendor="0x8086")
    machine.card(1, "0000:03:00.0")

    assert [gpu.uuid for gpu in (await look()).gpus] == ["GPU-0000000000000001"]


@pytest.mark.parametrize(
    ("files", "health", "why"),
    [
        (
            {"unique_id": ""},
            GpuHealth.UNHEALTHY,
            "unique_id: it has none, and so nothing by which a job could be given it",
        ),
        (
            {"unique_id": "0000000000000000"},
            GpuHealth.UNHEALTHY,
            "unique_id: it has none, and so nothing by which a job could be given it",
        ),
        ({"mem_info_vram_total": ""}, GpuHealth.UNHEALTHY, "mem_info_vram_total: it can't be read"),
        ({"mem_info_vram_used": "much"}, GpuHealth.UNHEALTHY, "mem_info_vram_used: it says much"),
        ({"mem_info_vram_used": str(17 * GIB)}, GpuHealth.UNHEALTHY, f"it says {-GIB} of {16 * GIB} bytes are free"),
        ({"gpu_busy_percent": ""}, GpuHealth.OK, None),
        ({"gpu_busy_percent": "4000"}, GpuHealth.OK, None),
    ],
)
async def test_what_a_card_does_not_say_is_not_known(
    machine: Machine, look, files, health: GpuHealth, why: str
) -> None:
    machine.card(1, "0000:03:00.0", **files)
    machine.card(2, "0000:43:00.0")

    [odd, well] = (await look()).gpus

    assert (odd.health, odd.why) == (health, why)
    assert odd.utilisation == (None if "gpu_busy_percent" in files else 3)
    assert well.health is GpuHealth.OK


async def test_a_card_that_is_there_for_drawing_only_is_none(machine: Machine, look) -> None:
    machine.card(1, "0000:03:00.0")
    (machine.root / "dev/kfd").unlink()

    assert (await look()).state is GpuState.ABSENT


async def test_cards_that_go_are_gone(machine: Machine, look) -> None:
    at = machine.card(1, "0000:03:00.0")
    await look()
    (at / "vendor").unlink()

    found = await look()

    assert (found.state, found.why) == (GpuState.ABSENT, "AMD's driver is loaded, and has no device")


@pytest.mark.parametrize(
    "nvidia", [Nvml(library=None), nothing("failed", "the NVIDIA driver does not start")], ids=["works", "fails"]
)
def test_where_there_is_an_nvidia_driver_nobody_else_is_asked(machine: Machine, nvidia: Nvml | Snapshot) -> None:
    machine.card(1, "0000:03:00.0")

    assert open_maker(machine.root, nvml=lambda: nvidia) is nvidia
    assert open_maker(machine.root, nvml=lambda: NO_NVIDIA) is not NO_NVIDIA
