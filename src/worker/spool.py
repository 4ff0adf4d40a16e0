"""Output on its way to the broker, by byte offset.

The size that the broker answers is the only cursor: whatever is lost, doubled, torn or restarted, the next answer
says where to go on. A stream has at most one chunk in flight and then queues up behind all others, so that a job
that writes a gigabyte does not delay another's line. Nothing here ever delays a poll or a heartbeat.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

import anyio
import structlog

from broker.client import Unreachable
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import LogSize
from worker.backoff import Backoff
from worker.process.failpoint import failpoint

log = structlog.get_logger("worker.spool")

CHUNK_BYTES = 1024 * 1024
UPLOADS_AT_ONCE = 4
LOOK_S = 0.5
"""How often files are looked at without a word from the shim: the bell only wakes."""

StreamName = Literal["log", "index"]
# A stream that trickles is sent at once, and then at most this often: a chatty job must not cost a request a line.
PACE_S: dict[StreamName, float] = {"log": 0.05, "index": 0.25}
DURABLE_LOOK_S = 0.25

Key = tuple[int, int]


class Broker(Protocol):
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
        end: int | None,
        /,
    ) -> LogSize: ...


class Fate(StrEnum):
    """What became of an assignment's output."""

    DURABLE = "durable"  # all of it is on the broker's disk
    STALE = "stale"  # the broker wants none of it


@dataclass(frozen=True)
class Output:
    """Where an assignment's output grows, and by which right it is sent."""

    job: int
    attempt: int
    token: str
    log: Path
    index: Path
    resumed: bool
    """True: an earlier epoch may have sent some already, so the broker is asked first."""

    @property
    def key(self) -> Key:
        return self.job, self.attempt


@dataclass
class _Stream:
    output: Output
    name: StreamName
    path: Path
    size: int = 0
    durable: int = 0
    asked: bool = True
    """False: where the broker stands is not known yet."""
    final: int | None = None
    told: bool = True
    """False: an earlier epoch may have declared more than a power cut left, and the broker may wait for it."""
    dropped: bool = False
    queued: bool = False
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def done(self) -> bool:
        return self.final is not None and self.durable >= self.final and self.told

    @property
    def waits_for_disk(self) -> bool:
        return self.final is not None and self.size >= self.final and not self.done

    def declare(self, final: int) -> None:
        """It has ended with this size. What a power cut took from the file can't be waited for."""
        length = self._length()
        if length < final:
            log.warning("the end of the output is missing", assignment=self.assignment, declared=final, found=length)
        self.final = min(final, length)

    @property
    def assignment(self) -> str:
        return f"{self.output.job}.{self.output.attempt}"

    def pending(self) -> bool:
        return (
            not self.dropped and not self.done and (not self.asked or self.waits_for_disk or self._length() > self.size)
        )

    def chunk(self) -> bytes:
        """What comes next, at most CHUNK_BYTES, never beyond the declared end; empty to ask where the broker stands."""
        if not self.asked or self.waits_for_disk:
            return b""
        limit = CHUNK_BYTES if self.final is None else min(CHUNK_BYTES, self.final - self.size)
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(file, limit, self.size)
        finally:
            os.close(file)

    def _length(self) -> int:
        try:
            length = self.path.stat().st_size
        except FileNotFoundError:
            return 0
        return length if self.final is None else min(length, self.final)


@dataclass
class _Followed:
    output: Output
    streams: tuple[_Stream, _Stream]
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fate(self) -> Fate | None:
        if any(stream.dropped for stream in self.streams):
            return Fate.STALE
        return Fate.DURABLE if all(stream.done for stream in self.streams) else None


