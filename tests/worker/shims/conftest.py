"""Real shims under a private state directory, and the few words that tests about them share."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import worker
from broker.wire.workers import Final
from support.waiting import eventually
from worker.handle import Shim
from worker.process.leftovers import kill_leftovers
from worker.shims import Shims, ShimSpec, boot_s

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class Room:
    """Shims, and jobs in them. Each `Shims` made here is closed, and every job ended, when the test is over."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.shims: Shims
        self._made: list[Shims] = []
        self._numbers = itertools.count(1)

    def open(self, **options: object) -> Shims:
        self.shims = Shims(self.state, **options)  # type: ignore[arg-type]
        self._made.append(self.shims)
        self.shims.start()
        return self.shims

    async def prepare(self, *argv: str, **fields: object) -> Shim:
        values = {"env": PATH, "cwd": "/", "grace_s": 5.0, "linger_s": 2.0, **fields}
        spec = ShimSpec(job=next(self._numbers), attempt=1, token="t", argv=list(argv), **values)  # type: ignore[arg-type]
        return await self.shims.launch(spec)

    async def run(self, *argv: str, **fields: object) -> Shim:
        """Prepared, and told to go."""
        shim = await self.prepare(*argv, **fields)
        assert shim.go(boot_s() + 30)
        return shim

    async def bash(self, script: str, **fields: object) -> Shim:
        return await self.run("bash", "-c", script, **fields)

    async def final_of(self, *argv: str, **fields: object) -> Final:
        return await self.ended(await self.run(*argv, **fields))

    async def ended(self, shim: Shim, within_s: float = 20) -> Final:
        return await eventually(shim.final, within_s=within_s, every_s=0.005)

    async def printed(self, shim: Shim, text: bytes) -> bytes:
        """Its output, once it holds `text`."""

        def output() -> bytes | None:
            so_far = shim.out.read_bytes() if shim.out.exists() else b""
            return so_far if text in so_far else None

        return await eventually(output, every_s=0.005)

    async def close(self) -> None:
        for shims in self._made:
            for shim in shims.found():
                shim.close()
                shim.stop("teardown", 0)
                await eventually(lambda shim=shim: not shim.alive())
                await eventually(lambda shim=shim: kill_leftovers(shim.id, None))
            await shims.aclose()


@pytest.fixture
async def closed_room(state_dir: Path) -> AsyncIterator[Room]:
    """Nothing is started: the test opens it its own way."""
    room = Room(state_dir)
    yield room
    await room.close()


@pytest.fixture
async def room(closed_room: Room) -> Room:
    closed_room.open()
    return closed_room


@pytest.fixture
def broken_code(short_dir: Path) -> Callable[..., Path]:
    """A copy of the worker's code with bugs planted: the check that is to find such a bug must fail on it."""

    def plant(*bugs: tuple[str, str, str]) -> Path:
        package = short_dir / "planted" / "worker"
        shutil.copytree(Path(worker.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        for module, right, wrong in bugs:
            text = (package / module).read_text()
            assert text.count(right) == 1, f"{module} has changed: plant the bug anew"
            (package / module).write_text(text.replace(right, wrong))
        return package

    return plant
