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
from broker.core.matching import Machine
from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import LIVE, Cause, Facts, Illegal
from broker.service import dispatch, unreadable, views
from broker.service.context import Broker, Caller
from broker.service.rows import assignment_row, job_row, read_job
from broker.service.transition import apply, decide, event
from broker.service.wake import ListVoid, Parked, RoomFree
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


@dataclass(frozen=True, slots=True)
class Client:
    """The other end of a request. `gone`: has it left? `left`: returns once it has."""

    gone: Callable[[], Awaitable[bool]]
    left: Callable[[], Awaitable[None]]


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
        tx.run("forget_refusals", worker=worker_id, listened=broker.listening.now_ms())
        event(
            tx,
            EventType.WORKER_REGISTERED,
            worker=said.name,
            actor=caller.actor,
            data={"epoch": said.epoch, "host": said.host, "version": said.version},
        )
        tx.tell(ListVoid(worker_id))

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


async def poll(broker: Broker, caller: Caller, worker_id: str, said: Poll, client: Client) -> PollAnswer:
    """The held list in; assignments, stops and verdicts out. Parked while there is nothing to say.

    Nothing is claimed for a client that has left. A poll whose list is older than one already used is answered with
    nothing, never parked.
    """
    mark = broker.wake.mark(worker_id)

    def fn(tx: Tx) -> tuple[PollAnswer, Machine | None] | None:
        speaks_for(tx, caller, worker_id)
        heard = _Exchange(tx, broker, worker_id, said)
        heard.listen(())
        if not heard.fresh:
            return None
        stops = heard.stops()
        number, deliveries = heard.deliveries(claims=said.accept)
        urgent = bool(deliveries or stops or heard.news)
        answer = PollAnswer(number=number, deliveries=deliveries, stops=stops, verdicts=heard.verdicts)
        return answer, None if urgent else views.registered(heard.worker)

    # A client that has left by now gets nothing claimed; one that leaves later is caught by the pending lease.
    if await client.gone():
        return PollAnswer()
    found = await decide(broker.store, fn)
    if found is None:
        return PollAnswer()
    broker.wake.unpark_worker(worker_id)  # whether this one parks or not: nothing more is claimed on an older list
    answer, parks = found
    if parks is None or said.wait_s == 0:
        return answer
    poll = Parked(worker_id, said.epoch, said.accept and said.recovered, parks)
    if not broker.wake.park(poll, mark):
        return answer  # something happened meanwhile: the worker asks again at once
    return await _parked(broker, poll, said, client, answer)


async def _parked(broker: Broker, poll: Parked, said: Poll, client: Client, first: PollAnswer) -> PollAnswer:
    leaving = asyncio.ensure_future(client.left())
    leaving.add_done_callback(lambda _: poll.resolve(None))
    try:
        done, _ = await asyncio.wait({poll.answer}, timeout=min(said.wait_s, broker.settings.poll_s))
        if not done and poll.claiming:
            await asyncio.wait({poll.answer}, timeout=5)
    finally:
        broker.wake.unpark(poll)
        leaving.cancel()
    if not poll.answer.done():
        return first
    answer = poll.answer.result()
    if answer is not None:
        return answer.model_copy(update={"verdicts": first.verdicts})
    return first.model_copy(update={"stops": await broker.store.read(lambda tx: _stops(tx, poll.worker, said.held))})


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


class _Rows:
    """The rows that an exchange is about: read once, and kept as it changes them.

    Everything that holds resources on the worker is read with two statements, however much it is. Two deliveries may
    be of the same job: so jobs are kept apart from them.
    """

    def __init__(self, tx: Tx, worker_id: str) -> None:
        self._tx, self._worker = tx, worker_id
        held = unreadable.without("assignments", tx.all("held_by_worker", worker=worker_id), assignment_row)
        jobs = tx.all("jobs_held_by_worker", worker=worker_id) if held else []
        self._jobs = {row.id: row for row in unreadable.without("jobs", jobs, job_row)}
        self._assignments = {(row.job, row.attempt): row for row in held if row.job in self._jobs}

    def find(self, job: int, attempt: int) -> tuple[JobRow, AssignmentRow] | None:
        """One delivery, whosever it is."""
        if (job, attempt) not in self._assignments:
            row = self._tx.one("assignment_of_job", job=job, attempt=attempt)
            found = self._jobs.get(job) or read_job(self._tx, job)
            if row is None or found is None:
                return None
            self.keep(found, assignment_row(row))
        return self._jobs[job], self._assignments[job, attempt]

    def keep(self, job: JobRow, assignment: AssignmentRow) -> None:
        """They stand so in the tables now."""
        self._jobs[job.id] = job
        self._assignments[job.id, assignment.attempt] = assignment

    def read_jobs_again(self) -> None:
        """An end has changed other jobs, and one of them may be among these."""
        for job in self._jobs:
            fresh = read_job(self._tx, job)
            assert fresh is not None, "jobs are not removed"
            self._jobs[job] = fresh

    def reserve(self, row: AssignmentRow, *, reserved: bool) -> None:
        self._tx.run("reserve", id=row.id, reserved=int(reserved))
        self._assignments[row.job, row.attempt] = row._replace(reserved=reserved)

    def reserved(self) -> list[tuple[JobRow, AssignmentRow]]:
        """All that the broker thinks this worker has, or that still holds resources there."""
        mine = [row for row in self._assignments.values() if row.reserved and row.worker == self._worker]
        return [(self._jobs[row.job], row) for row in mine]


