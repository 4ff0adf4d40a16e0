"""What a worker says, and what it is told: registration, polls, reports.

Every exchange carries the worker's full list of held assignments. It is level-triggered: a message that
was lost is healed by the next one. Each write passes the fence; a stale worker changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import structlog

from broker.core.ending import executed, final_cause, implies_start, loss, reason_of
from broker.core.fence import Standing, standing
from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import LIVE, Cause, Facts, Illegal
from broker.service import dispatch
from broker.service.context import Broker, Caller
from broker.service.rows import assignment_row, read_job
from broker.service.transition import apply, decide, event
from broker.service.wake import JobReady, ListVoid, Parked
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import AssignmentState, OnWorkerLost, Scope
from broker.wire.workers import (
    Ack,
    Delivery,
    Exchange,
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
    Stop,
    Transition,
    Verdict,
    VerdictWord,
)

log = structlog.get_logger("broker.exchange")

# Refusals of these kinds hold for the job's directory and environment; any other is the worker's own trouble.
PLACE_CODES = ("cwd_", "venv_", "conda_")


async def register(broker: Broker, caller: Caller, worker_id: str, said: Registration) -> Registered:
    """A worker process announces itself.

    Refused: an epoch that is not above the known one (`superseded`), the same worker id from another
    machine or boot while its lease is live (a cloned state directory), another id under a live name
    (`worker_name_taken`). A repeat of the accepted registration is answered the same.
    """

    def fn(tx: Tx) -> None:
        speaks_for(tx, caller, worker_id)
        known = tx.one("worker", worker=worker_id)
        if known is not None and known["epoch"] == said.epoch and known["machine"] == said.machine:
            return  # the answer was lost on the way
        _admit_epoch(known, said)
        _admit_name(tx, worker_id, said.name)
        tx.run(
            "register_worker",
            id=worker_id,
            name=said.name,
            epoch=said.epoch,
            machine=said.machine,
            host=said.host,
            version=said.version,
            platform=said.platform,
            slots=said.slots,
            tags=json.dumps(sorted(set(said.tags))),
            supervision=json.dumps(said.supervision),
            now=tx.now_ms,
            lease_until=broker.listening.now_ms() + broker.lease_ms,
        )
        tx.run("forget_refusals", worker=worker_id, now=tx.now_ms)
        event(
            tx,
            EventType.WORKER_REGISTERED,
            worker=said.name,
            actor=caller.actor,
            data={"epoch": said.epoch, "host": said.host, "version": said.version},
        )
        tx.tell(ListVoid(worker_id))
        tx.tell(JobReady())

    await broker.store.run(fn)
    return Registered(
        installation=broker.installation,
        worker=said.name,
        epoch=said.epoch,
        lease_s=broker.settings.lease_s,
        heartbeat_s=broker.heartbeat_s,
        exclusive_lease_s=broker.settings.exclusive_lease_s,
        poll_s=broker.settings.poll_s,
    )


async def report(broker: Broker, caller: Caller, worker_id: str, said: Report) -> ReportAnswer:
    """Transitions and the held list; a verdict for each."""

    def fn(tx: Tx) -> ReportAnswer:
        speaks_for(tx, caller, worker_id)
        heard = _Exchange(tx, broker, worker_id, said)
        heard.listen(said.transitions)
        return ReportAnswer(verdicts=heard.verdicts, stops=heard.stops())

    return await decide(broker.store, fn)


async def poll(
    broker: Broker, caller: Caller, worker_id: str, said: Poll, gone: Callable[[], Awaitable[bool]]
) -> PollAnswer:
    """The held list in; assignments, stops and verdicts out. Parked while there is nothing to say.

    `gone` tells whether the client has left: nothing is claimed for it then. A poll whose list is older
    than one already used is answered with nothing, never parked.
    """
    mark = broker.wake.mark(worker_id)

    def fn(tx: Tx) -> tuple[PollAnswer, bool]:
        speaks_for(tx, caller, worker_id)
        heard = _Exchange(tx, broker, worker_id, said)
        heard.listen(())
        if not heard.fresh:
            return PollAnswer(), False
        stops = heard.stops()
        number, deliveries = heard.deliveries(claims=said.accept)
        urgent = bool(deliveries or stops or heard.news)
        return PollAnswer(number=number, deliveries=deliveries, stops=stops, verdicts=heard.verdicts), not urgent

    # A client that has left by now gets nothing claimed; one that leaves later is caught by the pending lease.
    if await gone():
        return PollAnswer()
    answer, parks = await decide(broker.store, fn)
    if not parks or said.wait_s == 0:
        return answer
    return await _park(broker, worker_id, said, gone, mark, answer)


async def _park(
    broker: Broker,
    worker_id: str,
    said: Poll,
    gone: Callable[[], Awaitable[bool]],
    mark: tuple[int, int],
    first: PollAnswer,
) -> PollAnswer:
    parked = Parked(worker_id, said.epoch, said.accept and said.recovered, gone)
    if not broker.wake.park(parked, mark):
        return first  # something happened meanwhile: the worker asks again at once
    try:
        done, _ = await asyncio.wait({parked.answer}, timeout=min(said.wait_s, broker.settings.poll_s))
        if not done and parked.claiming:
            await asyncio.wait({parked.answer}, timeout=5)
    finally:
        broker.wake.unpark(parked)
    if not parked.answer.done():
        return first
    answer = parked.answer.result()
    if answer is not None:
        return answer.model_copy(update={"verdicts": first.verdicts})
    return first.model_copy(update={"stops": await broker.store.read(lambda tx: _stops(tx, worker_id, said.held))})


def speaks_for(tx: Tx, caller: Caller, worker_id: str) -> None:
    """A worker token speaks for one worker only: the first that used it."""
    if Scope.OPERATOR in caller.scopes:
        return
    bound = caller.worker
    if bound is None and caller.token is not None:
        tx.run("bind_token", id=caller.token, worker=worker_id)
        bound = worker_id
    if bound != worker_id:
        raise Refused(
            ProblemCode.FORBIDDEN,
            "this token speaks for another worker",
            hint="make a token for each worker: job token create --scope worker NAME",
        )


def known_worker(tx: Tx, worker_id: str, epoch: int) -> Row:
    """The worker's row, if this epoch is the current one."""
    worker = tx.one("worker", worker=worker_id)
    if worker is None or worker["epoch"] < epoch:
        raise Refused(ProblemCode.UNKNOWN_WORKER, "this worker is not registered", hint="register first")
    if worker["epoch"] > epoch:
        raise Refused(
            ProblemCode.SUPERSEDED, f"epoch {epoch} is over: epoch {worker['epoch']} of this worker has taken over"
        )
    return worker


