"""A worker that sends its output over a bad line to a broker whose machine may lose its power."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from broker.logs import index, reading
from broker.logs.files import Part
from broker.logs.index import Segment, Stream
from broker.service import cancel, exchange, output, registration, submit
from broker.wire.jobs import CancelRequest, Submission
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.states import JobState
from broker.wire.workers import (
    PROTOCOL,
    Ack,
    Delivery,
    Final,
    Finish,
    Held,
    LogSize,
    Outcome,
    Phase,
    Poll,
    PollAnswer,
    Registration,
    Report,
    Start,
    Transition,
)
from support.machines.world import OPERATOR, World

LEASE_S, SWEEP_S = 60.0, 5.0
PARTS: tuple[Part, ...] = ("log", "index")

number = st.integers(0, 1_000_000)


class Disk:
    """Which bytes were synced: all that a loss of power leaves for certain."""

    def __init__(self) -> None:
        self._synced: dict[int, int] = {}
        self._fsync = os.fsync

    @contextmanager
    def watched(self) -> Iterator[None]:
        os.fsync = self._watch
        try:
            yield
        finally:
            os.fsync = self._fsync

    def _watch(self, handle: int) -> None:
        self._fsync(handle)
        found = os.fstat(handle)
        self._synced[found.st_ino] = found.st_size

    def synced(self, handle: int) -> int:
        return self._synced.get(os.fstat(handle).st_ino, 0)


class Bench:
    """One broker and two workers for many stories, each of a job of its own. A story that fails leaves it unusable."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self.world = World(BrokerSettings.model_validate({"lease_s": LEASE_S, "sweep_s": SWEEP_S}))
        self.disk = Disk()
        self.workers = [Sender(self.world, digit * 32) for digit in "ab"]
        self.in_use = False

    def begins(self) -> None:
        if self.in_use:
            self.close()
            self._open()
        self.in_use = True

    def close(self) -> None:
        self.world.close()


class Sender:
    """What one worker says: exchanges with a list of what it holds, and bytes."""

    def __init__(self, world: World, id_: str) -> None:
        self.world, self.id = world, id_
        self.seq = self.seen = 0
        self.held: dict[tuple[int, int], Held] = {}
        said = Registration(
            name=id_[0], epoch=1, machine=f"{id_}:boot", host=id_, version="0", protocol=PROTOCOL, slots=1
        )
        world.call(registration.register(world.broker, OPERATOR, id_, said))

    def poll(self) -> Delivery:
        """Take the one job that waits."""
        head = self._head()
        asked = Poll(**head, wait_s=0)
        answer: PollAnswer = self.world.call(
            exchange.poll(self.world.broker, OPERATOR, self.id, asked, exchange.Client(_never, _waits))
        )
        self.seen = answer.number or self.seen
        (delivery,) = answer.deliveries
        self.hold(delivery, Phase.PREPARING)
        return delivery

    def hold(self, delivery: Delivery, phase: Phase, final: Final | None = None) -> None:
        key = (delivery.job, delivery.attempt)
        self.held[key] = Held(
            job=delivery.job, attempt=delivery.attempt, token=delivery.token, phase=phase, final=final
        )

    def report(self, *transitions: Transition) -> list[str]:
        said = Report(**self._head(), transitions=list(transitions))
        answer = self.world.call(exchange.report(self.world.broker, OPERATOR, self.id, said))
        return [verdict.verdict.value for verdict in answer.verdicts[: len(transitions)]]

    def runs(self) -> Delivery:
        delivery = self.poll()
        named: dict[str, Any] = {"job": delivery.job, "attempt": delivery.attempt, "token": delivery.token}
        assert self.report(Ack(kind="ack", **named, shim="s")) == ["accepted"]
        self.hold(delivery, Phase.RUNNING)
        assert self.report(Start(kind="start", **named)) == ["accepted"]
        return delivery

    def _head(self) -> dict[str, Any]:
        self.seq += 1
        return {
            "epoch": 1,
            "seq": self.seq,
            "seen": self.seen,
            "recovered": True,
            "held": list(self.held.values()),
        }


async def _never() -> bool:
    return False


async def _waits() -> None:
    await asyncio.Event().wait()


@dataclass
class Written:
    """One part of the output: what the process wrote, and how far sender and broker are."""

    source: bytes = b""
    cursor: int = 0
    promised: int = 0
    """Durable, the broker said: the worker may have dropped these bytes."""
    final: int | None = None


