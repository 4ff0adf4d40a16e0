"""The model of shims is held to what real shims do: one set of checks, on both."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simulation.contract import CHECKS
from simulation.programs import Plan
from support.requirements import ROOT
from support.waiting import eventually
from worker.handle import Shim, ShimSpec
from worker.process import records
from worker.process.leftovers import kill_leftovers
from worker.shims import Shims


class RealGround:
    """Real shims on this machine; a plan becomes a shell script."""

    def __init__(self, state: Path) -> None:
        self._shims = Shims(state)
        self._shims.start()
        self._jobs = itertools.count(1)
        self._rung: list[str] = []

    def spec(self, plan: Plan, **fields: object) -> ShimSpec:
        argv = ["/no/such/program"] if plan.no_program else ["bash", "-c", script(plan)]
        values = {"job": next(self._jobs), "attempt": 1, "token": "t", "env": {"PATH": "/usr/bin:/bin"}} | {
            "grace_s": 5.0,
            "linger_s": 2.0,
            **fields,
        }
        return ShimSpec(argv=argv, **values)  # type: ignore[arg-type]

    async def begin(self, plan: Plan, **fields: object) -> Shim:
        return await self._shims.launch(self.spec(plan, **fields))

    def begin_again(self, spec: ShimSpec) -> Shim:
        return self._shims.begin(spec)

    def kill(self, shim: Shim) -> None:
        os.kill(_pid(shim), signal.SIGKILL)

    def freeze(self, shim: Shim) -> None:
        os.kill(_pid(shim), signal.SIGSTOP)

    def thaw(self, shim: Shim) -> None:
        os.kill(_pid(shim), signal.SIGCONT)

    def found(self) -> list[Shim]:
        return self._shims.found()

    def rung(self) -> list[str]:
        self._rung += sorted(self._shims._bell._names)
        return self._rung

    async def close(self) -> None:
        for shim in self._shims.found():
            shim.close()
            shim.stop("teardown", 0)
            await eventually(lambda shim=shim: not shim.alive())
            await eventually(lambda shim=shim: kill_leftovers(shim.id, None))
        await self._shims.aclose()


def script(plan: Plan) -> str:
    """A shell script that does what the plan says."""
    lines = [f"echo line {number}" for number in range(plan.lines)]
    trap = (
        "trap '' TERM"
        if plan.term_s is None
        else f"trap 'exit {plan.term_exit}' TERM"
        if plan.term_exit is not None
        else ""
    )
    stray = f"sleep {plan.run_s + plan.stray_s} &" if plan.stray_s else ""
    return "\n".join([trap, stray, *lines, f"sleep {plan.run_s} & wait $!", f"exit {plan.exit}"])


def _pid(shim: Shim) -> int:
    record = records.read_start(str(shim.directory))
    assert record is not None
    return record["shim"]["pid"]


@pytest.fixture
async def ground(state_dir: Path) -> AsyncIterator[RealGround]:
    ground = RealGround(state_dir)
    yield ground
    await ground.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_of_real_shims(check, ground) -> None:
    await check(ground)


@pytest.fixture(scope="module")
def model() -> dict[str, str]:
    """What all checks say of the model. It needs an interpreter of its own: the clocks are replaced there."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([*_planted(), str(ROOT / "tests")])}
    command = [sys.executable, "-m", "simulation.contract"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=110, check=False)
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _, word = line.partition(" ")
        if name in CHECKS:
            said[name] = word
    assert set(said) == set(CHECKS), done.stdout + done.stderr
    return {name: word if word == "holds" else done.stdout for name, word in said.items()}


def _planted() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.mark.parametrize("name", CHECKS)
def test_of_the_model(name, model) -> None:
    assert model[name] == "holds"
