"""The output of jobs: taken from its holder by offset, shown to whoever asks."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import anyio
import anyio.to_thread

from broker.core.fence import Standing, standing
from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import TERMINAL
from broker.logs import excerpt, following, reading, rendering, searching
from broker.logs.files import Appended, Gap, Part
from broker.logs.index import Stream
from broker.logs.reading import View
from broker.service.context import Broker, Caller
from broker.service.registration import known_worker, speaks_for
from broker.service.rows import assignment_row, read_job, unknown_job
from broker.store.contract import Row, Tx
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState
from broker.wire.workers import LogSize

MOST_IN_ONE_CHUNK = 1 << 20
DEFAULT_LINES = 100
FOLLOW_BYTES = 64 * 1024
FOLLOW_LOOKS_AGAIN_S = 5.0
TAIL_AWAITED_S = 1.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who offers bytes: checked like every other write of a worker."""

    worker: str
    epoch: int
    job: int
    attempt: int
    token: str


@dataclass(frozen=True, slots=True)
class _Gate:
    """What a holder may still write: any byte while live, up to what it declared once it has ended."""

    final_size: int | None
    pruned: bool = False


async def append(
    broker: Broker,
    caller: Caller,
    holder: Holder,
    part: Part,
    offset: int,
    crc32: int,
    data: bytes,
    end: int | None = None,
) -> LogSize:
    """Keep `data` at `offset`. What is there already is skipped; a gap is refused with the size to go on from.

    Refused: `stale_assignment` and `lease_lost` by the fence, `bad_checksum`, `offset_gap`, `payload_too_large`.
    Once the size that the holder declared is reached, the file is synced and `durable` says so. `end`: all that
    it has. When that is here, what was declared beyond it was lost in a power cut: it is told as missing, and nobody
    waits for it.
    """
    if len(data) > MOST_IN_ONE_CHUNK:
        raise Refused(ProblemCode.PAYLOAD_TOO_LARGE, f"a chunk is at most {MOST_IN_ONE_CHUNK} bytes")
    gate = await broker.store.read(lambda tx: _gate(tx, caller, holder, part))
    # A question, without bytes, may come from beyond: a power cut took from the worker what the broker has already.
    if data and gate.final_size is not None and offset + len(data) > gate.final_size:
        raise Refused(ProblemCode.STALE_ASSIGNMENT, "these bytes lie beyond the size that was declared at the end")

    if gate.pruned:  # nobody will ask for these bytes any more: their holder may forget them
        return LogSize(size=gate.final_size or 0, durable=gate.final_size or 0, duplicate=True)

    def write() -> tuple[Appended, int]:
        if zlib.crc32(data) != crc32:
            raise Refused(ProblemCode.BAD_CHECKSUM, "the bytes do not match their checksum", retryable=True)
        done = broker.logs.append(holder.job, holder.attempt, part, offset, data)
        whole = gate.final_size is not None and done.size >= min(
            gate.final_size, end if end is not None else gate.final_size
        )
        return done, broker.logs.sync(holder.job, holder.attempt, part) if whole else 0

    try:
        done, durable = await anyio.to_thread.run_sync(write)
    except Gap as gap:
        raise Refused(
            ProblemCode.OFFSET_GAP, f"the broker has {gap.size} bytes", size=gap.size, retryable=True
        ) from None
    if end is not None and gate.final_size is not None and end <= done.size < gate.final_size:
        await broker.store.run(partial(_ends_early, holder=holder, part=part, size=done.size))
    broker.wake.log_grew(holder.job)
    return LogSize(size=done.size, durable=durable, duplicate=done.duplicate)


def _ends_early(tx: Tx, *, holder: Holder, part: Part, size: int) -> None:
    if part == "log":
        tx.run("log_ends_early", job=holder.job, attempt=holder.attempt, token=holder.token, size=size)
    else:
        tx.run("index_ends_early", job=holder.job, attempt=holder.attempt, token=holder.token, size=size)


def _gate(tx: Tx, caller: Caller, holder: Holder, part: Part) -> _Gate:
    job, assignment, _ = held(tx, caller, holder)
    final_size = assignment.final_size if part == "log" else assignment.final_index_size
    stands = standing(job, assignment)
    if stands is Standing.LIVE:
        return _Gate(None)
    if final_size is not None:
        # Its own final report ended it: the tail may still come.
        return _Gate(final_size, is_pruned(tx, holder.job))
    raise refused(stands)


