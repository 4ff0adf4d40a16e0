"""The worker's side of every exchange with the broker: one report at a time, one poll always parked.

Both carry the full held list, built in the instant of sending, and a number from one sequence. They use connections
of their own: neither waits for the other, nor for output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
import structlog

from broker.client import Unreachable
from broker.wire.machines import Facts
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import (
    Delivery,
    Held,
    Poll,
    PollAnswer,
    Registered,
    Registration,
    Report,
    ReportAnswer,
    Stop,
    Transition,
    Verdict,
)
from worker.backoff import LONGEST_S, Backoff
from worker.process.clock import boot_s
from worker.process.failpoint import failpoint

log = structlog.get_logger("worker.exchange")

QUICK_S = 0.1
"""A poll that is answered with nothing this fast is followed by a pause that grows: no hot loop, whatever answers."""

Key = tuple[str, int, int]


class Broker(Protocol):
    async def register(self, worker_id: str, said: Registration, /) -> Registered: ...
    async def poll(self, worker_id: str, said: Poll, /) -> PollAnswer: ...
    async def report(self, worker_id: str, said: Report, /) -> ReportAnswer: ...


class Holder(Protocol):
    """Who holds the assignments that are talked about."""

    def held(self) -> list[Held]: ...
    def heard(self, verdict: Verdict, sent_boot_s: float) -> None: ...
    def stop(self, stop: Stop) -> None: ...
    def deliver(self, delivery: Delivery) -> None: ...
    def accepts(self) -> bool: ...
    def ends(self) -> bool: ...


class MustEnd(Exception):
    """The broker will not have this worker process: it must end, and leave the jobs to their shims."""


@dataclass
class _Post:
    transition: Transition
    heard: Callable[[Verdict, float], None]
    under_way: bool = False


class Exchange:
    """`post()` what happened; the verdict comes back. Everything is repeated until the broker has answered it."""

    def __init__(self, broker: Broker, worker_id: str, registration: Registration, holder: Holder) -> None:
        self._broker = broker
        self._worker_id = worker_id
        self._registration = registration
        self._holder = holder
        self._seq = 0
        self._seen = 0
        self._posts: dict[Key, _Post] = {}
        self._news = asyncio.Event()
        self._answered = asyncio.Event()
        self._ended: MustEnd | None = None
        self._parked = anyio.CancelScope()
        self.registered: Registered | None = None
        self._introduced = asyncio.Event()
        self.on_reachable: Callable[[], None] = lambda: None
        self.facts: Callable[[], Facts | None] = lambda: None
        self._told_facts = 0

    def post(self, transition: Transition, heard: Callable[[Verdict, float], None], within_s: float = 0) -> None:
        """Send with the next report: at once if none is under way, or after `within_s` at the latest. `heard` gets the verdict for *this* posting, and
        the boot time at which the report was sent that was answered. The same again, still unanswered, is no second
        posting; another one replaces the first."""
        earlier = self._posts.get(_key(transition))
        if earlier is None or earlier.transition != transition:
            self._posts[_key(transition)] = _Post(transition, heard)
        if within_s:
            asyncio.get_running_loop().call_later(within_s, self._hurry, self._posts[_key(transition)])
        else:
            self.nudge()

    def _hurry(self, post: _Post) -> None:
        if not post.under_way:
            self.nudge()

    def withdraw(self, job: int, attempt: int) -> None:
        """Forget all postings of an assignment; an answer under way is dropped."""
        for key in [key for key in self._posts if key[1:] == (job, attempt)]:
            del self._posts[key]

    def nudge(self) -> None:
        """Something of the held list has changed: say so at once."""
        self._news.set()

    def poll_again(self) -> None:
        """What the parked poll said is not true any more: one that says it anew takes its place."""
        self._parked.cancel()

    def superseded(self, refusal: Refused) -> None:
        """Another process of this worker took over; whichever request heard of it first, all ends."""
        self._ended = MustEnd(f"another process of this worker has taken over: {refusal.detail}")
        self._news.set()

    async def register(self) -> Registered:
        """Announce this epoch until the broker answers. Raises MustEnd where it never will be accepted."""
        backoff = Backoff()
        while True:
            try:
                facts = self.facts()
                said = self._registration.model_copy(update={"facts": facts})
                self.registered = await self._broker.register(self._worker_id, said)
                self._told_facts = facts.number if facts is not None else 0
            except Refused as refusal:
                if not refusal.retryable and refusal.code in _FATAL:
                    raise MustEnd(
                        f"the broker refuses this worker: {refusal.detail}{_which_is_older(refusal)}"
                    ) from None
                await self._pause(
                    backoff, "the broker refuses this worker for now", f"{refusal.code}: {refusal.detail}"
                )
            except Unreachable as error:
                await self._pause(backoff, "the broker is not reachable", str(error))
            else:
                self._introduced.set()
                log.info("registered", worker=self.registered.worker, epoch=self.registered.epoch)
                return self.registered

    async def introduced(self) -> None:
        """Until a broker has said what it takes. What ended while nobody looked is found before that."""
        await self._introduced.wait()

    async def report_forever(self) -> None:
        """One report after the other: at once when there is news, else a heartbeat. Raises MustEnd."""
        backoff = Backoff(longest_s=min(LONGEST_S, self.heartbeat_s))
        while True:
            with anyio.move_on_after(self.heartbeat_s):
                await self._news.wait()
            if self._ended is not None:
                raise self._ended
            self._news.clear()
            if await self._answered_or_paused(self._report, backoff, "report"):
                self._answered.set()
            else:
                self._news.set()

    async def poll_forever(self) -> None:
        """One poll after the other, whatever is free here: stops travel on it. Raises MustEnd."""
        backoff = Backoff(longest_s=min(LONGEST_S, self.heartbeat_s))
        idle = Backoff(first_s=0.01, longest_s=min(1.0, self.heartbeat_s))
        while True:
            sent_boot_s = boot_s()
            before = self._seen
            if not await self._answered_or_paused(self._poll, backoff, "poll"):
                continue
            if self._seen == before and boot_s() - sent_boot_s < QUICK_S:
                await anyio.sleep(idle.next_s())
            else:
                idle.reset()

    async def last_word(self, limit_s: float) -> None:
        """Give what is posted a last chance to arrive before this process ends. `report_forever` must be running."""
        with anyio.move_on_after(limit_s):
            while self._posts:
                self._answered.clear()
                self.nudge()
                await self._answered.wait()

    async def _report(self) -> None:
        posts = dict(self._posts)
        for post in posts.values():
            post.under_way = True
        self._seq += 1
        facts = self.facts()
        news = facts if facts is not None and facts.number > self._told_facts else None
        message = Report(
            epoch=self._registration.epoch,
            seq=self._seq,
            seen=self._seen,
            recovered=True,
            held=self._holder.held(),
            transitions=[post.transition for post in posts.values()],
            facts=news,
        )
        sent_boot_s = boot_s()
        if message.transitions:
            failpoint("report_next")
        answer = await self._broker.report(self._worker_id, message)
        if news is not None:
            self._told_facts = news.number
        if message.transitions:
            failpoint("report_answered")
        for verdict in answer.verdicts:
            key = (verdict.kind, verdict.job, verdict.attempt)
            answered = posts.get(key)
            if verdict.kind == "held":
                self._holder.heard(verdict, sent_boot_s)
            elif answered is not None and self._posts.get(key) is answered:
                del self._posts[key]
                answered.heard(verdict, sent_boot_s)
        self._stops(answer)

    async def _poll(self) -> None:
        self._seq += 1
        wait_s = self.registered.poll_s if self.registered else 25.0
        message = Poll(
            epoch=self._registration.epoch,
            seq=self._seq,
            seen=self._seen,
            recovered=True,
            held=self._holder.held(),
            wait_s=wait_s,
            accept=self._holder.accepts(),
            **({"ending": True} if self._holder.ends() else {}),  # an older broker does not know the word
        )
        sent_boot_s = boot_s()
        answer = None
        with anyio.CancelScope() as self._parked:
            answer = await self._broker.poll(self._worker_id, message)
        if answer is None:
            return  # cancelled: what it may have carried is put into the next answer again
        if answer.number is not None and answer.number <= self._seen:
            return  # an older answer, late: newer ones hold all that is still true
        for verdict in answer.verdicts:
            self._holder.heard(verdict, sent_boot_s)
        if answer.deliveries:
            failpoint("delivered")
        for delivery in answer.deliveries:
            self._holder.deliver(delivery)
        self._stops(answer)
        # After the deliveries are held, never before: the next list must show what this number covers.
        self._seen = answer.number or self._seen

    def _stops(self, answer: ReportAnswer) -> None:
        for stop in answer.stops:
            self._holder.stop(stop)

    async def _answered_or_paused(self, exchange: Callable[[], Awaitable[None]], backoff: Backoff, what: str) -> bool:
        """True if the broker answered. False after a pause. Raises MustEnd."""
        try:
            await exchange()
        except Refused as refusal:
            if refusal.code is ProblemCode.SUPERSEDED:
                self.superseded(refusal)
                raise self._ended or MustEnd(refusal.detail) from None
            if refusal.code is ProblemCode.UNKNOWN_WORKER:
                log.warning("the broker does not know this worker any more: registering again")
                await self.register()
                return False
            await self._pause(backoff, f"{what} refused", f"{refusal.code}: {refusal.detail}")
            return False
        except Unreachable as error:
            await self._pause(backoff, f"{what}: the broker is not reachable", str(error))
            return False
        if backoff.failures:
            log.info("the broker answers again", exchange=what, failures=backoff.failures)
            backoff.reset()
            self.on_reachable()
        return True

    async def _pause(self, backoff: Backoff, event: str, detail: str) -> None:
        wait_s = backoff.next_s()
        # Visible, but no flood: the first, and then each doubling.
        if backoff.failures & (backoff.failures - 1) == 0:
            log.warning(event, detail=detail, failures=backoff.failures, next_try_s=round(wait_s, 2))
        await anyio.sleep(wait_s)

    @property
    def heartbeat_s(self) -> float:
        return self.registered.heartbeat_s if self.registered else 15.0


_FATAL = frozenset(
    {
        ProblemCode.SUPERSEDED,
        ProblemCode.WORKER_NAME_TAKEN,
        ProblemCode.UNAUTHENTICATED,
        ProblemCode.FORBIDDEN,
        ProblemCode.INVALID_REQUEST,
    }
)


def _which_is_older(refusal: Refused) -> str:
    """A broker that does not understand how a worker introduces itself is of an older version."""
    older = refusal.code is ProblemCode.INVALID_REQUEST
    return "; the broker is older than this worker: upgrade the broker first, then its workers" if older else ""


def _key(transition: Transition) -> Key:
    return transition.kind, transition.job, transition.attempt
