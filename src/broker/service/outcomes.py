"""What jobs leave: results and artifacts, taken from their holder as output is, and shown to whoever asks.

A job's end never waits for any of it. Each attempt has its own; what a job shows is that of its newest.
"""

from __future__ import annotations

import hmac
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from broker.core.fence import Standing, standing
from broker.logs.files import Appended, Gap
from broker.service import output
from broker.service.context import Broker, Caller
from broker.service.output import Holder
from broker.service.registration import outcome_limits
from broker.service.rows import read_job, unknown_job
from broker.service.wake import JobChanged
from broker.store.contract import Row, Tx
from broker.wire.jobs import Artifact
from broker.wire.outcomes import ArtifactList, ArtifactSize, BadResult, ResultKept, artifact_name, result_text
from broker.wire.problems import ProblemCode, Refused

PIECE_BYTES = 256 * 1024
EVERY_ONE = -1  # SQLite: no limit
CONCISE_CHARACTERS = 2000


# ---- results


async def keep_result(broker: Broker, caller: Caller, holder: Holder, data: bytes) -> ResultKept:
    """Keep what came out of a delivery. What is there stays: a repeat changes nothing.

    Refused: `stale_assignment` and `lease_lost` by the fence, `invalid_request` for what is no JSON.
    """
    try:
        text = result_text(data)
    except BadResult as bad:
        raise Refused(ProblemCode.INVALID_REQUEST, f"the result is {bad}", field="result") from None

    def fn(tx: Tx) -> ResultKept:
        _check(tx, caller, holder)
        kept = tx.run("keep_result", job=holder.job, attempt=holder.attempt, json=text)
        tx.tell(JobChanged(holder.job))
        return ResultKept(duplicate=not kept)

    return await broker.store.run(fn)


@dataclass(frozen=True, slots=True)
class Result:
    """A result as an answer has it: whole, or the beginning of its text, with what to do for the rest."""

    whole: object = None
    cut: str | None = None

    @classmethod
    def of(cls, text: str | None, job: int, most: int | None) -> Result:
        if text is None:
            return cls()
        if most is None or len(text) <= most:
            return cls(json.loads(text))
        return cls(cut=f"{text[:most]}… ({len(text):,} characters of JSON; job_get job={job} detail=full has all)")

    @property
    def fields(self) -> dict[str, object]:
        """As fields of a Job, an Ended or an Assignment."""
        return {"result": self.whole, "result_cut": self.cut}


def result_of(tx: Tx, job: int, attempt: int, most: int | None = CONCISE_CHARACTERS) -> Result:
    row = tx.one("result", job=job, attempt=attempt)
    return Result.of(row["json"] if row is not None else None, job, most)


# ---- artifacts


@dataclass(frozen=True, slots=True)
class Offer:
    """A file that a holder wants to leave."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where it goes. `is_kept`: nothing is left to do. `begins`: what lies there is of something else."""

    number: int
    is_kept: bool
    begins: bool = False


async def put_artifact(
    broker: Broker, caller: Caller, holder: Holder, offer: Offer, offset: int, crc32: int, data: bytes
) -> ArtifactSize:
    """Keep `data` at `offset` of an artifact. What is there already is skipped; a gap is refused with the size.

    With its last byte the checksum of the whole is verified; a file that does not match is dropped, and is to be sent anew.
    Refused: `stale_assignment` and `lease_lost` by the fence, `payload_too_large`, `bad_checksum`, `offset_gap`,
    `storage_full`.
    """
    if len(data) > output.MOST_IN_ONE_CHUNK:
        raise Refused(ProblemCode.PAYLOAD_TOO_LARGE, f"a chunk is at most {output.MOST_IN_ONE_CHUNK} bytes")
    if offset + len(data) > offer.size:
        raise Refused(ProblemCode.INVALID_REQUEST, "these bytes lie beyond the size of the artifact", field="offset")
    if zlib.crc32(data) != crc32:
        raise Refused(ProblemCode.BAD_CHECKSUM, "the bytes do not match their checksum", retryable=True)
    place = await broker.store.read(partial(_found, caller=caller, holder=holder, offer=offer))
    if place is None:
        place = await broker.store.run(partial(_admitted, broker, caller=caller, holder=holder, offer=offer))
    if place.is_kept:
        return ArtifactSize(size=offer.size, kept=True)
    size = await anyio.to_thread.run_sync(_write, broker, holder, place, offset, data)
    if size < offer.size:
        return ArtifactSize(size=size)
    await anyio.to_thread.run_sync(_verify, broker, holder, place, offer)
    await broker.store.run(partial(_keep, caller=caller, holder=holder, offer=offer, number=place.number))
    return ArtifactSize(size=offer.size, kept=True)