def held(tx: Tx, caller: Caller, holder: Holder) -> tuple[JobRow, AssignmentRow, Row]:
    """The delivery that this holder names, if it is its own, by name, epoch and token."""
    if caller.worker != holder.worker:
        speaks_for(tx, caller, holder.worker)
    known_worker(tx, holder.worker, holder.epoch)
    row = tx.one("assignment_of_job", job=holder.job, attempt=holder.attempt)
    job = read_job(tx, holder.job)
    if row is None or job is None or row["token"] != holder.token or row["worker"] != holder.worker:
        raise Refused(ProblemCode.STALE_ASSIGNMENT, "this worker does not hold that assignment")
    return job, assignment_row(row), row


def refused(stands: Standing) -> Refused:
    """The answer to bytes of a delivery that its holder has no right to any more."""
    if stands is Standing.LOST:
        return Refused(ProblemCode.LEASE_LOST, "the lease of this assignment was lost", hint="send the held list")
    return Refused(ProblemCode.STALE_ASSIGNMENT, "this assignment is over", hint="stop the process and drop the spool")


@dataclass(frozen=True, slots=True)
class Question:
    """Which part of the output: the end (`tail`, the default), the beginning, a page from `cursor`, or matches."""

    attempt: int | None = None
    tail: int | None = None
    head: int | None = None
    grep: str | None = None
    context: int = 0
    cursor: int | None = None
    stream: Literal["stdout", "stderr"] | None = None
    raw: bool = False

    def check(self) -> None:
        """Refuse what would be ignored: nothing is accepted and then without effect."""
        leads = [name for name in ("tail", "head", "grep", "raw") if getattr(self, name)]
        if len(leads) > 1:
            raise Refused(
                ProblemCode.INVALID_REQUEST,
                f"{' and '.join(leads)} don't go together",
                field=leads[1],
                hint="give one of them",
            )
        if self.context and self.grep is None:
            raise Refused(ProblemCode.INVALID_REQUEST, "context goes with grep", field="context")
        if self.tail is not None and self.cursor is not None:
            raise Refused(
                ProblemCode.INVALID_REQUEST,
                "tail and cursor don't go together",
                field="tail",
                hint="head with cursor sets how many lines",
            )


@dataclass(frozen=True, slots=True)
class Shown:
    """Text for reading. The rest says which bytes it covers, and where to go on."""

    text: str
    job: int
    attempt: int
    start: int
    end: int
    size: int
    next_cursor: int
    complete: bool


async def settled(broker: Broker, job: int, attempt: int | None = None, within_s: float = TAIL_AWAITED_S) -> None:
    """Give the tail of an assignment that has ended a moment to arrive: its end may overtake its last lines."""
    deadline = broker.clock.boot_s() + within_s
    with broker.wake.watch_jobs((job,)) as watch:
        while not broker.wake.closed:
            found = await broker.store.read(partial(_found, job=job, attempt=attempt))
            if found.final_size is None or found.pruned:
                return
            if await anyio.to_thread.run_sync(_all_here, broker, found):
                return
            left_s = deadline - broker.clock.boot_s()
            if left_s <= 0 or not await watch.wait(left_s):
                return


def _all_here(broker: Broker, found: Found) -> bool:
    size = broker.logs.size(found.job, found.attempt)
    return found.complete(size, broker.logs.size(found.job, found.attempt, "index"))


async def show(broker: Broker, job: int, question: Question) -> Shown:
    """Output for a reader with little room: cleaned, cut, with a last line that says how to go on."""
    await settled(broker, job, question.attempt)
    found = await broker.store.read(lambda tx: _found(tx, job, question.attempt))
    if found.pruned:
        raise pruned(job)
    if found.attempt == 0:
        return Shown(f"[job {job}: no output yet; it is {found.state}]\n", job, 0, 0, 0, 0, 0, complete=False)

    def read() -> tuple[rendering.Rendered, View]:
        view = _view(broker, found, question)
        rendered = rendering.render(
            view,
            label=f"{job}.{found.attempt}",
            call=f"job_logs job={job}{_attempt(question)}",
            dropped=found.dropped,
        )
        return rendered, view

    try:
        rendered, view = await anyio.to_thread.run_sync(read)
    except searching.BadPattern as error:
        raise Refused(ProblemCode.INVALID_REQUEST, str(error), field="grep") from None
    return Shown(
        rendered.text, job, found.attempt, rendered.start, rendered.end, view.size, rendered.next_cursor, view.complete
    )