class _Exchange:
    """One exchange, inside one transaction."""

    def __init__(self, tx: Tx, broker: Broker, worker_id: str, said: Exchange) -> None:
        self.tx, self.broker, self.said = tx, broker, said
        self.worker = known_worker(tx, worker_id, said.epoch)
        self.fresh = said.seq > self.worker["seq"]
        self.verdicts: list[Verdict] = []
        self.news = False  # a verdict that the worker should hear at once
        self._strangers = 0
        self._rows = _Rows(tx, worker_id)
        self._listened = broker.listening.now_ms()  # one instant for all of one exchange

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
            lease_until=self._listened + self.broker.lease_ms,
            seq=self.said.seq,
            seen=self.said.seen,
            recovered=int(self.said.recovered),
            strangers=self._strangers,
        )
        if self._strangers < self.worker["strangers"]:
            self.tx.tell(RoomFree(self.worker["id"]))

    def stops(self) -> list[Stop]:
        return _stops(self.tx, self.worker["id"], self.said.held)

    def deliveries(self, *, claims: bool) -> tuple[int | None, list[Delivery]]:
        """Pending assignments that `seen` does not cover, again; then new claims, if this poll may claim."""
        if not self.said.recovered:
            return None, []
        number: int | None = None
        again: list[Delivery] = []
        for job, row in self._rows.reserved():
            if row.state is AssignmentState.PENDING and row.epoch == self.said.epoch and row.answer > self.said.seen:
                number = number if number is not None else dispatch.next_number(self.tx, self.worker)
                delivery = dispatch.deliver_again(self.tx, self.broker, job, row, number)
                again += [delivery] if delivery is not None else []
        if not claims:
            return number, again
        worker = dispatch.claimant(self.tx, self.broker, self.worker["id"])
        assert worker is not None
        number, claimed = dispatch.claim(self.tx, self.broker, worker, dispatch.ready(self.tx), number)
        return number, [*again, *claimed]

    def _guarded(self, kind: str, said: Transition | Held, decide: Callable[[], Verdict]) -> Verdict:
        """One entry that the table has no row for, or that can't be read, must not stop the others, now and later."""
        try:
            return decide()
        except (Illegal, *unreadable.Unreadable) as error:
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
            lease_until = self._lease_until(entry.job)
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
        self._rows.keep(
            entry.job,
            entry.assignment._replace(
                final_size=final.final_size,
                final_index_size=final.final_index_size,
                dropped=final.dropped,
                reserved=False,
            ),
        )
        self.tx.tell(RoomFree(entry.assignment.worker))

    def _remember_refusal(self, entry: _Entry, code: str, text: str) -> None:
        row = self.tx.one("place_of_job", job=entry.job.id)
        place = row["place"] if row is not None and code.startswith(PLACE_CODES) else "*"
        expires_at = self._listened + self.broker.lease_ms
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
        lease_until = self._lease_until(entry.job)
        self._apply(entry, Cause.RESURRECT, Facts(now=self.tx.now_ms, lease_until=lease_until))
        return VerdictWord.ACCEPTED

    def _held_over(self, entry: _Entry, held: Held) -> VerdictWord:
        """A listed entry that has not ended takes room, whatever its state in the tables, until it is gone."""
        if not entry.assignment.reserved:
            self._rows.reserve(entry.assignment, reserved=True)
        self.news |= held.stopping is None
        return VerdictWord.STALE_ASSIGNMENT

    def _renew(self, entries: list[_Entry]) -> None:
        """Leases start again. Nothing writes to these rows after this: `_rows` has their old leases."""
        rows: list[dict[str, int | float | str | bytes | None]] = [
            {"id": entry.assignment.id, "token": entry.assignment.token, "lease_until": lease_until}
            for entry in entries
            if entry.assignment.lease_until != (lease_until := self._lease_until(entry.job))
        ]
        if rows:
            self.tx.run_many("renew", rows)

    def _lease_until(self, job: JobRow) -> int:
        return self._listened + lease_ms(self.broker, job)

    def _absent(self) -> None:
        """What the broker thinks the worker has, and it does not list, with evidence that it would."""
        listed = {(held.job, held.attempt) for held in self.said.held}
        for job, row in self._rows.reserved():
            if (row.job, row.attempt) in listed or not self._is_evidence(row):
                continue
            if row.state not in LIVE:
                self._rows.reserve(row, reserved=False)
                self.tx.tell(RoomFree(row.worker))
                continue
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
        found = self._rows.find(job, attempt)
        if found is None:
            return None
        row, assignment = found
        if assignment.token != token or assignment.worker != self.worker["id"]:
            return None
        return _Entry(row, assignment, standing(row, assignment))

    def _revive(self) -> None:
        if self.worker["online"]:
            return
        _admit_name(self.tx, self.worker["id"], self.worker["name"])
        event(self.tx, EventType.WORKER_BACK, worker=self.worker["name"])

    def _apply(self, entry: _Entry, cause: Cause, facts: Facts) -> _Entry:
        """Through the one door; the rows as they are now."""
        done = apply(self.tx, entry.job, entry.assignment, cause, facts)
        assert done.assignment is not None
        self._rows.keep(done.job, done.assignment)
        if done.spread:
            self._rows.read_jobs_again()
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
