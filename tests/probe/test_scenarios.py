"""Machines with GPUs of every kind and in every trouble: a real worker, its real probe and a real broker, and a library
that says what the driver would say."""

from __future__ import annotations

import asyncio
import getpass
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.fleet import Fleet, submit
from support.gpu_scenarios import RTX, SCENARIOS, Expected, Scenario, Step
from support.hardware import Hardware
from support.waiting import eventually

NOBODY = 4_194_303 - 7  # a pid that hardly any system ever gives
MARKS = count(1)
OURS = (
    "echo $$ > ours; (setsid sh -c 'setsid sleep 900 & echo $! > orphan' &); "
    'until [ -s orphan ]; do sleep 0.05; done; mv ours orphan "$PLACE"; exec sleep 900'
)


@dataclass
class Machine:
    """A broker, a worker with this hardware, and on it a job of ours and a process that is nobody's."""

    fleet: Fleet
    hardware: Hardware
    words: dict[str, int | str]

    async def goes_through(self, scenario: Scenario) -> None:
        for step in scenario.steps:
            await self.shows(self.changed(step))

    def changed(self, step: Step) -> Expected:
        """The hardware is now as the step says. What must be shown of it has a mark, so that it can't be of before."""
        shown, text = dict(step.shown), step.hardware
        if shown.get("gpus_why") is None and "driver" not in text:
            mark = f"900.{next(MARKS)}"
            text += f"\ndriver {mark}"
            shown["driver"] = f"{mark} (CUDA 13.0)"
        self.hardware.is_now(text.format(**self.words))
        return shown

    async def shows(self, expected: Expected) -> None:
        """The broker shows this of the worker, soon."""

        async def check() -> bool:
            async with self.fleet.client() as client:
                [worker] = [w for w in (await client.worker_list()).workers if w.name == "w1"]
            found = worker.model_dump(mode="json", exclude_none=True)
            fault = difference(expected, found, self.words)
            assert worker.state == "online"
            assert fault is None, f"{fault}; shown: { ({name: found.get(name) for name in expected}) }"
            return True

        await eventually(check, within_s=40, every_s=0.05)


def difference(expected: Any, found: Any, words: dict[str, int | str], where: str = "") -> str | None:
    """The first part of `found` that is not as expected. None is expected where nothing may be."""
    if isinstance(expected, dict) and isinstance(found, dict):
        parts = ((f"{where}.{name}", value, found.get(name)) for name, value in expected.items())
        faults = (difference(value, other, words, path) for path, value, other in parts)
        return next((fault for fault in faults if fault), None)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        faults = (difference(value, other, words, f"{where}[{n}]") for n, (value, other) in pairs)
        return next((fault for fault in faults if fault), None)
    if isinstance(expected, str) and expected.startswith("{"):
        expected = words[expected.strip("{}")]
    return None if expected == found else f"{where.lstrip('.')} is {found!r} and not {expected!r}"


@pytest.fixture(scope="module")
def machine(libraries: dict[str, Path]) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="jobd-", dir="/tmp") as name:
        directory = Path(name)
        hardware = Hardware(libraries["new"], directory / "hardware")
        hardware.is_now(RTX)
        settings = {"heartbeat_s": "0.2", "lease_s": "60", "poll_s": "2", "probe_s": "0.05"}
        fleet = Fleet(directory, settings=settings, within={"w1": hardware.words})
        stranger = subprocess.Popen(["sleep", "900"])
        try:
            words = asyncio.run(started(fleet, directory))
            words |= {"foreign": stranger.pid, "nobody": NOBODY, "me": getpass.getuser()}
            yield Machine(fleet, hardware, words)
        finally:
            stranger.kill()
            stranger.wait()
            fleet.close()


async def started(fleet: Fleet, directory: Path) -> dict[str, int | str]:
    await fleet.start_broker()
    await fleet.start_worker("w1")
    async with fleet.client() as client:
        job = await submit(client, OURS, env={"PLACE": str(directory)})
    await eventually(lambda: (directory / "orphan").exists() and (directory / "ours").exists(), within_s=40)
    pids = {name: int((directory / name).read_text()) for name in ("ours", "orphan")}
    return {"job": f"{job}.1", **pids}


@pytest.mark.guarantee("G30")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "_"))
@pytest.mark.trial("B48", "B123", "B124")
async def test_what_the_driver_says_is_what_the_broker_shows(machine: Machine, scenario: Scenario) -> None:
    await machine.goes_through(scenario)


def test_there_are_enough_of_them_and_no_two_of_one_name() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(names) == len(set(names)) >= 25