@dataclass(frozen=True, slots=True)
class Raw:
    """Exact bytes of the log between two offsets; of one stream they are fewer than the offsets span."""

    data: bytes
    end: int
    size: int
    complete: bool


async def raw(broker: Broker, job: int, question: Question, limit: int) -> Raw:
    """Exact bytes from the question's cursor on."""
    await settled(broker, job, question.attempt)
    found = await broker.store.read(lambda tx: _found(tx, job, question.attempt))
    offset = question.cursor or 0
    if found.pruned:
        raise pruned(job)
    if found.attempt == 0:
        return Raw(b"", offset, 0, complete=False)

    def read() -> Raw:
        with broker.logs.opened(job, found.attempt) as snapshot:
            complete = found.complete(snapshot.size, snapshot.index_size)
            if question.stream is None:
                data = snapshot.read(offset, limit)
                return Raw(data, offset + len(data), snapshot.size, complete)
            new = reading.changes(snapshot, offset, limit, stream=Stream(question.stream), complete=complete)
            return Raw(new.data, new.end, snapshot.size, complete)

    return await anyio.to_thread.run_sync(read)


@dataclass(frozen=True, slots=True)
class Found:
    """One assignment whose output is asked for. Attempt 0: there was none yet."""

    job: int
    attempt: int
    state: JobState
    newest: int
    final_size: int | None
    final_index_size: int | None
    over: bool  # this assignment will write no more
    dropped: int = 0  # bytes of output that were not kept
    pruned: bool = False  # and all of it was removed since

    def complete(self, size: int, index_size: int) -> bool:
        """All that was written is here, and told apart."""
        return is_complete(self.final_size, self.final_index_size, size, index_size)


def _found(tx: Tx, job: int, attempt: int | None) -> Found:
    row = read_job(tx, job)
    if row is None:
        raise unknown_job(tx, job)
    wanted = attempt if attempt is not None else row.attempt
    if wanted == 0:
        return Found(job, 0, row.state, 0, None, None, row.state in TERMINAL)
    assignment = tx.one("assignment_of_job", job=job, attempt=wanted)
    if assignment is None:
        raise Refused(
            ProblemCode.UNKNOWN_ATTEMPT,
            f"job {job} has no attempt {wanted}",
            field="attempt",
            hint=f"attempts so far: {row.attempt}",
        )
    live = assignment["state"] in ("pending", "acked", "started")
    return Found(
        job,
        wanted,
        row.state,
        row.attempt,
        assignment["final_size"],
        assignment["final_index_size"],
        not live,
        assignment["dropped"],
        is_pruned(tx, job),
    )


def is_pruned(tx: Tx, job: int) -> bool:
    row = tx.one("logs_kept", job=job)
    return row is not None and not row["logs_kept"]


def is_complete(final_size: int | None, final_index_size: int | None, size: int, index_size: int) -> bool:
    """Whether the broker has all output that its holder declared. The index is a part of it: it tells the streams apart."""
    return final_size is not None and size >= final_size and index_size >= (final_index_size or 0)


def pruned(job: int) -> Refused:
    return Refused(
        ProblemCode.LOGS_PRUNED,
        f"the output of job {job} was removed",
        field="job",
        hint="it is kept JOBD_KEEP_LOGS_S after a job's end",
    )


def _view(broker: Broker, found: Found, question: Question) -> View:
    stream = Stream(question.stream) if question.stream else None
    with broker.logs.opened(found.job, found.attempt) as snapshot:
        complete = found.complete(snapshot.size, snapshot.index_size)
        if question.grep is not None:
            request = searching.Request(
                question.grep, question.context, question.cursor or 0, stream=stream, complete=complete
            )
            return searching.grep(snapshot, request)
        if question.cursor is not None:
            count = question.head or DEFAULT_LINES
            return reading.page(snapshot, question.cursor, count, stream=stream, complete=complete)
        if question.head is not None:
            return reading.head(snapshot, question.head, stream=stream, complete=complete)
        return reading.tail(snapshot, question.tail or DEFAULT_LINES, stream=stream, complete=complete)


