"""The story of all events, read once for everybody who follows it.

A thousand streams that each asked the store after each commit would cost more than the work they tell of. So events
are read in pages that all streams share, and streams get their turns in rounds that take at most a tenth of the time:
under load they lag behind, without gap or repeat, and the work does not.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from broker.service import views
from broker.service.wake import Wake
from broker.store.contract import Store, Tx
from broker.wire.events import Event

PAGE = 200
MOST_PAGES_KEPT = 16
MOST_TEXTS_KEPT = 4
STREAMS_AT_ONCE = 32
LOOP_STEPS_OF_A_TURN = 4  # wake, look, send; a page that has to be read comes later
REST = 9.0
LONGEST_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Page:
    """The events whose `seq` is above `first` and at most `first + PAGE`. `whole`: no other will come between them."""

    first: int
    events: tuple[Event, ...]
    whole: bool
    _texts: dict[int, str] = field(default_factory=dict)

    def end(self, since: int) -> int:
        """Who stood at `since` and has read this page stands here."""
        return self.first + PAGE if self.whole else max(since, self.events[-1].seq if self.events else 0)

    def text_after(self, since: int, frame: Callable[[Event], str]) -> str:
        """The events after `since`, framed: made once for all streams that stand there."""
        text = self._texts.get(since)
        if text is None:
            text = "".join(frame(event) for event in self.events if event.seq > since)
            if len(self._texts) < MOST_TEXTS_KEPT:
                self._texts[since] = text
        return text


class Turns:
    """One stream's place in the rounds."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.event = asyncio.Event()

    async def next(self, within_s: float, *, more: bool) -> bool:
        """True at this stream's next turn; False if none came for so long. `more`: there is more to read already."""
        if more:
            self._feed.due()
        try:
            async with asyncio.timeout(within_s):
                await self.event.wait()
        except TimeoutError:
            return False
        self.event.clear()
        return True


class Feed:
    """Shared pages, and rounds. Turns come while `run` runs."""

    def __init__(self, store: Store, wake: Wake) -> None:
        self._store, self._wake = store, wake
        self._whole: OrderedDict[int, Page] = OrderedDict()
        self._newest: tuple[int, Page] | None = None  # and the count of commits with events when it was read
        self._reading: dict[tuple[int, int], asyncio.Task[Page]] = {}
        self._turns: set[Turns] = set()
        self._round = asyncio.Event()
        self._commits = 0

    @contextmanager
    def follow(self) -> Iterator[Turns]:
        turns = Turns(self)
        self._turns.add(turns)
        try:
            yield turns
        finally:
            self._turns.discard(turns)

    def due(self) -> None:
        """A round is due: somebody has more to read."""
        self._round.set()

    async def after(self, since: int) -> Page:
        """The page in which the event after `since` is, or will be."""
        first = since - since % PAGE
        if first in self._whole:
            self._whole.move_to_end(first)
            return self._whole[first]
        commits = self._commits
        if self._newest is not None and self._newest[0] == commits and self._newest[1].first == first:
            return self._newest[1]
        # What is being read may lack what is committed meanwhile: who comes after that commit reads for itself.
        key = first, commits
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._read(first, commits))
            reading.add_done_callback(lambda _: self._reading.pop(key))
        return await asyncio.shield(reading)

    async def run(self) -> None:
        """Round after round: some streams' turns, then a rest that is longer than they took."""
        with self._wake.on_events(self._happened):
            while True:
                await self._round.wait()
                self._round.clear()
                waiting = list(self._turns)
                for at in range(0, len(waiting), STREAMS_AT_ONCE):
                    await self._give(waiting[at : at + STREAMS_AT_ONCE])

    async def _give(self, some: list[Turns]) -> None:
        began = time.perf_counter()
        for turns in some:
            turns.event.set()
        for _ in range(LOOP_STEPS_OF_A_TURN):
            await asyncio.sleep(0)
        if not self._wake.closed:
            await asyncio.sleep(min(LONGEST_REST_S, REST * (time.perf_counter() - began)))

    def _happened(self) -> None:
        self._commits += 1
        self._round.set()

    async def _read(self, first: int, commits: int) -> Page:
        def fn(tx: Tx) -> Page:
            rows = tx.all("events_between", since=first, until=first + PAGE)
            last = tx.one("last_event")
            whole = last is not None and last["seq"] >= first + PAGE
            return Page(first, tuple(views.events(rows)), whole)

        page = await self._store.read(fn)
        if page.whole:
            self._whole[first] = page
            if len(self._whole) > MOST_PAGES_KEPT:
                self._whole.popitem(last=False)
        else:
            self._newest = commits, page
        return page
