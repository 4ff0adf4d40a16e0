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
    os.fsync = lambda fd: None  # type: ignore[assignment]  # what a power loss takes is the disk model's matter
    shutil.disk_usage = lambda path: _Usage(1 << 40, 1 << 39, 1 << 39)  # type: ignore[assignment]
    serial = itertools.count(1)
    asyncio.Event.__hash__ = lambda self: self.__dict__.setdefault("_serial", next(serial))  # type: ignore[method-assign]


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
