"""An event loop on virtual time: when nothing is ready it jumps to the next timer. No socket, no thread, no waiting.

Everything that runs belongs to a simulated process, by the context of its handle. So a process can be killed at any
await: what it would have run next is dropped, no `finally` included. A frozen one runs nothing until it is thawed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

ROUND_S = 1e-6
"""What a round of the loop takes: no computer does anything in no time, and a wait for a last 1e-15 s must end."""
MOST_AT_ONCE = 100_000
"""Handles run without a rest: more means that somebody turns in a circle."""


class Stuck(Exception):
    """Nothing is ready and nothing will ever be, or something turns in a circle."""


class Machine:
    """What shares clocks, and a power switch. `wall_s`: how far its wall clock is off; it may jump. `full`: its disk."""

    def __init__(self, name: str, wall_s: float = 0.0) -> None:
        self.name = name
        self.wall_s = wall_s
        self.full = False
        self.booted_at = 0.0
        self.boots = 1


class Process:
    """One simulated process. Made alive."""

    def __init__(self, loop: VirtualLoop, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.alive, self.frozen = True, False
        self.on_signal: dict[int, Callable[[], None]] = {}
        self._loop = loop
        self._parked: list[asyncio.Handle] = []
        self._context = contextvars.Context()
        self._context.run(HERE.set, self)

    def spawn(self, life: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(life, context=self._context.copy())

    def call_soon(self, call: Callable[..., object], *args: object) -> asyncio.Handle:
        return self._loop.call_soon(call, *args, context=self._context.copy())

    def call_at(self, when: float, call: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        return self._loop.call_at(when, call, *args, context=self._context.copy())

    def kill(self) -> None:
        """As with SIGKILL. Nothing of it runs any more."""
        self.alive, self.frozen = False, False
        self._parked.clear()
        self._loop.bury()

    def freeze(self) -> None:
        """As with SIGSTOP: timers that pass are late, and what others say waits."""
        self.frozen = self.alive

    def thaw(self) -> None:
        self.frozen = False
        self._loop.resume(self._parked)
        self._parked = []

    def signal(self, number: int) -> None:
        if self.alive and number in self.on_signal:
            self.call_soon(self.on_signal[number])

    def park(self, handle: asyncio.Handle) -> None:
        self._parked.append(handle)

    def __repr__(self) -> str:
        return self.name


HERE: ContextVar[Process] = ContextVar("process")


class _Task(asyncio.Task):  # type: ignore[type-arg]
    """Sets of tasks are iterated in an order that depends on hashes: theirs are serial numbers, not addresses."""

    _serial = itertools.count(1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.serial = next(self._serial)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.serial

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """`time()` is virtual, begins at 0, and never passes `until`."""

    def __init__(self, until: float = 1e6) -> None:
        super().__init__()
        self._until = until
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._tasks: list[asyncio.Task[Any]] = []
        self._kept: list[asyncio.Task[Any]] = []
        self.steps = 0
        self._rounds = self._second = 0
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._on_fault)
        self.faults: list[str] = []

    def time(self) -> float:
        return self._now

    def bury(self) -> None:
        """Keep what dead processes were doing: a coroutine that is collected would run its `finally`."""
        self._kept += [task for task in self._tasks if not task.done()]
        self._tasks.clear()

    def resume(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> None:
        HERE.get().on_signal[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return HERE.get().on_signal.pop(sig, None) is not None

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """What real code does on a thread happens here at once: no other code sees the middle of it."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, life: Coroutine[Any, Any, T], context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = _Task(life, loop=loop, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 5000:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def _on_fault(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.faults.append(f"{context.get('message')}: {error!r}")

    # What BaseEventLoop asks of a loop.

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled
        ready: deque[asyncio.Handle] = self._ready
        if not ready:
            self.steps = 0
            while timers and timers[0]._cancelled:
                heapq.heappop(timers)._scheduled = False
                self._timer_cancelled_count -= 1
            if not timers:
                raise Stuck(f"nothing will ever happen after {self._now:.3f} s")
            self._now = max(self._now, timers[0]._when)
            if self._now > self._until:
                raise Stuck(f"the story goes on after {self._until:.0f} s")
        self._now += ROUND_S
        self._count_rounds()
        while timers and timers[0]._when <= self._now:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            self._run(ready.popleft())

    def _count_rounds(self) -> None:
        second = int(self._now)
        self._rounds = self._rounds + 1 if second == self._second else 0
        self._second = second
        if self._rounds > MOST_AT_ONCE:
            raise Stuck(
                f"hurrying on the spot at {self._now:.3f} s: {[task for task in self._tasks if not task.done()][-3:]}"
            )

    def _run(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(HERE)
        if process is not None and not process.alive:
            return
        if process is not None and process.frozen:
            process.park(handle)
            return
        self.steps += 1
        if self.steps > MOST_AT_ONCE:
            raise Stuck(f"turning in a circle at {self._now:.3f} s: {handle!r}")
        handle._run()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run(loop: VirtualLoop, life: Coroutine[Any, Any, T]) -> T:
    events.set_event_loop(loop)
    return loop.run_until_complete(life)
