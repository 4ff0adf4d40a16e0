"""What jobs left, on its way to the broker: results in one piece, artifacts by byte offset.

Sent only when the end of a job is on its way or known, a few pieces at once over all jobs: nothing here delays a poll, a
report or output. Whatever is lost or restarted, the size that the broker answers says where to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread
import structlog

from broker.client import Unreachable
from broker.wire.jobs import Artifact
from broker.wire.outcomes import ArtifactSize, ResultKept
from broker.wire.problems import ProblemCode, Refused
from worker.backoff import Backoff
from worker.outbox import Collected, Outbox

log = structlog.get_logger("worker.parcels")

PIECE_BYTES = 1024 * 1024
PIECES_AT_ONCE = 2
RESULT_S = 5.0
"""How long an end waits for its result to be taken; then it goes first."""
MOST_CHANGES = 5
"""A file that changes while it is sent is measured anew so often."""
LONGEST_PAUSE_S = 30.0


class Broker(Protocol):
    async def put_result(
        self, worker_id: str, job: int, attempt: int, token: str, epoch: int, data: bytes, /
    ) -> ResultKept: ...
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
        /,
    ) -> ArtifactSize: ...


@dataclass(frozen=True)
class Sender:
    """By which right it is sent."""

    job: int
    attempt: int
    token: str


class Parcels:
    """`result()` before the end is told, `rest()` once it was accepted."""

    def __init__(self, broker: Broker, worker_id: str, epoch: int, on_superseded: Callable[[Refused], None]) -> None:
        self._broker = broker
        self._worker_id = worker_id
        self._epoch = epoch
        self._on_superseded = on_superseded
        self._turn = anyio.Semaphore(PIECES_AT_ONCE)

    async def result(self, sender: Sender, data: bytes, within_s: float = RESULT_S) -> bool:
        """Whether nothing is left to do about it: it was taken, or never will be."""
        backoff = Backoff()
        with anyio.move_on_after(within_s):
            while True:
                try:
                    holder = self._worker_id, sender.job, sender.attempt, sender.token, self._epoch
                    await self._broker.put_result(*holder, data)
                except Refused as refusal:
                    if not self._may_be_taken(sender, "result", refusal):
                        return True
                    if refusal.code is ProblemCode.LEASE_LOST:
                        return False  # its end brings it back
                except Unreachable as error:
                    log.info("a result waits: the broker is not reachable", job=sender.job, detail=str(error))
                else:
                    return True
                await anyio.sleep(backoff.next_s())
        return False

    async def rest(self, sender: Sender, outbox: Outbox, left: Collected, *, with_result: bool) -> None:
        """Send on until the broker has all of it, or wants no more."""
        while with_result and left.result is not None:
            with_result = not await self.result(sender, left.result, LONGEST_PAUSE_S)
        for name, _ in left.artifacts:
            await self._artifact(sender, outbox, name)

    async def _artifact(self, sender: Sender, outbox: Outbox, name: str) -> None:
        backoff = Backoff(longest_s=LONGEST_PAUSE_S)
        artifact: Artifact | None = None
        offset, changes = 0, 0
        while changes <= MOST_CHANGES:
            try:
                if artifact is None:
                    async with self._turn:
                        artifact = await anyio.to_thread.run_sync(outbox.measured, name)
                    offset, changes = 0, changes + 1
                answer = await self._piece(sender, outbox, artifact, offset)
            except Refused as refusal:
                if refusal.code is ProblemCode.OFFSET_GAP and refusal.size is not None:
                    offset = refusal.size
                elif refusal.code is ProblemCode.BAD_CHECKSUM and refusal.retryable:
                    artifact = None
                elif not self._may_be_taken(sender, name, refusal):
                    return
                await anyio.sleep(backoff.next_s())
            except Unreachable as error:
                _say(backoff, "an artifact waits: the broker is not reachable", sender, name, str(error))
                await anyio.sleep(backoff.next_s())
            except OSError as error:
                log.warning("an artifact can't be read any more", job=sender.job, name=name, detail=str(error))
                return
            else:
                backoff.reset()
                if answer is None:
                    artifact = None
                elif answer.kept:
                    return
                else:
                    offset = answer.size
        log.warning("an artifact changes all the time, and is not kept", job=sender.job, name=name)

    async def _piece(self, sender: Sender, outbox: Outbox, artifact: Artifact, offset: int) -> ArtifactSize | None:
        """None: the file is shorter than it was."""
        async with self._turn:
            read = partial(outbox.read, artifact.name, offset, min(PIECE_BYTES, artifact.size - offset))
            data = await anyio.to_thread.run_sync(read)
            if not data and offset < artifact.size:
                return None
            holder = self._worker_id, sender.job, sender.attempt, sender.token, self._epoch
            return await self._broker.put_artifact(*holder, artifact, offset, data)

    def _may_be_taken(self, sender: Sender, name: str, refusal: Refused) -> bool:
        """Whether the same will be taken later."""
        if refusal.code is ProblemCode.SUPERSEDED:
            self._on_superseded(refusal)
            return True
        later = refusal.retryable or refusal.code in (ProblemCode.LEASE_LOST, ProblemCode.STORAGE_FULL)
        said = log.info if later else log.warning
        what = "waits" if later else "is not kept"
        said(f"what a job left {what}", job=sender.job, name=name, detail=f"{refusal.code}: {refusal.detail}")
        return later


def _say(backoff: Backoff, event: str, sender: Sender, name: str, detail: str) -> None:
    if backoff.failures == 0:
        log.warning(event, job=sender.job, name=name, detail=detail)