def _attempt(question: Question) -> str:
    return f" attempt={question.attempt}" if question.attempt is not None else ""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of one stream. `end` is the offset to resume from, within `attempt`."""

    attempt: int
    start: int
    end: int
    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """Following is over: the job has ended, and all output that can come has come."""

    state: JobState
    exit_code: int | None
    complete: bool


async def follow(
    broker: Broker, job: int, attempt: int, offset: int, gone: Callable[[], Awaitable[bool]], linger_s: float
) -> AsyncIterator[Piece | End | None]:
    """Output as it arrives, over all attempts from (`attempt`, `offset`) on; None is a sign of life.

    Ends in every kind of end. After the job's end a missing tail is awaited for `linger_s`, no longer.
    No transaction is open between two looks.
    """
    ended_at: float | None = None
    with broker.wake.watch_jobs((job,)) as watch:
        while not broker.wake.closed:
            found = await broker.store.read(lambda tx: _found(tx, job, None))
            if found.attempt == 0 and found.over:
                yield End(found.state, None, complete=True)
                return
            attempt = attempt or min(1, found.attempt)
            while attempt and attempt <= found.newest:
                this = await broker.store.read(partial(_found, job=job, attempt=attempt))
                over = attempt < found.newest  # its job went on: nobody waits for an earlier attempt's tail
                async for piece in _pieces(broker, this, offset, whole=over):
                    offset = piece.end
                    yield piece
                if not over:
                    break
                attempt, offset = attempt + 1, 0
            if found.state in TERMINAL and attempt in (0, found.newest):
                ended_at = ended_at if ended_at is not None else broker.clock.boot_s()
                complete = found.final_size is not None and offset >= found.final_size
                if complete or found.final_size is None or broker.clock.boot_s() - ended_at >= linger_s:
                    async for piece in _pieces(broker, found, offset, whole=True):
                        offset = piece.end
                        yield piece
                    yield await _end(
                        broker, job, complete=offset >= (found.final_size or 0) and (complete or offset == 0)
                    )
                    return
            else:
                ended_at = None
            if not await watch.wait(min(FOLLOW_LOOKS_AGAIN_S, linger_s)):
                if await gone():
                    return
                yield None


async def _pieces(broker: Broker, found: Found, offset: int, *, whole: bool) -> AsyncIterator[Piece]:
    """What is there beyond `offset`, in the order of arrival, as runs of one stream.

    What the index does not tell apart yet is held back, unless `whole`: then no more of it is awaited.
    """
    while True:
        pieces = await anyio.to_thread.run_sync(partial(_next_pieces, broker, found, offset, whole=whole))
        if not pieces:
            return
        for piece in pieces:
            offset = piece.end
            yield piece


def _next_pieces(broker: Broker, found: Found, offset: int, *, whole: bool) -> list[Piece]:
    with broker.logs.opened(found.job, found.attempt) as snapshot:
        whole = whole or found.complete(snapshot.size, snapshot.index_size)
        runs = following.runs(snapshot, offset, FOLLOW_BYTES, whole=whole)
        return [
            Piece(found.attempt, run.start, run.end, run.stream, snapshot.read(run.start, run.end - run.start))
            for run in runs
        ]


async def _end(broker: Broker, job: int, *, complete: bool) -> End:
    row = await broker.store.read(lambda tx: read_job(tx, job))
    assert row is not None
    return End(row.state, row.exit_code, complete)


async def tail_text(broker: Broker, job: int, attempt: int, lines: int, budget: int) -> str | None:
    """The last lines of an attempt, for the answer of a wait. None where nothing was written."""
    if attempt == 0:
        return None

    def read() -> str | None:
        with broker.logs.opened(job, attempt) as snapshot:
            if snapshot.size == 0:
                return None
            view = reading.tail(snapshot, lines, complete=True)
            return excerpt.excerpt(view, budget)

    return await anyio.to_thread.run_sync(read)