class Spool:
    """`follow()` an assignment's output, tell of `news()`, wait until it is `settled()`, `forget()` it."""

    def __init__(self, broker: Broker, worker_id: str, epoch: int, on_superseded: Callable[[Refused], None]) -> None:
        self._broker = broker
        self._worker_id = worker_id
        self._epoch = epoch
        self._on_superseded = on_superseded
        self._followed: dict[Key, _Followed] = {}
        self._queue: asyncio.Queue[_Stream] = asyncio.Queue()
        self._something_followed = asyncio.Event()

    def follow(self, output: Output) -> None:
        """Begin to send. A second call for the same assignment changes nothing."""
        if output.key in self._followed:
            return
        streams = (
            _Stream(output, "log", output.log, asked=not output.resumed, told=not output.resumed),
            _Stream(output, "index", output.index, asked=not output.resumed, told=not output.resumed),
        )
        self._followed[output.key] = _Followed(output, streams)
        self._something_followed.set()
        self.news(output.key)

    def news(self, key: Key) -> None:
        """There may be more of this assignment's output."""
        followed = self._followed.get(key)
        for stream in followed.streams if followed else ():
            self._offer(stream)

    def reachable(self) -> None:
        """The broker answers again: nobody needs to sit out a back-off."""
        for followed in self._followed.values():
            for stream in followed.streams:
                stream.not_before = 0.0
                stream.backoff.reset()
                self._offer(stream)

    async def settled(self, key: Key, final_size: int, final_index_size: int) -> Fate:
        """Wait until all that was declared is on the broker's disk, or until the broker wants none of it."""
        followed = self._followed.get(key)
        if followed is None:
            return Fate.STALE
        for stream, size in zip(followed.streams, (final_size, final_index_size), strict=True):
            stream.declare(size)
            self._offer(stream)
        while (fate := followed.fate) is None:
            followed.changed.clear()
            await followed.changed.wait()
        return fate

    def forget(self, key: Key) -> None:
        """Send no more of it."""
        followed = self._followed.pop(key, None)
        for stream in followed.streams if followed else ():
            stream.dropped = True
        if not self._followed:
            self._something_followed.clear()

    async def run(self) -> None:
        """Send for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_now_and_then)
            for _ in range(UPLOADS_AT_ONCE):
                tasks.start_soon(self._upload)

    async def _look_now_and_then(self) -> None:
        while True:
            await self._something_followed.wait()
            await anyio.sleep(LOOK_S)
            for key in list(self._followed):
                self.news(key)

    def _offer(self, stream: _Stream) -> None:
        """Queue the stream if it has something to send; later if it may not send yet."""
        if stream.queued or not stream.pending():
            return
        stream.queued = True
        loop = asyncio.get_running_loop()
        if stream.not_before > loop.time():
            loop.call_at(stream.not_before, self._queue.put_nowait, stream)
        else:
            self._queue.put_nowait(stream)

    async def _upload(self) -> None:
        while True:
            stream = await self._queue.get()
            if stream.dropped:
                continue
            try:
                await self._send_one(stream)
            finally:
                stream.queued = False
            followed = self._followed.get(stream.output.key)
            if followed is not None:
                followed.changed.set()
                self._offer(stream)

    async def _send_one(self, stream: _Stream) -> None:
        output = stream.output
        data = stream.chunk()
        if not data and stream.asked and not stream.waits_for_disk:
            return
        failpoint("upload_next")
        holder = self._worker_id, output.job, output.attempt, output.token, self._epoch
        end = stream.final
        try:
            answer = await self._broker.put_log(*holder, stream.name, stream.size, data, end)
        except Refused as refusal:
            self._refused(stream, refusal)
        except Unreachable as error:
            self._later(stream, "output can't be sent: the broker is not reachable", str(error))
        else:
            failpoint("uploaded")
            self._advance(stream, answer.size, answer.durable)
            stream.told |= end is not None
            small = len(data) < CHUNK_BYTES // 16
            pause_s = (
                DURABLE_LOOK_S
                if stream.waits_for_disk
                else PACE_S[stream.name]
                if small and stream.final is None
                else 0.0
            )
            stream.not_before = asyncio.get_running_loop().time() + pause_s if pause_s else 0.0

    def _advance(self, stream: _Stream, size: int, durable: int) -> None:
        stream.size, stream.durable, stream.asked = size, durable, True
        if stream.backoff.failures:
            log.info("output is sent again", assignment=stream.assignment, size=size)
            stream.backoff.reset()

    def _refused(self, stream: _Stream, refusal: Refused) -> None:
        match refusal.code:
            case ProblemCode.OFFSET_GAP if refusal.size is not None and refusal.size < stream.size:
                stream.size, stream.asked = refusal.size, True  # go back to where the broker is
            case ProblemCode.STALE_ASSIGNMENT | ProblemCode.UNKNOWN_ATTEMPT | ProblemCode.UNKNOWN_JOB:
                stream.dropped = True
            case ProblemCode.SUPERSEDED:
                self._on_superseded(refusal)
                self._later(stream, "output is refused", refusal.detail)
            case _:
                self._later(stream, "output is refused", f"{refusal.code}: {refusal.detail}")

    def _later(self, stream: _Stream, event: str, detail: str) -> None:
        wait_s = stream.backoff.next_s()
        stream.not_before = asyncio.get_running_loop().time() + wait_s
        if stream.backoff.failures == 1:
            log.warning(event, assignment=stream.assignment, detail=detail)
