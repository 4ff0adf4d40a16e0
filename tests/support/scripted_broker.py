"""The other end of a worker's line, saying what a test tells it to say. For the rules of polls, reports and output
that a real broker can't be brought to show at will: late, lost and doubled answers, refusals, lost leases."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker.wire.jobs import Artifact
from broker.wire.outcomes import ArtifactSize, ResultKept
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import (
    Delivery,
    Final,
    Finish,
    LogSize,
    Poll,
    PollAnswer,
    Registered,
    Registration,
    Report,
    ReportAnswer,
    Transition,
    Verdict,
    VerdictWord,
)
from worker.spool import StreamName

REGISTERED = Registered(
    installation="i", worker="w", epoch=1, lease_s=2, heartbeat_s=0.1, exclusive_lease_s=4, poll_s=0.5
)


def verdict_on(transition: Transition, word: VerdictWord = VerdictWord.ACCEPTED) -> Verdict:
    ended = True if transition.kind == "finish" and word is VerdictWord.ACCEPTED else None
    return Verdict(kind=transition.kind, job=transition.job, attempt=transition.attempt, verdict=word, ended=ended)


async def accept_all(report: Report) -> ReportAnswer:
    """Accepts every transition and every entry of the list."""
    held = [Verdict(kind="held", job=h.job, attempt=h.attempt, verdict=VerdictWord.ACCEPTED) for h in report.held]
    return ReportAnswer(verdicts=[*(verdict_on(transition) for transition in report.transitions), *held])


def no_fault(job: int, stream: StreamName, offset: int) -> None:
    """Lets every chunk pass."""


async def nothing_there(sha256: str) -> bytes:
    """Has no snapshot."""
    raise Refused(ProblemCode.UNKNOWN_SNAPSHOT, f"there is no snapshot {sha256}")


@dataclass
class ScriptedBroker:
    """Answers as told, and keeps what it got."""

    registered: Registered = REGISTERED
    on_report: Callable[[Report], Awaitable[ReportAnswer]] = accept_all
    on_poll: Callable[[Poll], Awaitable[PollAnswer]] | None = None
    on_fetch: Callable[[str], Awaitable[bytes]] = nothing_there
    before_append: Callable[[int, StreamName, int], None] = no_fault
    after_append: Callable[[int, StreamName, int], None] = no_fault
    durable_lag: int = 0
    append_s: float = 0.0
    register_s: float = 0.0

    reports: list[Report] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    registrations: list[Registration] = field(default_factory=list)
    chunks: list[tuple[int, StreamName, int, int]] = field(default_factory=list)
    ends: dict[tuple[int, StreamName], int | None] = field(default_factory=dict)
    kept: dict[tuple[int, StreamName], bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    polls_at_once: int = 0
    most_polls_at_once: int = 0
    reports_at_once: int = 0
    most_reports_at_once: int = 0
    before_result: Callable[[int], None] = lambda job: None
    before_piece: Callable[[str, int], None] = lambda name, offset: None
    after_piece: Callable[[str, int], None] = lambda name, offset: None
    results: dict[int, bytes] = field(default_factory=dict)
    pieces: list[tuple[str, int, int]] = field(default_factory=list)
    artifacts: dict[tuple[int, str], bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    _deliveries: list[Delivery] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _number: int = 0

    def deliver(self, delivery: Delivery) -> None:
        """With the poll that is parked, or the next one."""
        self._deliveries.append(delivery)
        self._wake.set()

    def final(self, job: int) -> Final | None:
        """What was reported as the end of a job."""
        finishes = (t for report in self.reports for t in report.transitions if isinstance(t, Finish) and t.job == job)
        return next((finish.final for finish in finishes), None)

    def kinds(self, job: int) -> list[str]:
        """The transitions reported for a job, in order, without repeats."""
        return list(dict.fromkeys(t.kind for report in self.reports for t in report.transitions if t.job == job))

    # The protocol.

    async def register(self, worker_id: str, registration: Registration) -> Registered:
        await asyncio.sleep(self.register_s)
        self.registrations.append(registration)
        return self.registered

    async def poll(self, worker_id: str, poll: Poll) -> PollAnswer:
        self.polls.append(poll)
        self.polls_at_once += 1
        self.most_polls_at_once = max(self.most_polls_at_once, self.polls_at_once)
        try:
            return await (self.on_poll or self._parked)(poll)
        finally:
            self.polls_at_once -= 1

    async def report(self, worker_id: str, report: Report) -> ReportAnswer:
        self.reports.append(report)
        self.reports_at_once += 1
        self.most_reports_at_once = max(self.most_reports_at_once, self.reports_at_once)
        try:
            return await self.on_report(report)
        finally:
            self.reports_at_once -= 1

    async def snapshot_get(self, sha256: str, /) -> bytes:
        self.fetched.append(sha256)
        return await self.on_fetch(sha256)

    async def put_log(
        self,
        worker_id: str,
        job: int,
        attempt: int,
        token: str,
        epoch: int,
        stream: StreamName,
        offset: int,
        data: bytes,
        end: int | None = None,
    ) -> LogSize:
        """Bytes by offset: what is there is skipped, a gap is refused with the size."""
        self.chunks.append((job, stream, offset, len(data)))
        self.ends[job, stream] = end
        await asyncio.sleep(self.append_s)
        self.before_append(job, stream, offset)
        kept = self.kept[job, stream]
        if offset > len(kept):
            raise Refused(ProblemCode.OFFSET_GAP, "a gap", size=len(kept))
        duplicate = offset + len(data) <= len(kept)
        kept += data[len(kept) - offset :]
        self.after_append(job, stream, offset)
        return LogSize(size=len(kept), durable=max(0, len(kept) - self.durable_lag), duplicate=duplicate)

    async def put_result(
        self, worker_id: str, job: int, attempt: int, token: str, epoch: int, data: bytes
    ) -> ResultKept:
        self.before_result(job)
        duplicate = job in self.results
        self.results.setdefault(job, data)
        return ResultKept(duplicate=duplicate)

    async def put_artifact(
        self,
        worker_id: str,
        job: int,
        attempt: int,
        token: str,
        epoch: int,
        artifact: Artifact,
        offset: int,
        data: bytes,
    ) -> ArtifactSize:
        """As bytes of output; kept once all are here and match the checksum."""
        self.pieces.append((artifact.name, offset, len(data)))
        self.before_piece(artifact.name, offset)
        kept = self.artifacts[job, artifact.name]
        if offset > len(kept):
            raise Refused(ProblemCode.OFFSET_GAP, "a gap", size=len(kept), retryable=True)
        kept += data[len(kept) - offset :]
        whole = len(kept) == artifact.size
        if whole and hashlib.sha256(kept).hexdigest() != artifact.sha256:
            kept.clear()
            raise Refused(ProblemCode.BAD_CHECKSUM, "not the same", size=0, retryable=True)
        self.after_piece(artifact.name, offset)
        return ArtifactSize(size=len(kept), kept=whole)

    async def _parked(self, poll: Poll) -> PollAnswer:
        try:
            async with asyncio.timeout(poll.wait_s):
                await self._wake.wait()
        except TimeoutError:
            return PollAnswer()
        self._wake.clear()
        deliveries, self._deliveries = self._deliveries, []
        self._number += 1
        return PollAnswer(number=self._number, deliveries=deliveries)
