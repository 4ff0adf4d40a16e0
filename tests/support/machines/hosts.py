"""A machine with a worker on it: what it says when it is honest, and what really runs there.

The worker process may die and come back; what it keeps of its deliveries, and the processes, do not die with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from broker.wire.states import OnWorkerLost
from broker.wire.workers import (
    PROTOCOL,
    Ack,
    Delivery,
    Final,
    Finish,
    Held,
    Outcome,
    Phase,
    Poll,
    PollAnswer,
    Registration,
    Report,
    ReportAnswer,
    Start,
    Stop,
    Transition,
    Verdict,
    VerdictWord,
)


class Stage(StrEnum):
    PREPARED = "prepared"
    ALIVE = "alive"
    GONE = "gone"


@dataclass
class Copy:
    """One delivery, as this machine has it."""

    job: int
    attempt: int
    token: str
    policy: OnWorkerLost
    cpus: float
    grace_s: float
    shim: str
    stage: Stage = Stage.PREPARED
    until: float | None = None
    """Where its policy wants that: when its shim begins to stop it, unless the broker is heard."""
    stopping: str | None = None
    final: Final | None = None
    stale: bool = False
    start_told: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.job, self.attempt

    def held(self) -> Held:
        phase = {Stage.PREPARED: Phase.PREPARING, Stage.ALIVE: Phase.RUNNING, Stage.GONE: Phase.ENDED}[self.stage]
        return Held(
            job=self.job,
            attempt=self.attempt,
            token=self.token,
            phase=phase,
            stopping=self.stopping,
            final=self.final,
        )

    def transition(self) -> Transition | None:
        """What there is to say of it, besides that it is held."""
        job, attempt, token = self.job, self.attempt, self.token
        if self.final is not None:
            return Finish(kind="finish", job=job, attempt=attempt, token=token, final=self.final)
        if self.stage is Stage.PREPARED:
            return Ack(kind="ack", job=job, attempt=attempt, token=token, shim=self.shim)
        return None if self.start_told else Start(kind="start", job=job, attempt=attempt, token=token)

    def ends(self, outcome: Outcome, **how: object) -> None:
        self.stage = Stage.GONE
        self.final = Final.model_validate({"outcome": outcome, **how})


@dataclass(frozen=True)
class Sent:
    """A message, which the wire may lose, delay or double. `at`: when it was sent, on the clock that never jumps."""

    host: Host
    message: Poll | Report
    at: float

    @property
    def epoch(self) -> int:
        return self.message.epoch

    @property
    def claims(self) -> bool:
        return isinstance(self.message, Poll) and self.message.accept and self.message.recovered


@dataclass
class Parked:
    sent: Sent
    task: asyncio.Task[PollAnswer]
    left: asyncio.Event
    late: bool


@dataclass(eq=False)
class Host:
    id: str
    name: str
    slots: float
    lease_s: float
    exclusive_lease_s: float
    executes: Callable[[Host, Copy], None]
    """Told just before a process begins."""
    epoch: int = 0
    up: bool = False
    recovered: bool = False
    seq: int = 0
    seen: int = 0
    shims: int = 0
    copies: dict[tuple[int, int], Copy] = field(default_factory=dict)
    parked: Parked | None = None
    down_since: float = 0.0

    def registration(self) -> Registration:
        return Registration(
            name=self.name,
            epoch=self.epoch,
            machine=f"{self.id}:boot",
            host=self.id,
            version="0",
            protocol=PROTOCOL,
            slots=self.slots,
        )

    # What becomes of it.

    def starts(self) -> None:
        """A new process of the worker, which has not read its records yet."""
        self.up, self.recovered = True, False
        self.epoch += 1
        self.seq = self.seen = 0

    def reads_its_records(self) -> None:
        """What was not executed by now never will be: nobody says go to these shims."""
        self.recovered = True
        for copy in self.copies.values():
            if copy.stage is Stage.PREPARED:
                copy.ends(Outcome.NEVER_EXECUTED)

    def crashes(self, now: float) -> None:
        self.up, self.recovered, self.down_since = False, False, now

    def loses_power(self, now: float, *, records: bool) -> None:
        """Every process with it. Without `records` it will know nothing of them."""
        self.crashes(now)
        for copy in list(self.copies.values()):
            if not records:
                del self.copies[copy.key]
            elif copy.stage is Stage.ALIVE:
                copy.ends(Outcome.LOST)

    def time_passed(self, now: float) -> None:
        """What shims do by themselves."""
        for copy in self.copies.values():
            if copy.stage is not Stage.ALIVE or copy.policy is OnWorkerLost.ORPHAN:
                continue
            alone = not self.up and now >= self.down_since + self.lease_s + copy.grace_s
            if alone or (copy.until is not None and now >= copy.until + copy.grace_s):
                copy.ends(Outcome.LEASE_ENDED)

    # What it says.

    def report(self, now: float, *transitions: Transition) -> Sent:
        return Sent(
            self,
            Report(
                epoch=self.epoch,
                seq=self._next_seq(),
                seen=self.seen,
                recovered=self.recovered,
                held=self._held(),
                transitions=list(transitions),
            ),
            now,
        )

    def poll(self, now: float, *, accept: bool, wait_s: float) -> Sent:
        return Sent(
            self,
            Poll(
                epoch=self.epoch,
                seq=self._next_seq(),
                seen=self.seen,
                recovered=self.recovered,
                held=self._held(),
                wait_s=wait_s,
                accept=accept,
            ),
            now,
        )

    def _held(self) -> list[Held]:
        """Before its records are read, it knows of nothing that an earlier process was given."""
        return [copy.held() for copy in self.copies.values()] if self.recovered else []

    def _next_seq(self) -> int:
        self.seq += 1
        return self.seq

    # What it hears.

    def hears(self, sent: Sent, answer: ReportAnswer, now: float) -> None:
        """A process that is gone hears nothing."""
        if not self.up or sent.epoch != self.epoch:
            return
        number = answer.number if isinstance(answer, PollAnswer) else None
        if number is not None and number <= self.seen:
            return
        for verdict in answer.verdicts:
            self._verdict(sent, verdict, now)
        if isinstance(answer, PollAnswer):
            for delivery in answer.deliveries:
                self._delivered(delivery)
        for stop in answer.stops:
            self._stop(stop)
        self.seen = number or self.seen

    def _verdict(self, sent: Sent, verdict: Verdict, now: float) -> None:
        copy = self.copies.get((verdict.job, verdict.attempt))
        if copy is None:
            return
        match verdict.verdict:
            case VerdictWord.STALE_ASSIGNMENT:
                if verdict.kind != "ack" or _asked_by(sent, copy):
                    self._gives_up(copy)
            case VerdictWord.LEASE_LOST:
                if copy.stage is Stage.PREPARED:
                    copy.ends(Outcome.NEVER_EXECUTED)
            case VerdictWord.ACCEPTED | VerdictWord.DUPLICATE:
                if copy.final is not None and (verdict.ended or verdict.kind == "finish"):
                    del self.copies[copy.key]
                    return
                if copy.policy is OnWorkerLost.REQUEUE_EXCLUSIVE and not verdict.ended:
                    copy.until = max(copy.until or 0.0, sent.at + self.exclusive_lease_s)
                if verdict.kind == "start":
                    copy.start_told = True
                if verdict.kind == "ack" and not verdict.ended:
                    self._permitted(sent, copy, now)

    def _permitted(self, sent: Sent, copy: Copy, now: float) -> None:
        """The answer counts for the shim that asked, and while the lease lasts, counted from the asking."""
        unwanted = copy.stale or copy.stopping is not None or copy.stage is not Stage.PREPARED
        if _asked_by(sent, copy) and not unwanted and now < sent.at + self.lease_s:
            self.executes(self, copy)
            copy.stage = Stage.ALIVE

    def _gives_up(self, copy: Copy) -> None:
        if copy.stage is Stage.ALIVE:
            copy.stale = True  # it stays in the list until it is gone
        else:
            del self.copies[copy.key]

    def _delivered(self, delivery: Delivery) -> None:
        self.shims += 1
        spec = delivery.spec
        copy = Copy(
            delivery.job,
            delivery.attempt,
            delivery.token,
            spec.on_worker_lost,
            spec.cpus,
            spec.checkpoint_grace_s,
            shim=f"{self.id[:4]}-{self.shims}",
        )
        self.copies.setdefault(copy.key, copy)

    def _stop(self, stop: Stop) -> None:
        copy = self.copies.get((stop.job, stop.attempt))
        if copy is None or copy.final is not None:
            return
        copy.stopping = stop.id
        if copy.stage is Stage.PREPARED:
            copy.ends(Outcome.NEVER_EXECUTED)


def _asked_by(sent: Sent, copy: Copy) -> bool:
    said = sent.message.transitions if isinstance(sent.message, Report) else []
    return any(isinstance(t, Ack) and (t.job, t.attempt, t.shim) == (*copy.key, copy.shim) for t in said)
