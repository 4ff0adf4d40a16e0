"""Apple's chips, as far as that can be tried without one: by what the system's programs say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker.wire.machines import Gpu, GpuHealth
from worker.probe.apple import Asking, ask, open_apple
from worker.probe.devices import Devices
from worker.probe.makers import open_maker
from worker.probe.snapshot import nothing

IOREG = '+-o J314sAP  <class IOPlatformExpertDevice>\n    {\n      "IOPlatformUUID" = "0A1B2C3D-0000-4000-8000-0123456789AB"\n'


def saying(chip: str, ioreg: str) -> Asking:
    said = {"sysctl": chip, "ioreg": ioreg}

    def answer(command: Sequence[str]) -> str:
        return said[Path(command[0]).name]

    return answer


def test_a_mac_has_one_device_without_memory_of_its_own() -> None:
    found = open_maker(
        Path("/nowhere"),
        nvml=lambda: nothing("absent", "no NVIDIA driver"),
        apple=lambda: open_apple("darwin", saying("Apple M3 Max\n", IOREG)),
    )
    assert not isinstance(found, dict)

    assert Devices().found(found.snapshot(), (), 0).gpus == [
        Gpu(
            uuid="GPU-0a1b2c3d-0000-4000-8000-0123456789ab",
            index=0,
            model="Apple M3 Max",
            health=GpuHealth.OK,
            unified=True,
        )
    ]


def test_one_that_does_not_say_who_it_is_is_given_to_nobody() -> None:
    found = open_apple("darwin", saying("Apple M1\n", ""))
    assert found is not None

    [gpu] = Devices().found(found.snapshot(), (), 0).gpus

    assert (gpu.uuid, gpu.health, gpu.why) == (None, GpuHealth.UNHEALTHY, "uuid: ioreg does not say IOPlatformUUID")


def test_other_systems_and_chips_have_none() -> None:
    assert open_apple("linux", saying("Apple M3", IOREG)) is None
    assert open_apple("darwin", saying("Intel(R) Core(TM) i9", IOREG)) is None
    assert open_apple("darwin", saying("", "")) is None


def test_a_program_that_is_not_there_says_nothing() -> None:
    assert ask(["/nowhere/sysctl"]) == ""