def _write(broker: Broker, holder: Holder, place: _Place, offset: int, data: bytes) -> int:
    files = broker.artifacts
    if place.begins:
        files.cut(holder.job, holder.attempt, place.number)
    try:
        done: Appended = files.append(holder.job, holder.attempt, place.number, offset, data)
    except Gap as gap:
        raise Refused(
            ProblemCode.OFFSET_GAP, f"the broker has {gap.size} bytes", size=gap.size, retryable=True
        ) from None
    return done.size


def _verify(broker: Broker, holder: Holder, place: _Place, offer: Offer) -> None:
    files = broker.artifacts
    files.sync(holder.job, holder.attempt, place.number)
    if files.sha256(holder.job, holder.attempt, place.number) != offer.sha256:
        files.cut(holder.job, holder.attempt, place.number)
        raise Refused(
            ProblemCode.BAD_CHECKSUM,
            f"{offer.name} does not match its checksum; it is dropped",
            hint="send it from its beginning",
            size=0,
            retryable=True,
        )


def _check(tx: Tx, caller: Caller, holder: Holder) -> Row:
    """The delivery, if this holder may still leave something: while it is live, and after its own accepted end."""
    job, assignment, row = output.held(tx, caller, holder)
    stands = standing(job, assignment)
    if stands is Standing.LIVE or assignment.final_size is not None:
        return row
    raise output.refused(stands)


def _found(tx: Tx, *, caller: Caller, holder: Holder, offer: Offer) -> _Place | None:
    """Where it lies already; None if it has yet to be admitted."""
    _check(tx, caller, holder)
    if output.is_pruned(tx, holder.job):
        return _Place(0, is_kept=True)  # nobody will ask for it any more: its holder may forget it
    row = tx.one("artifact", job=holder.job, attempt=holder.attempt, name=offer.name)
    if row is None:
        return None
    same = row["size"] == offer.size and hmac.compare_digest(row["sha256"], offer.sha256)
    if row["kept"] and not same:
        raise Refused(ProblemCode.BAD_CHECKSUM, f"{offer.name} is kept already, with another checksum")
    return _Place(row["id"], is_kept=bool(row["kept"])) if same else None


def _admitted(broker: Broker, tx: Tx, *, caller: Caller, holder: Holder, offer: Offer) -> _Place:
    row = _check(tx, caller, holder)
    known = tx.one("artifact", job=holder.job, attempt=holder.attempt, name=offer.name)
    if known is not None and known["kept"]:
        return _Place(known["id"], is_kept=True)
    begun = tx.one("artifacts_begun", job=holder.job, attempt=holder.attempt, name=offer.name)
    assert begun is not None, "a count is always answered"
    count, total, most = begun["n"] + 1, begun["bytes"] + offer.size, outcome_limits(broker.settings)
    if offer.size > most.artifact_bytes or total > most.artifacts_bytes or count > most.artifacts:
        raise Refused(
            ProblemCode.PAYLOAD_TOO_LARGE,
            f"{offer.name} is more than is kept of a job: {offer.size} bytes, {count} files with {total} bytes",
            hint="JOBD_MAX_ARTIFACT_MB, JOBD_MAX_ARTIFACTS_MB and JOBD_MAX_ARTIFACTS of the broker say how much that is",
        )
    if row["final_size"] is not None and (count > row["artifacts"] or total > row["artifacts_bytes"]):
        raise Refused(ProblemCode.STALE_ASSIGNMENT, "this is more than was announced at the end")
    made = tx.one(
        "begin_artifact",
        job=holder.job,
        attempt=holder.attempt,
        name=offer.name,
        size=offer.size,
        sha256=offer.sha256,
    )
    assert made is not None, "what is not kept may begin anew"
    return _Place(made["id"], is_kept=False, begins=True)


