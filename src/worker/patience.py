"""Calls that may never come back: a `stat` on a dead network file system blocks its thread for good.

They run on daemon threads of their own, so that neither the event loop, nor another call, nor the end of the
process ever waits for them. (A pool's threads are joined at exit.)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_STUCK = 64
_stuck = threading.Semaphore(MAX_STUCK)


class OutOfPatience(Exception):
    """The call has not returned within its limit. It may still do so; nobody listens."""


async def within(limit_s: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises. OutOfPatience after `limit_s`, or when too many calls hang already."""
    if not _stuck.acquire(blocking=False):
        raise OutOfPatience(f"{MAX_STUCK} earlier calls have not come back")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # None only where T is None

    def run() -> None:
        value: T | None = None
        failure: Exception | None = None
        try:
            value = call()
        except Exception as error:  # handed to the caller, whatever it is
            failure = error
        finally:
            _stuck.release()
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name="jobd-patience", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, limit_s)
    except TimeoutError:
        raise OutOfPatience(f"no answer within {limit_s:g} s") from None
