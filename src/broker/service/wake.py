"""Who waits for what. Nothing here is durable, and nothing is true: a wake only says "look again".

The store calls `Wake.heard` after each commit with the notices of its functions. A notice that comes
between a reader's look at the tables and its waiting must not be lost: whoever waits takes a mark
first, looks, and waits only while the mark stands.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from broker.core.matching import Machine
from broker.wire.workers import PollAnswer


@dataclass(frozen=True, slots=True)
class JobChanged:
    job: int


@dataclass(frozen=True, slots=True)
class ArrayChanged:
    """Members of an array are in other states than before."""

    array: int


@dataclass(frozen=True, slots=True)
class JobReady:
    """A job of this shape is queued: dispatch looks at this shape for everybody."""

    shape: int


@dataclass(frozen=True, slots=True)
class RoomFree:
    """Something on this worker is gone: dispatch looks at all shapes for it."""

    worker: str


@dataclass(frozen=True, slots=True)
class RoomKept:
    """Room on this worker is kept for a job: when anything becomes of that, others may have it."""

    job: int
    worker: str


@dataclass(frozen=True, slots=True)
class HeldByQuota:
    """Jobs of this shape would start, but for a quota: they are looked at again when any job gives its room back."""

    shape: int


@dataclass(frozen=True, slots=True)
class OrderChanged:
    """Settings that say whose turn it is, or what may start, are others: dispatch looks at all again."""


@dataclass(frozen=True, slots=True)
class StopWanted:
    worker: str


@dataclass(frozen=True, slots=True)
class ListVoid:
    """An assignment of this worker expired: its parked poll may not claim on the old list."""

    worker: str


@dataclass(frozen=True, slots=True)
class Happened:
    """An event was written: of this job, of several, or of none (None)."""

    job: int | None


@dataclass(eq=False)
class Parked:
    """One parked poll. At most one per worker. `machine` is what the worker registered; what is free on it is not known."""

    worker: str
    epoch: int
    accept: bool
    machine: Machine
    answer: asyncio.Future[PollAnswer | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    claiming: bool = False

    def resolve(self, answer: PollAnswer | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(frozen=True, slots=True)
class Look:
    """What dispatch has to look at: `shapes` for all of the polls, and every shape for the polls of `workers`.

    A parked poll was looked at when it came, for all shapes: only what has changed since can give it anything.
    """

    polls: Sequence[Parked]
    shapes: frozenset[int]
    workers: frozenset[str]


class Wake:
    def __init__(self) -> None:
        self._parked: dict[str, Parked] = {}
        self._marks: Counter[str] = Counter()
        self._ready = 0
        self._dispatch = asyncio.Event()
        self._ready_shapes: set[int] = set()
        self._roomy_workers: set[str] = set()
        self._kept: dict[int, str] = {}
        self._held_shapes: set[int] = set()
        self._jobs: defaultdict[int, set[asyncio.Event]] = defaultdict(set)
        self._arrays: defaultdict[int, set[asyncio.Event]] = defaultdict(set)
        self._events: defaultdict[int, set[asyncio.Event]] = defaultdict(set)
        self._happened: set[Callable[[], None]] = set()
        self.closed = False

    # ---- what the store says

    def heard(self, notices: Iterable[object]) -> None:
        happened = False
        for notice in notices:
            match notice:
                case Happened(job):
                    happened = True
                    self._tell_of_event(job)
                case JobChanged(job):
                    for event in self._jobs.get(job, ()):
                        event.set()
                    if (worker := self._kept.pop(job, None)) is not None:
                        self._room_on(worker)
                case ArrayChanged(array):
                    for event in self._arrays.get(array, ()):
                        event.set()
                case JobReady(shape):
                    self._ready += 1
                    self._ready_shapes.add(shape)
                    self._dispatch.set()
                case RoomFree(worker):
                    self._room_on(worker)
                case HeldByQuota(shape):
                    self._held_shapes.add(shape)
                case RoomKept(job, worker):
                    self._kept[job] = worker
                case OrderChanged():
                    self._ready += 1
                    for worker in self._parked:
                        self._look_for(worker)
                    self.look_at_held()
                case StopWanted(worker):
                    self._marks[worker] += 1
                    self._let_go(worker)
                case ListVoid(worker):
                    self._marks[worker] += 1
                    self._let_go(worker)
                case _:
                    raise TypeError(f"nobody waits for {notice!r}")
        if happened:
            for tell in self._happened:
                tell()

    def _room_on(self, worker: str) -> None:
        self._ready += 1
        if worker in self._parked:
            self._look_for(worker)
        self.look_at_held()

    def look_at_held(self) -> None:
        """What a quota held may start now, on any worker."""
        if self._held_shapes:
            self._ready += 1
            self._ready_shapes |= self._held_shapes
            self._held_shapes.clear()
            self._dispatch.set()

    def _tell_of_event(self, job: int | None) -> None:
        watches = self._events.values() if job is None else (self._events.get(job, ()),)
        for events in watches:
            for event in events:
                event.set()

    def log_grew(self, job: int) -> None:
        """More output of this job is in the broker's files."""
        for event in self._jobs.get(job, ()):
            event.set()

    # ---- parked polls

    def mark(self, worker: str) -> tuple[int, int]:
        """Take this before looking at the tables for `worker`."""
        return self._marks[worker], self._ready

    def park(self, poll: Parked, mark: tuple[int, int]) -> bool:
        """Park this poll in place of an older one. False if something happened since the mark: look again."""
        self.unpark_worker(poll.worker)
        if self.closed or self._marks[poll.worker] != mark[0]:
            return False
        self._parked[poll.worker] = poll
        if self._ready != mark[1]:
            self._look_for(poll.worker)
        return True

    def unpark(self, poll: Parked) -> None:
        if self._parked.get(poll.worker) is poll:
            del self._parked[poll.worker]

    def unpark_worker(self, worker: str) -> None:
        """Answer the parked poll of this worker with nothing: a newer one, or a newer epoch, is here."""
        older = self._parked.pop(worker, None)
        if older is not None and not older.claiming:
            older.resolve(None)

    def _look_for(self, worker: str) -> None:
        self._roomy_workers.add(worker)
        self._dispatch.set()

    def _let_go(self, worker: str) -> None:
        self.unpark_worker(worker)

    async def look(self) -> Look:
        """Wait until dispatch has something to look at; the polls are those that may claim, longest parked first."""
        await self._dispatch.wait()
        self._dispatch.clear()
        polls = [poll for poll in self._parked.values() if poll.accept]
        look = Look(polls, frozenset(self._ready_shapes), frozenset(self._roomy_workers))
        self._ready_shapes.clear()
        self._roomy_workers.clear()
        return look

    def not_looked(self, look: Look) -> None:
        """It could not be looked at: the next look does."""
        self._ready_shapes |= look.shapes
        self._roomy_workers |= look.workers

    def has_parked(self, worker: str) -> bool:
        """Whether a poll of this worker waits for work."""
        return worker in self._parked

    def is_parked(self, poll: Parked) -> bool:
        return self._parked.get(poll.worker) is poll

    # ---- waiting for jobs and events

    def watch_jobs(self, jobs: Iterable[int]) -> Watch:
        return Watch(self._jobs, tuple(jobs))

    def watch_array(self, array: int) -> Watch:
        return Watch(self._arrays, (array,))

    def watch_events(self, job: int) -> Watch:
        return Watch(self._events, (job,))

    @contextmanager
    def on_events(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` once after each commit that wrote events, and when the broker closes."""
        self._happened.add(tell)
        try:
            yield
        finally:
            self._happened.discard(tell)

    def close(self) -> None:
        """Shutdown: everybody who waits looks again, and finds that the broker is closing."""
        self.closed = True
        for worker in list(self._parked):
            self.unpark_worker(worker)
        for events in [*self._jobs.values(), *self._arrays.values(), *self._events.values()]:
            for event in events:
                event.set()
        for tell in self._happened:
            tell()


class Watch:
    """A context in which changes of some ids are noticed; `wait` returns early when one came."""

    def __init__(self, watched: defaultdict[int, set[asyncio.Event]], ids: tuple[int, ...]) -> None:
        self._watched, self._ids = watched, ids
        self._event = asyncio.Event()

    def __enter__(self) -> Watch:
        for id_ in self._ids:
            self._watched[id_].add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        for id_ in self._ids:
            events = self._watched[id_]
            events.discard(self._event)
            if not events:
                del self._watched[id_]

    async def wait(self, within_s: float) -> bool:
        """True if something changed since the last call, or changes within `within_s`."""
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
