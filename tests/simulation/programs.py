"""What jobs do: a plan in their command, and the processes that carry it out. They know the truth."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

from simulation.loop import Machine, Process, VirtualLoop
from worker.process.records import STDERR, STDOUT

PREFIX = "simulated "


@dataclass(frozen=True)
class Plan:
    """`run_s`: how long the main process lives. `term_s`: how long after TERM it ends; None: it ignores TERM.

    `lines`: the first is written at once, the others at any time. `term_exit`: its exit code then; None: the signal's. `stray_s`: how long a child outlives it.
    """

    run_s: float
    lines: int = 0
    exit: int = 0
    term_s: float | None = 0.0
    term_exit: int | None = None
    stray_s: float = 0.0
    no_program: bool = False
    refused_on: str | None = None

    @property
    def command(self) -> str:
        return PREFIX + json.dumps({key: value for key, value in asdict(self).items() if value is not None})

    @classmethod
    def of(cls, argv: list[str]) -> Plan:
        text = argv[-1]
        assert text.startswith(PREFIX), "only simulated programs run here"
        return cls(**{"term_s": None, **json.loads(text.removeprefix(PREFIX))})


@dataclass(frozen=True)
class Status:
    """How a process ended, as its parent reaps it."""

    exit_code: int | None
    signal: str | None


class Tree:
    """The processes of one assignment: the main one, and what outlives it. Reports to whoever holds its pipes.

    `wrote` and `over` are the truth, whether anybody reads it or not.
    """

    def __init__(self, loop: VirtualLoop, machine: Machine, name: str, plan: Plan, chance: random.Random) -> None:
        self._main = Process(loop, f"job {name}", machine)
        self._stray: Process | None = None
        self._loop, self._machine, self._name, self._plan, self._chance = loop, machine, name, plan, chance
        self.status: Status | None = None
        self.termed = False
        self.ended_at: float | None = None
        self.pipe: list[tuple[int, bytes]] = []
        self.wrote = bytearray()
        self.news: Callable[[], None] = lambda: None
        self.over: Callable[[], None] = lambda: None

    @property
    def gone(self) -> bool:
        return self.status is not None and (self._stray is None or not self._stray.alive)

    def start(self) -> None:
        self._main.spawn(self._live())

    def term(self) -> None:
        self.termed = self.termed or self.status is None
        if self.status is None and self._plan.term_s is not None:
            code = self._plan.term_exit
            status = Status(code, None) if code is not None else Status(None, "SIGTERM")
            self._main.call_at(self._loop.time() + self._plan.term_s, self._main_ended, status)
        if self._stray is not None and self._plan.term_s is not None:
            self._end_stray()

    def kill(self) -> None:
        if self.status is None:
            self._main_ended(Status(None, "SIGKILL"), with_stray=False)
        self._end_stray()

    def processes(self) -> list[Process]:
        return [self._main, *([self._stray] if self._stray is not None else [])]

    async def _live(self) -> None:
        plan = self._plan
        times = [0.0, *sorted(self._chance.random() * plan.run_s for _ in range(plan.lines - 1))][: plan.lines]
        began = self._loop.time()
        for number, at in enumerate(times):
            await asyncio.sleep(max(0.0, began + at - self._loop.time()))
            self._write(STDERR if number % 5 == 4 else STDOUT, f"{self._name} line {number} of {plan.lines}\n".encode())
        await asyncio.sleep(max(0.0, began + plan.run_s - self._loop.time()))
        self._main_ended(Status(plan.exit, None))

    def _write(self, stream: int, data: bytes) -> None:
        self.wrote += data
        self.pipe.append((stream, data))
        self.news()

    def _main_ended(self, status: Status, *, with_stray: bool = True) -> None:
        if self.status is not None:
            return
        self.status = status
        self.ended_at = self._loop.time()
        self._main.kill()
        if with_stray and self._plan.stray_s:
            self._stray = Process(self._loop, f"stray of {self._name}", self._machine)
            self._stray.call_at(self._loop.time() + self._plan.stray_s, self._end_stray)
        self.news()
        self._tell_if_gone()

    def _end_stray(self) -> None:
        if self._stray is not None and self._stray.alive:
            self._stray.kill()
            self.news()
        self._tell_if_gone()

    def _tell_if_gone(self) -> None:
        if self.gone:
            tell, self.over = self.over, lambda: None
            tell()
