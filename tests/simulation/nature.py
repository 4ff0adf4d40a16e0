"""Time and chance of this whole interpreter, taken over: every clock is the simulated machine's, every number seeded.

The product's own code is not touched. For a program that simulates and does nothing else: it is never undone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import shutil
import time
import uuid
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread

from simulation.loop import HERE, Machine, VirtualLoop

EPOCH_S = 1_800_000_000
_NOWHERE = Machine("nowhere")
_Usage = namedtuple("_Usage", "total used free")  # noqa: PYI024 - as shutil's own


def take_over(loop: VirtualLoop, seed: int) -> None:
    """Once per interpreter, before anything of the simulation runs."""
    _take_over_time(loop)
    _take_over_chance(random.Random(f"{seed}/nature"))
    anyio.to_thread.run_sync = _at_once  # type: ignore[assignment]
    os.fsync = _sync  # type: ignore[assignment]
    shutil.disk_usage = lambda path: _Usage(1 << 40, 1 << 39, 0 if here().full else 1 << 39)  # type: ignore[assignment]
    serial = itertools.count(1)
    asyncio.Event.__hash__ = lambda self: self.__dict__.setdefault("_serial", next(serial))  # type: ignore[method-assign]


_synced: dict[int, int] = {}


def _sync(file: int) -> None:
    """What of a file survives a power loss, by its inode."""
    found = os.fstat(file)
    _synced[found.st_ino] = found.st_size


def lose_power(directory: Path, chance: random.Random) -> None:
    """Of each file below, some of what was not synced is gone."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found = path.stat()
            safe = min(_synced.get(found.st_ino, 0), found.st_size)
            os.truncate(path, safe + int((found.st_size - safe) * chance.random()))


def here() -> Machine:
    process = HERE.get(None)
    return process.machine if process is not None else _NOWHERE


def _take_over_time(loop: VirtualLoop) -> None:
    def wall_s() -> float:
        return EPOCH_S + loop._now + here().wall_s

    def clock(which: int) -> float:
        return loop._now - here().booted_at if which != time.CLOCK_REALTIME else wall_s()

    def no_sleep(seconds: float) -> None:
        raise AssertionError(f"blocked the loop for {seconds} s")

    time.time = wall_s
    time.time_ns = lambda: int(wall_s() * 1e6) * 1000
    time.monotonic = time.perf_counter = lambda: loop._now
    time.clock_gettime = clock
    time.sleep = no_sleep


def _take_over_chance(chance: random.Random) -> None:
    seed_it = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed_it(self, chance.getrandbits(64) if a is None else a, version)

    random.Random.seed = seed  # type: ignore[method-assign,assignment]
    random.seed(chance.getrandbits(64))
    os.urandom = chance.randbytes
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128), version=4)
    secrets.token_urlsafe = lambda n=32: chance.randbytes(n).hex()[: n * 4 // 3]


async def _at_once(call: Callable[..., Any], *args: object, **_: object) -> Any:
    """anyio.to_thread.run_sync: other tasks have a turn, and then it happens in one piece."""
    await asyncio.sleep(0)
    return call(*args)