@dataclass(frozen=True, slots=True)
class _Entry:
    job: JobRow
    assignment: AssignmentRow
    standing: Standing


class _Exchange:
    """One exchange, inside one transaction."""

    def __init__(self, tx: Tx, broker: Broker, worker_id: str, said: Exchange) -> None:
        self.tx, self.broker, self.said = tx, broker, said
        self.worker = known_worker(tx, worker_id, said.epoch)
        self.fresh = said.seq > self.worker["seq"]
        self.verdicts: list[Verdict] = []
        self.news = False  # a verdict that the worker should hear at once
        self._strangers = 0

    def listen(self, transitions: Sequence[Transition]) -> None:
        """Transitions first, then the list (only if it is newer than the last one used), then what is absent."""
        for said in transitions:
            self.verdicts.append(self._guarded(said.kind, said, partial(self._transition, said)))
        if not self.fresh:
            return
        self._revive()
        renewed: list[_Entry] = []
        for held in self.said.held:
            self.verdicts.append(self._guarded("held", held, partial(self._held, held, renewed)))
        self._renew(renewed)
        self._absent()
        self.tx.run(
            "hear_worker",
            worker=self.worker["id"],
            epoch=self.said.epoch,
            now=self.tx.now_ms,
            lease_until=self.broker.listening.now_ms() + self.broker.lease_ms,
            seq=self.said.seq,
            seen=self.said.seen,
            recovered=int(self.said.recovered),
            strangers=self._strangers,
        )

    def stops(self) -> list[Stop]:
        return _stops(self.tx, self.worker["id"], self.said.held)

    def deliveries(self, *, claims: bool) -> tuple[int | None, list[Delivery]]:
        """Pending assignments that `seen` does not cover, again; then new claims, if this poll may claim."""
        if not self.said.recovered:
            return None, []
        number: int | None = None
        again = []
        for row in self._held_rows():
            if row.state is AssignmentState.PENDING and row.epoch == self.said.epoch and row.answer > self.said.seen:
                number = number if number is not None else dispatch.next_number(self.tx, self.worker)
                again.append(dispatch.deliver_again(self.tx, self.broker, row.id, number))
        if not claims:
            return number, again
        worker = self.tx.one("worker", worker=self.worker["id"])
        assert worker is not None
        claimed = dispatch.claim(self.tx, self.broker, worker, number)
        if claimed and number is None:
            number = int(worker["answers"]) + 1
        return number, [*again, *claimed]

    def _guarded(self, kind: str, said: Transition | Held, decide: Callable[[], Verdict]) -> Verdict:
        """One entry that the table has no row for must not stop the others, now and in every later exchange."""
        try:
            return decide()
        except Illegal as error:
            log.error("refused a transition", job=said.job, attempt=said.attempt, kind=kind, why=str(error))
            return self._verdict(kind, said.job, said.attempt, VerdictWord.STALE_ASSIGNMENT)

    # ---- transitions

    def _transition(self, said: Transition) -> Verdict:
        entry = self._entry(said.job, said.attempt, said.token)
        if entry is None:
            return self._verdict(said.kind, said.job, said.attempt, VerdictWord.STALE_ASSIGNMENT)
        match said:
            case Ack():
                word = self._ack(entry, said)
            case Start():
                word = self._start(entry)
            case Finish():
                word = self._finish(entry, said.final)
            case _:
                assert_never(said)
        return self._verdict(said.kind, said.job, said.attempt, word, ended=entry.standing is Standing.ENDED)

    def _ack(self, entry: _Entry, said: Ack) -> VerdictWord:
        if entry.standing is not Standing.LIVE:
            return _otherwise(entry.standing)
        if entry.assignment.state is AssignmentState.PENDING:
            lease_until = self.broker.listening.now_ms() + lease_ms(self.broker, entry.job)
            self._apply(entry, Cause.ACK, Facts(now=self.tx.now_ms, shim=said.shim, lease_until=lease_until))
            return VerdictWord.ACCEPTED
        # A repeat permits exec only while nothing started, and only to the shim that asked first.
        same = entry.assignment.state is AssignmentState.ACKED and entry.assignment.shim == said.shim
        return VerdictWord.DUPLICATE if same else VerdictWord.STALE_ASSIGNMENT

    def _start(self, entry: _Entry) -> VerdictWord:
        if entry.standing is not Standing.LIVE:
            return _otherwise(entry.standing)
        if entry.assignment.state is AssignmentState.ACKED:
            self._apply(entry, Cause.START, Facts(now=self.tx.now_ms))
            return VerdictWord.ACCEPTED
        return (
            VerdictWord.DUPLICATE if entry.assignment.state is AssignmentState.STARTED else VerdictWord.STALE_ASSIGNMENT
        )

    def _finish(self, entry: _Entry, final: Final) -> VerdictWord:
        if entry.standing not in (Standing.LIVE, Standing.LOST):
            return _otherwise(entry.standing)
        if entry.assignment.state is AssignmentState.PENDING and executed(final):
            return VerdictWord.STALE_ASSIGNMENT  # nothing may be executed before its ack was accepted
        if entry.assignment.state is AssignmentState.ACKED and implies_start(final):
            entry = self._apply(entry, Cause.START, Facts(now=self.tx.now_ms))
        cause = final_cause(entry.job, entry.assignment, final, self.broker.settings.max_losses)
        if cause is None:
            self._close_lost(entry, final)
            return VerdictWord.ACCEPTED
        code, text = reason_of(final) or (None, None)
        facts = Facts(
            now=self.tx.now_ms,
            exit_code=final.exit_code,
            signal=final.signal,
            reason_code=code,
            reason=text,
            final_size=final.final_size,
            final_index_size=final.final_index_size,
            dropped=final.dropped,
            gone=True,
        )
        if cause is Cause.REFUSE or (cause is Cause.LATE_NEVER_EXECUTED and final.outcome is Outcome.REFUSED):
            self._remember_refusal(entry, code or "refused", text or "refused")
        self._apply(entry, cause, facts)
        return VerdictWord.ACCEPTED

    def _close_lost(self, entry: _Entry, final: Final) -> None:
        """A lost assignment whose tree is now known gone: no change of state, but room, and a log that may be completed."""
        self.tx.run(
            "declare_final_size",
            id=entry.assignment.id,
            final_size=final.final_size,
            final_index_size=final.final_index_size,
            dropped=final.dropped,
        )
        self.tx.tell(JobReady())

    def _remember_refusal(self, entry: _Entry, code: str, text: str) -> None:
        row = self.tx.one("place_of_job", job=entry.job.id)
        place = row["place"] if row is not None and code.startswith(PLACE_CODES) else "*"
        expires_at = self.tx.now_ms + self.broker.lease_ms
        self.tx.run("refuse", worker=self.worker["id"], place=place, code=code, message=text, expires_at=expires_at)

    # ---- the held list

    def _held(self, held: Held, renewed: list[_Entry]) -> Verdict:
        entry = self._entry(held.job, held.attempt, held.token)
        if entry is None:
            self._strangers += held.phase is not Phase.ENDED
            self.news |= held.stopping is None
            return self._verdict("held", held.job, held.attempt, VerdictWord.STALE_ASSIGNMENT)
        if held.phase is Phase.ENDED:
            self.news = True
            word = self._finish(entry, held.final) if held.final is not None else _otherwise(entry.standing)
            return self._verdict("held", held.job, held.attempt, word, ended=True)
        match entry.standing:
            case Standing.LIVE:
                word = self._held_live(entry, held, renewed)
            case Standing.LOST:
                word = self._held_lost(entry, held)
            case Standing.ENDED:
                word = VerdictWord.DUPLICATE  # its own report, accepted, said that the tree is gone
            case Standing.STALE:
                word = self._held_over(entry, held)
            case _:
                assert_never(entry.standing)
        return self._verdict("held", held.job, held.attempt, word, ended=entry.standing is Standing.ENDED)

    def _held_live(self, entry: _Entry, held: Held, renewed: list[_Entry]) -> VerdictWord:
        if entry.assignment.state is AssignmentState.ACKED and held.phase is Phase.RUNNING:
            self._apply(entry, Cause.START, Facts(now=self.tx.now_ms))  # its start report was lost
        if entry.assignment.state is not AssignmentState.PENDING:  # a list never renews a pending lease
            renewed.append(entry)
        return VerdictWord.ACCEPTED

    def _held_lost(self, entry: _Entry, held: Held) -> VerdictWord:
        """The broker thinks it is lost, and it is alive: it comes back to life, before any dispatch."""
        if entry.assignment.final_size is not None:
            return VerdictWord.DUPLICATE  # its own report said that the tree is gone
        if held.phase is Phase.PREPARING:
            self.news = True
            return VerdictWord.LEASE_LOST  # close the shim for good, and say that nothing was executed
        lease_until = self.broker.listening.now_ms() + lease_ms(self.broker, entry.job)
        self._apply(entry, Cause.RESURRECT, Facts(now=self.tx.now_ms, lease_until=lease_until))
        return VerdictWord.ACCEPTED

    def _held_over(self, entry: _Entry, held: Held) -> VerdictWord:
        """A listed entry that has not ended takes room, whatever its state in the tables, until it is gone."""
        if not entry.assignment.reserved:
            self.tx.run("reserve", id=entry.assignment.id, reserved=1)
        self.news |= held.stopping is None
        return VerdictWord.STALE_ASSIGNMENT

    def _renew(self, entries: list[_Entry]) -> None:
        now = self.broker.listening.now_ms()
        rows: list[dict[str, int | float | str | bytes | None]] = [
            {"id": e.assignment.id, "token": e.assignment.token, "lease_until": now + lease_ms(self.broker, e.job)}
            for e in entries
        ]
        if rows:
            self.tx.run_many("renew", rows)

    def _absent(self) -> None:
        """What the broker thinks the worker has, and it does not list, with evidence that it would."""
        listed = {(held.job, held.attempt) for held in self.said.held}
        for row in self._held_rows():
            if (row.job, row.attempt) in listed or not self._is_evidence(row):
                continue
            if row.state not in LIVE:
                self.tx.run("reserve", id=row.id, reserved=0)
                self.tx.tell(JobReady())
                continue
            job = read_job(self.tx, row.job)
            assert job is not None
            cause = loss(job, row, self.broker.settings.max_losses)
            facts = Facts(
                now=self.tx.now_ms,
                reason_code="worker_lost_it",
                reason=f"{row.worker_name} came back without it",
                gone=True,
            )
            self._apply(_Entry(job, row, Standing.LIVE), cause, facts)

    def _is_evidence(self, row: AssignmentRow) -> bool:
        if not self.said.recovered:
            return False
        return row.epoch < self.said.epoch or (row.epoch == self.said.epoch and self.said.seen >= row.answer)

    # ---- small parts

    def _entry(self, job: int, attempt: int, token: str) -> _Entry | None:
        """The rows, if this worker holds the right token for them."""
        row = self.tx.one("assignment_of_job", job=job, attempt=attempt)
        job_row = read_job(self.tx, job)
        if row is None or job_row is None or row["token"] != token or row["worker"] != self.worker["id"]:
            return None
        assignment = assignment_row(row)
        return _Entry(job_row, assignment, standing(job_row, assignment))

    def _held_rows(self) -> list[AssignmentRow]:
        return [assignment_row(row) for row in self.tx.all("held_by_worker", worker=self.worker["id"])]

    def _revive(self) -> None:
        if self.worker["online"]:
            return
        _admit_name(self.tx, self.worker["id"], self.worker["name"])
        event(self.tx, EventType.WORKER_BACK, worker=self.worker["name"])

    def _apply(self, entry: _Entry, cause: Cause, facts: Facts) -> _Entry:
        """Through the one door; the rows as they are now."""
        done = apply(self.tx, entry.job, entry.assignment, cause, facts)
        assert done.assignment is not None
        return _Entry(done.job, done.assignment, entry.standing)

    def _verdict(self, kind: str, job: int, attempt: int, word: VerdictWord, *, ended: bool = False) -> Verdict:
        return Verdict.model_construct(kind=kind, job=job, attempt=attempt, verdict=word, ended=ended or None)