def _keep(tx: Tx, *, caller: Caller, holder: Holder, offer: Offer, number: int) -> None:
    _check(tx, caller, holder)
    if tx.run("keep_artifact", id=number, sha256=offer.sha256):
        tx.run("count_artifacts", job=holder.job, attempt=holder.attempt)
        tx.tell(JobChanged(holder.job))


def artifacts_of(tx: Tx, job: int, attempt: int, most: int = EVERY_ONE) -> list[Artifact]:
    rows = tx.all("artifacts_here", job=job, attempt=attempt, limit=most)
    return [Artifact(name=row["name"], size=row["size"], sha256=row["sha256"]) for row in rows]


async def list_artifacts(broker: Broker, job: int, attempt: int | None) -> ArtifactList:
    """What a delivery left, as far as it is here. Refused: `unknown_job`, `unknown_attempt`, `logs_pruned`."""

    def fn(tx: Tx) -> ArtifactList:
        row = _delivery(tx, job, attempt)
        if row is None:
            return ArtifactList(job=job, attempt=0, artifacts=[], expected=0, complete=False)
        here = artifacts_of(tx, job, row["attempt"])
        announced = row["artifacts"]
        complete = row["final_size"] is not None and len(here) >= announced
        return ArtifactList(job=job, attempt=row["attempt"], artifacts=here, expected=announced, complete=complete)

    return await broker.store.read(fn)


@dataclass(frozen=True, slots=True)
class Opened:
    """The bytes of an artifact, as they are asked for."""

    artifact: Artifact
    pieces: AsyncIterator[bytes]


async def open_artifact(broker: Broker, job: int, name: str, attempt: int | None) -> Opened:
    """One file. Refused: `not_found` besides what `list_artifacts` refuses."""
    try:
        artifact_name(name)
    except ValueError as error:
        raise Refused(ProblemCode.INVALID_REQUEST, str(error), field="name") from None

    def fn(tx: Tx) -> tuple[int, int, Artifact] | None:
        row = _delivery(tx, job, attempt)
        found = tx.one("artifact", job=job, attempt=row["attempt"], name=name) if row is not None else None
        if row is None or found is None or not found["kept"]:
            return None
        return row["attempt"], found["id"], Artifact(name=name, size=found["size"], sha256=found["sha256"])

    found = await broker.store.read(fn)
    if found is None:
        raise _no_artifact(job, name)
    of_attempt, number, artifact = found
    stack = ExitStack()
    try:
        file = stack.enter_context(broker.artifacts.opened(job, of_attempt, number))
    except FileNotFoundError:
        raise _no_artifact(job, name) from None

    async def pieces() -> AsyncIterator[bytes]:
        with stack:
            while piece := await anyio.to_thread.run_sync(file.read, PIECE_BYTES):
                yield piece

    return Opened(artifact, pieces())


def _no_artifact(job: int, name: str) -> Refused:
    hint = f"job artifacts {job} lists what is here"
    return Refused(ProblemCode.NOT_FOUND, f"job {job} has no artifact {name}", field="name", hint=hint)


def _delivery(tx: Tx, job: int, attempt: int | None) -> Row | None:
    """The delivery that is meant; None if there was none yet."""
    known = read_job(tx, job)
    if known is None:
        raise unknown_job(tx, job)
    if output.is_pruned(tx, job):
        raise output.pruned(job)
    wanted = attempt if attempt is not None else known.attempt
    if wanted == 0:
        return None
    row = tx.one("assignment_of_job", job=job, attempt=wanted)
    if row is None:
        raise Refused(
            ProblemCode.UNKNOWN_ATTEMPT,
            f"job {job} has no attempt {wanted}",
            field="attempt",
            hint=f"attempts so far: {known.attempt}",
        )
    return row