@dataclass(frozen=True)
class Chunk:
    part: Part
    offset: int
    data: bytes
    crc32: int
    token: str
    epoch: int


@dataclass
class Expected:
    """How a chunk must be answered: a refusal, or the size after it."""

    code: ProblemCode | None
    size: int = 0
    duplicate: bool = False


def log_protocol(bench: Bench) -> type[RuleBasedStateMachine]:
    """The machine, over a bench that its stories share."""

    class LogProtocol(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            bench.begins()
            self.world = bench.world
            self.worker, self.other = bench.workers
            self.streams: dict[Part, Written] = {part: Written() for part in PARTS}
            self.old: list[Chunk] = []
            self.phase = "live"
            self.sound = True
            for worker in bench.workers:
                worker.report()
            said = self.world.call(submit.submit(self.world.broker, OPERATOR, Submission(command="true")))
            assert said.id is not None
            self.job = said.id
            self.delivery = self.worker.runs()
            self._watched = bench.disk.watched()
            self._watched.__enter__()

        def teardown(self) -> None:
            """The next story finds both workers with nothing in their hands, and no job that waits."""
            self._watched.__exit__(None, None, None)
            if self.phase != "ended":
                for worker in bench.workers:
                    worker.held.clear()
                    worker.report()
                request = CancelRequest(job=[self.job], force=True)
                said = self.world.call(cancel.cancel(self.world.broker, OPERATOR, request))
                assert said.jobs[0].state is JobState.CANCELLED
            bench.in_use = not self.sound

        # ---- what the worker does

        @precondition(lambda self: self.phase in ("live", "lost"))
        @rule(data=st.binary(min_size=1, max_size=40), stream=st.sampled_from([1, 2]))
        def the_process_prints(self, data: bytes, stream: int) -> None:
            log, rows = self.streams["log"], self.streams["index"]
            rows.source += index.row(Segment(len(log.source), len(data), stream, 1.5))
            log.source += data

        @rule(part=st.sampled_from(PARTS), length=st.integers(0, 64), fate=st.sampled_from(["arrives", "lost"]))
        def the_worker_sends(self, part: Part, length: int, fate: str) -> None:
            stream = self.streams[part]
            data = stream.source[stream.cursor : stream.cursor + length]
            answer = self._offer(self._chunk(part, stream.cursor, data))
            if fate == "arrives":
                self._hears(part, answer)

        @rule(part=st.sampled_from(PARTS), where=number, length=st.integers(0, 64))
        def bytes_arrive_from_anywhere(self, part: Part, where: int, length: int) -> None:
            """A part that is there, or overlaps the end, or leaves a gap."""
            source = self.streams[part].source
            offset = where % (len(source) + 8)
            self._offer(self._chunk(part, offset, source[offset : offset + length]))

        @precondition(lambda self: self.old)
        @rule(which=number)
        def a_late_double_arrives(self, which: int) -> None:
            self._offer(self.old[which % len(self.old)])

        @rule(part=st.sampled_from(PARTS), wrong=st.sampled_from(["checksum", "token", "epoch"]))
        def a_chunk_is_wrong(self, part: Part, wrong: str) -> None:
            stream = self.streams[part]
            data = stream.source[stream.cursor : stream.cursor + 8] or b"?"
            good = self._chunk(part, self._size(part), data)
            chunk = Chunk(
                part,
                good.offset,
                b"\xff" + data[1:] if wrong == "checksum" else data,
                zlib.crc32(b"\x00" + data[1:]) if wrong == "checksum" else good.crc32,
                "guessed" if wrong == "token" else good.token,
                2 if wrong == "epoch" else 1,
            )
            answer = self._offered(chunk, self.worker.id)
            assert isinstance(answer, Refused), "a wrong chunk was taken"
            told = {"checksum": {ProblemCode.BAD_CHECKSUM, *_NOT_HIS}, "token": {ProblemCode.STALE_ASSIGNMENT}}
            assert answer.code in told.get(wrong, {ProblemCode.UNKNOWN_WORKER}), answer
            self._exact()

        @rule()
        def another_worker_sends_his_bytes(self) -> None:
            answer = self._offered(self._chunk("log", self._size("log"), b"stranger"), self.other.id)
            assert isinstance(answer, Refused) and answer.code is ProblemCode.STALE_ASSIGNMENT
            self._exact()

        @rule(part=st.sampled_from(PARTS))
        def the_worker_restarts_and_asks(self, part: Part) -> None:
            answer = self._offer(self._chunk(part, 0, b""))
            if isinstance(answer, LogSize):
                assert answer.size == self._size(part)
            self._hears(part, answer)

        @precondition(lambda self: self.phase in ("live", "lost"))
        @rule(in_the_list=st.booleans(), short=st.sampled_from([0, 0, 3]))
        def the_process_ends(self, in_the_list: bool, short: int) -> None:
            """Its end is told with the sizes: no byte beyond them counts any more. `short`: bytes that are not kept."""
            for stream in self.streams.values():
                stream.final = len(stream.source) - (short if stream is self.streams["log"] else 0)
                stream.final = max(stream.final, 0)
            log, rows = self.streams["log"], self.streams["index"]
            over = [part for part in PARTS if self._size(part) > (self.streams[part].final or 0)]
            if over:  # it never declares less than it has sent
                log.final, rows.final = len(log.source), len(rows.source)
            assert log.final is not None and rows.final is not None
            final = Final(
                outcome=Outcome.EXITED, exit_code=0, final_size=log.final, final_index_size=rows.final, dropped=short
            )
            named: dict[str, Any] = {"job": self.job, "attempt": self.delivery.attempt, "token": self.delivery.token}
            if in_the_list:
                self.worker.hold(self.delivery, Phase.ENDED, final)
                self.worker.report()
                del self.worker.held[self.job, self.delivery.attempt]
            else:
                del self.worker.held[self.job, self.delivery.attempt]
                assert self.worker.report(Finish(kind="finish", **named, final=final)) == ["accepted"]
            self.phase = "ended"

        # ---- what becomes of the assignment

        @precondition(lambda self: self.phase == "live")
        @rule()
        def its_lease_ends(self) -> None:
            for _ in range(7):
                self.world.clock.pass_s(2 * SWEEP_S)
                self.other.report()
                self.world.sweep()
            self.phase = "lost"

        @precondition(lambda self: self.phase == "lost")
        @rule(another=st.booleans())
        def it_is_decided_whose_it_is(self, another: bool) -> None:
            if another:
                self.other.runs()
                self.phase = "stale"
            else:
                self.worker.report()
                self.phase = "live"

        # ---- what becomes of the broker

        @rule(keeps=number, torn=st.sampled_from(PARTS))
        def the_power_is_lost(self, keeps: int, torn: Part) -> None:
            """What was synced is there, and any part of the rest."""
            for part in PARTS:
                with self._file(part) as file:
                    if file is None:
                        continue
                    size, synced = os.fstat(file).st_size, bench.disk.synced(file)
                    os.ftruncate(file, synced + keeps % (size - synced + 1) if part == torn else size)
            for part, stream in self.streams.items():
                assert self._size(part) >= stream.promised, f"{stream.promised} bytes of {part} were called durable"
            self._exact()

        @rule(part=st.sampled_from(PARTS), kept=st.integers(1, 30))
        def the_broker_is_killed_in_mid_write(self, part: Part, kept: int) -> None:
            """A part of a chunk that it had taken is in the file; nobody was told."""
            stream = self.streams[part]
            if self._expected(self._chunk(part, self._size(part), b"")).code is not None:
                return
            end = len(stream.source) if stream.final is None else stream.final
            with self._file(part) as file:
                if file is not None:
                    size = os.fstat(file).st_size
                    os.pwrite(file, stream.source[size : min(size + kept, end)], size)
            self._exact()

        # ---- what readers see

        @rule(cursor=number, limit=st.integers(4, 64), which=st.sampled_from([None, "stdout", "stderr"]))
        def somebody_reads(self, cursor: int, limit: int, which: str | None) -> None:
            """From any cursor on: the very bytes, in order, and the end of it only when all is there."""
            log = self.streams["log"]
            size = self._size("log")
            offset = cursor % (size + 4)
            rows, all_here = self.streams["index"], log.final is not None and size >= log.final
            all_here &= self._size("index") >= (rows.final or 0)
            if which is not None:
                with self.world.broker.logs.opened(self.job, self.delivery.attempt) as snapshot:
                    new = reading.changes(snapshot, offset, limit, stream=Stream(which), complete=all_here)
                assert new.start <= min(offset, new.end) and new.end <= size and len(new.data) <= limit
                assert new.data == self._of_stream(Stream(which).number, new.start, new.end)
            elif log.final is None or all_here:  # else the broker would wait a moment for the rest
                question = output.Question(cursor=offset, attempt=self.delivery.attempt)
                shown = self.world.call(output.raw(self.world.broker, self.job, question, limit))
                assert shown.data == log.source[offset : min(offset + limit, size)]
                assert (shown.end, shown.size, shown.complete) == (offset + len(shown.data), size, all_here)

        def _of_stream(self, stream: int, start: int, end: int) -> bytes:
            rows = self.streams["index"].source
            found = b""
            for at in range(0, self._size("index") // index.ROW.size * index.ROW.size, index.ROW.size):
                offset, length, of, _ = index.ROW.unpack_from(rows, at)
                if of == stream:
                    found += self.streams["log"].source[max(offset, start) : max(start, min(offset + length, end))]
            return found

        # ---- one way to do each

        def _chunk(self, part: Part, offset: int, data: bytes) -> Chunk:
            return Chunk(part, offset, data, zlib.crc32(data), self.delivery.token, 1)

        def _offer(self, chunk: Chunk) -> LogSize | Refused:
            """By its holder; the answer is what it must be."""
            self.old.append(chunk)
            del self.old[:-20]
            expected = self._expected(chunk)
            answer = self._offered(chunk, self.worker.id)
            if isinstance(answer, Refused):
                assert answer.code is expected.code, f"{answer}, expected {expected}"
                if answer.code is ProblemCode.OFFSET_GAP:
                    assert answer.size == self._size(chunk.part), "a gap is refused with the size to go on from"
            else:
                assert expected.code is None, f"{answer}, expected {expected}"
                assert (answer.size, answer.duplicate) == (expected.size, expected.duplicate)
                assert answer.size == self._size(chunk.part)
                stream = self.streams[chunk.part]
                whole = stream.final is not None and answer.size >= stream.final
                assert answer.durable == (answer.size if whole else 0)
                stream.promised = max(stream.promised, answer.durable)
            self._exact()
            return answer

        def _expected(self, chunk: Chunk) -> Expected:
            stream, size, end = self.streams[chunk.part], self._size(chunk.part), chunk.offset + len(chunk.data)
            if self.phase in ("lost", "stale"):
                lost = self.phase == "lost"
                return Expected(ProblemCode.LEASE_LOST if lost else ProblemCode.STALE_ASSIGNMENT)
            if self.phase == "ended" and chunk.data and end > (stream.final or 0):  # a question may come from anywhere
                return Expected(ProblemCode.STALE_ASSIGNMENT)
            if chunk.offset > size:
                return Expected(ProblemCode.OFFSET_GAP)
            return Expected(None, max(size, end), duplicate=end <= size)

        def _offered(self, chunk: Chunk, worker: str) -> LogSize | Refused:
            holder = output.Holder(worker, chunk.epoch, self.job, self.delivery.attempt, chunk.token)
            broker = self.world.broker
            try:
                return self.world.call(
                    output.append(broker, OPERATOR, holder, chunk.part, chunk.offset, chunk.crc32, chunk.data)
                )
            except Refused as refused:
                return refused

        def _hears(self, part: Part, answer: LogSize | Refused) -> None:
            if isinstance(answer, LogSize):
                self.streams[part].cursor = answer.size
            elif answer.code is ProblemCode.OFFSET_GAP:
                assert answer.size is not None
                self.streams[part].cursor = answer.size

        def _size(self, part: Part) -> int:
            return self.world.broker.logs.size(self.job, self.delivery.attempt, part)

        @contextmanager
        def _file(self, part: Part) -> Iterator[int | None]:
            path = self.world.log_path(self.job, self.delivery.attempt, part)
            if not path.exists():
                yield None
                return
            handle = os.open(path, os.O_RDWR)
            try:
                yield handle
            finally:
                os.close(handle)

        def _exact(self) -> None:
            for part, stream in self.streams.items():
                size = self._size(part)
                kept = self.world.broker.logs.read(self.job, self.delivery.attempt, 0, size + 1, part)
                assert stream.source.startswith(kept), f"{part} is not what was written"
                assert stream.final is None or len(kept) <= stream.final
                assert len(kept) >= stream.promised, "durable bytes are gone"

    return LogProtocol


_NOT_HIS = {ProblemCode.STALE_ASSIGNMENT, ProblemCode.LEASE_LOST}