def lease_ms(broker: Broker, job: JobRow) -> int:
    """How long the broker waits for the holder of an acknowledged assignment of this job."""
    if job.policy is OnWorkerLost.REQUEUE_EXCLUSIVE:
        settings = broker.settings
        return int((settings.exclusive_lease_s + job.grace_s + settings.exclusive_margin_s) * 1000)
    return broker.lease_ms


def _otherwise(standing: Standing) -> VerdictWord:
    """The answer to a write whose assignment is not live."""
    match standing:
        case Standing.LOST:
            return VerdictWord.LEASE_LOST
        case Standing.ENDED:
            return VerdictWord.DUPLICATE
        case Standing.LIVE | Standing.STALE:
            return VerdictWord.STALE_ASSIGNMENT


def _stops(tx: Tx, worker_id: str, held: Sequence[Held]) -> list[Stop]:
    """Stops that the worker's list does not show as being carried out yet."""
    shown = {(h.job, h.attempt): h.stopping for h in held}
    return [
        Stop(
            job=row["job"], attempt=row["attempt"], id=row["stop_id"], why=row["stop_why"], grace_s=row["stop_grace_s"]
        )
        for row in tx.all("stops_of_worker", worker=worker_id)
        if shown.get((row["job"], row["attempt"])) != row["stop_id"]
    ]


def _admit_epoch(known: Row | None, said: Registration) -> None:
    if known is None:
        return
    if known["epoch"] >= said.epoch:
        raise Refused(
            ProblemCode.SUPERSEDED,
            f"epoch {known['epoch']} of this worker is known; this process says epoch {said.epoch}",
            hint="a newer process of the same worker has taken over, or its state directory was copied or restored: "
            "give this one a state directory of its own",
        )
    if known["online"] and _machine(known["machine"]) != _machine(said.machine):
        raise Refused(
            ProblemCode.WORKER_NAME_TAKEN,
            f"this worker id is live on {known['host']}: the state directory was cloned",
            hint="give this worker a state directory of its own (JOBD_STATE_DIR)",
        )


def _machine(identity: str) -> str:
    """The machine without its boot: one that came up again is no clone."""
    return identity.partition(":")[0]


def _admit_name(tx: Tx, worker_id: str, name: str) -> None:
    live = tx.one("live_worker_of_name", name=name)
    if live is not None and live["id"] != worker_id:
        raise Refused(
            ProblemCode.WORKER_NAME_TAKEN,
            f"a live worker is called {name} already",
            hint="set JOBD_WORKER_NAME to another name, or wait until the other one is lost",
            field="name",
        )
