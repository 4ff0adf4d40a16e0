"""A worker by hand: a test says each message itself, over HTTP to the real broker."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.client import BrokerClient
from broker.wire.machines import Facts
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
    Registered,
    Registration,
    Report,
    ReportAnswer,
    Start,
    Transition,
    VerdictWord,
)


@dataclass
class SteppedClock:
    """Time that stands still until a test moves it."""

    wall: int = 1_800_000_000_000
    boot: float = 1000.0

    def wall_ms(self) -> int:
        return self.wall

    def boot_s(self) -> float:
        return self.boot

    def pass_s(self, seconds: float) -> None:
        self.boot += seconds
        self.wall += int(seconds * 1000)


@dataclass
class ScriptedWorker:
    client: BrokerClient
    name: str = "w1"
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    epoch: int = 1
    slots: float = 4
    machine: str = "machine:boot"
    host: str = "host"
    tags: Sequence[str] = ()
    seq: int = 0
    seen: int = 0
    recovered: bool = True
    held: dict[tuple[int, int], Held] = field(default_factory=dict)
    platform: str | None = None
    resources: dict[str, int] | None = None
    checkpoint_root: str | None = None
    protocol: int = PROTOCOL

    async def register(self) -> Registered:
        said = Registration(
            name=self.name,
            epoch=self.epoch,
            machine=self.machine,
            host=self.host,
            version="0",
            protocol=self.protocol,
            slots=self.slots,
            tags=list(self.tags),
            platform=self.platform,
            resources=self.resources,
            checkpoint_root=self.checkpoint_root,
        )
        return await self.client.register(self.id, said)

    async def poll(
        self,
        *,
        wait_s: float = 0,
        seen: int | None = None,
        accept: bool = True,
        ending: bool = False,
        process: bool = True,
    ) -> PollAnswer:
        """Poll; with `process` the answer counts as seen and its deliveries are held, preparing."""
        answer = await self.client.poll(
            self.id,
            Poll(
                epoch=self.epoch,
                seq=self.next_seq(),
                seen=self.seen if seen is None else seen,
                recovered=self.recovered,
                held=list(self.held.values()),
                wait_s=wait_s,
                accept=accept,
                ending=ending,
            ),
        )
        if process:
            self.process(answer)
        return answer

    def process(self, answer: PollAnswer) -> None:
        if answer.number is not None and answer.number > self.seen:
            self.seen = answer.number
            for delivery in answer.deliveries:
                self.hold(delivery)

    def hold(self, delivery: Delivery, phase: Phase = Phase.PREPARING, *, stopping: str | None = None) -> None:
        key = (delivery.job, delivery.attempt)
        self.held[key] = Held(
            job=delivery.job, attempt=delivery.attempt, token=delivery.token, phase=phase, stopping=stopping
        )

    async def one(self) -> Delivery:
        """Poll for exactly one delivery."""
        answer = await self.poll()
        assert len(answer.deliveries) == 1, answer
        return answer.deliveries[0]

    async def report(self, *transitions: Transition, facts: Facts | None = None) -> ReportAnswer:
        return await self.client.report(
            self.id,
            Report(
                epoch=self.epoch,
                seq=self.next_seq(),
                seen=self.seen,
                recovered=self.recovered,
                held=list(self.held.values()),
                transitions=list(transitions),
                facts=facts,
            ),
        )

    async def ack(self, delivery: Delivery, *, shim: str = "shim-1") -> VerdictWord:
        said = Ack(kind="ack", job=delivery.job, attempt=delivery.attempt, token=delivery.token, shim=shim)
        return (await self.report(said)).verdicts[0].verdict

    async def start(self, delivery: Delivery) -> VerdictWord:
        said = Start(kind="start", job=delivery.job, attempt=delivery.attempt, token=delivery.token)
        verdict = (await self.report(said)).verdicts[0].verdict
        if (delivery.job, delivery.attempt) in self.held:
            self.hold(delivery, Phase.RUNNING)
        return verdict

    async def running(self) -> Delivery:
        """Take one job to `running`."""
        delivery = await self.one()
        assert await self.ack(delivery) is VerdictWord.ACCEPTED
        assert await self.start(delivery) is VerdictWord.ACCEPTED
        return delivery

    async def finish(self, delivery: Delivery, outcome: Outcome = Outcome.EXITED, **fields: object) -> VerdictWord:
        """Report the end; an accepted one is no longer held."""
        final = Final.model_validate(
            {"outcome": outcome, **({"exit_code": 0} if outcome is Outcome.EXITED else {}), **fields}
        )
        said = Finish(kind="finish", job=delivery.job, attempt=delivery.attempt, token=delivery.token, final=final)
        verdict = (await self.report(said)).verdicts[0].verdict
        if verdict in (VerdictWord.ACCEPTED, VerdictWord.DUPLICATE, VerdictWord.STALE_ASSIGNMENT):
            self.held.pop((delivery.job, delivery.attempt), None)
        return verdict

    async def write(self, delivery: Delivery, data: bytes, offset: int = 0) -> int:
        return (
            await self.client.put_log(
                self.id, delivery.job, delivery.attempt, delivery.token, self.epoch, "log", offset, data
            )
        ).size

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def restarted(self) -> ScriptedWorker:
        """The next process of the same worker."""
        return ScriptedWorker(
            self.client, self.name, self.id, self.epoch + 1, self.slots, self.machine, self.host, self.tags
        )
