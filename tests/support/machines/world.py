"""A real broker inside this process: its services over its store, on a clock that stands still until it is moved.

Every call is whole: it returns when the broker has nothing left to do but to wait.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from broker.app import DATABASE_NAME, open_broker
from broker.logs.files import Part
from broker.service import sweeps
from broker.service.context import Broker, Caller
from broker.store.contract import Store, Tx
from broker.wire.settings import BrokerSettings
from broker.wire.states import Scope
from support.folding import differences_in
from support.scripted_worker import SteppedClock

T = TypeVar("T")
Row = dict[str, Any]

OPERATOR = Caller(actor="ann", scopes=frozenset({Scope.OPERATOR}))
MEMORY = Path("/dev/shm")  # a test that crashes nothing waits for no disk

TURNS = 12  # of the loop: more than any chain of wakes in the broker needs


@dataclass(frozen=True)
class Tables:
    """What is committed. `kept`: worker → the job that it is kept for. `events`: those since the tables before."""

    jobs: dict[int, Row]
    assignments: dict[tuple[int, int], Row]
    workers: dict[str, Row]
    parents: dict[int, list[int]]
    refusals: set[tuple[str, str, int]]
    counts: dict[str, int]
    kept: dict[str | None, int]
    events: list[Row]
    last_event: int

    def live(self, job: int) -> Row | None:
        """The delivery of this job that is not over."""
        found = [row for row in self.of(job) if row["state"] in ("pending", "acked", "started")]
        assert len(found) <= 1, f"two live deliveries of job {job}: {found}"
        return found[0] if found else None

    def of(self, job: int) -> list[Row]:
        return [row for (number, _), row in self.assignments.items() if number == job]

    def newest(self, job: int) -> Row | None:
        return self.assignments.get((job, self.jobs[job]["attempt"]))

    def used(self, worker: str) -> float:
        return sum(row["cpus"] for row in self.assignments.values() if row["worker"] == worker and row["reserved"])


class Counted:
    """The store, which tells when nobody waits for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def run(self, fn: Callable[[Tx], T], *, admits: bool = False) -> T:
        with self._counting():
            return await self._store.run(fn, admits=admits)

    async def read(self, fn: Callable[[Tx], T]) -> T:
        with self._counting():
            return await self._store.read(fn)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        self._asked += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self.idle.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@dataclass
class World:
    settings: BrokerSettings
    clock: SteppedClock = field(default_factory=SteppedClock)

    def __post_init__(self) -> None:
        self._runner = asyncio.Runner()
        self._directory = Path(tempfile.mkdtemp(prefix="jobd-", dir=MEMORY if MEMORY.is_dir() else None))
        self.last_event = 0
        self._open()

    def _open(self) -> None:
        self._context: AbstractAsyncContextManager[Broker] = open_broker(
            self.settings, self._directory, self.clock, timed=()
        )
        self.broker = self.call(self._context.__aenter__())
        self._store = Counted(self.broker.store)
        object.__setattr__(self.broker, "store", self._store)
        self._reader = sqlite3.connect(f"file:{self._directory / DATABASE_NAME}?mode=ro", uri=True)
        self._reader.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }

    def _shut(self) -> None:
        self._reader.close()
        self.call(self._context.__aexit__(None, None, None))

    def close(self) -> None:
        self._shut()
        self._runner.close()
        shutil.rmtree(self._directory)

    def restart(self, away_s: float) -> None:
        self._shut()
        self.clock.pass_s(away_s)
        self._open()

    def call(self, asked: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asked)

    def begin(self, asked: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Something that may wait, as a parked poll does."""

        async def begun() -> asyncio.Task[T]:
            return asyncio.create_task(asked)

        return self.call(begun())

    def settle(self) -> None:
        """Until whoever was woken has done what there is to do."""

        async def settled() -> None:
            while True:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                if self._store.idle.is_set():
                    return
                await self._store.idle.wait()

        self.call(settled())

    def sweep(self) -> None:
        for sweep in sweeps.SWEEPS:
            self.call(sweep.run(self.broker))

    def log_path(self, job: int, attempt: int, part: Part) -> Path:
        return self._directory / "logs" / str(job // 1000) / str(job) / f"{attempt}.{'log' if part == 'log' else 'idx'}"

    def untold(self) -> list[str]:
        """What the events, folded over nothing, do not tell of the tables."""
        return differences_in(self._directory / DATABASE_NAME)

    def read(self) -> Tables:
        def all_of(statement: str) -> list[Row]:
            return self._reader.execute(statement).fetchall()

        self._reader.execute("BEGIN")
        try:
            events = all_of(f"SELECT * FROM events WHERE seq > {self.last_event} ORDER BY seq")
            parents: dict[int, list[int]] = {}
            for row in all_of("SELECT child, parent FROM dependencies"):
                parents.setdefault(row["child"], []).append(row["parent"])
            tables = Tables(
                jobs={row["id"]: row for row in all_of("SELECT * FROM jobs")},
                assignments={(row["job"], row["attempt"]): row for row in all_of("SELECT * FROM assignments")},
                workers={row["id"]: row for row in all_of("SELECT * FROM workers")},
                parents=parents,
                refusals={(row["worker"], row["place"], row["expires_at"]) for row in all_of("SELECT * FROM refusals")},
                counts={
                    row["state"]: row["n"]
                    for row in all_of("SELECT state, sum(n) AS n FROM counts GROUP BY state")
                    if row["n"]
                },
                kept={row["worker"]: row["job"] for row in all_of("SELECT worker, job FROM kept_room")},
                events=events,
                last_event=events[-1]["seq"] if events else self.last_event,
            )
        finally:
            self._reader.execute("COMMIT")
        self.last_event = tables.last_event
        return tables
