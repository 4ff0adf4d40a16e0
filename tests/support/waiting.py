"""Waiting for something to become true: polled, with a deadline, never a plain sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(check: Callable[[], T | Awaitable[T]], *, within_s: float = 15, every_s: float = 0.02) -> T:
    """The first truthy answer of `check`. An AssertionError or a falsy answer means not yet."""
    deadline = time.monotonic() + within_s
    while True:
        value, said = None, ""
        try:
            answer = check()
            value = await answer if inspect.isawaitable(answer) else answer
        except AssertionError as error:
            said = str(error)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within_s} s: {said or f'last answer {value!r}'}")
        await asyncio.sleep(every_s)


def eventually_sync(check: Callable[[], T], *, within_s: float = 15, every_s: float = 0.02) -> T:
    """`eventually` for tests without a loop."""
    deadline = time.monotonic() + within_s
    while True:
        value, said = None, ""
        try:
            value = check()
        except AssertionError as error:
            said = str(error)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {within_s} s: {said or f'last answer {value!r}'}")
        time.sleep(every_s)
