"""What a worker says again and again, and what it is told: polls and reports.

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

from broker.core.ending import executed, final_cause, implies_start, loss, told_of_end, told_of_loss
from broker.core.fence import Standing, standing
from broker.core.matching import Machine
from broker.core.rows import AssignmentRow, JobRow, StopKind
from broker.core.states import LIVE, Cause, Facts, Illegal, Said
from broker.core.usage import largest
from broker.failpoint import failpoint
from broker.service import dispatch, history, launches, machines, unreadable, views
from broker.service.context import Broker, Caller
from broker.service.registration import admit_name, known_worker, speaks_for
from broker.service.rows import assignment_row, job_row, read_job
from broker.service.stops import request_stop
from broker.service.transition import apply, decide, event, say, worker_event
from broker.service.wake import JobChanged, Parked, RoomFree
from broker.service.workers import settle_drain
from broker.store.contract import Tx
from broker.wire.events import EventType
from broker.wire.jobs import Peak, Progress
from broker.wire.outcomes import Left
from broker.wire.states import AssignmentState, Duty, OnWorkerLost
from broker.wire.workers import (
    Ack,
    Checkpoints,
    Delivery,
    Exchange,
    Final,
    Finish,
    Held,
    Outcome,
    Phase,
    Poll,
    PollAnswer,
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
# And of these for what the job asks for: they end when the worker's devices or memory are not as they were.
SHAPE_CODES = ("gpu_", "ram_")
_LONGEST_AGE_S = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Client:
    """The other end of a request. `gone`: has it left? `left`: returns once it has."""

    gone: Callable[[], Awaitable[bool]]
    left: Callable[[], Awaitable[None]]


async def report(broker: Broker, caller: Caller, worker_id: str, said: Report) -> ReportAnswer:
    """Transitions and the held list; a verdict for each."""

    def fn(tx: Tx) -> ReportAnswer:
        speaks_for(tx, caller, worker_id)
        heard = _Exchange(tx, broker, worker_id, said)
        heard.listen(said.transitions)
        if said.facts is not None:
            machines.keep(tx, heard.worker, said.facts)
        return ReportAnswer(verdicts=heard.verdicts, stops=heard.stops())

    answer = await decide(broker.store, fn)
    if said.transitions:
        failpoint("reported")
    return answer


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
        heard.note_accepts(accepts=said.accept)
        if said.ending:
            heard.give_back()
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
    if answer.deliveries:
        failpoint("claimed")
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


@dataclass(frozen=True, slots=True)
class _Entry:
    job: JobRow
    assignment: AssignmentRow
    standing: Standing


def _is_to_be_told(job: JobRow, row: AssignmentRow) -> bool:
    """Its worker may not have heard of it. An adoption is born acknowledged, and so tells nothing by that."""
    if row.state is AssignmentState.PENDING:
        return True
    return job.adopted is not None and row.state is AssignmentState.ACKED


def _was_slow(assignment: AssignmentRow) -> bool:
    return assignment.stop is not None and assignment.stop.kind is StopKind.START_LIMIT


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
        self._is_back = False
        self._rows = _Rows(tx, worker_id)
        self._listened = broker.listening.now_ms()  # one instant for all of one exchange
        self._facts = partial(Facts, tx.now_ms, self._listened, prefers_until=self._prefers_until())

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
            polls_until=self._listened + self.broker.polls_ms if isinstance(self.said, Poll) else None,
        )
        if self._is_back:
            machines.settle(self.tx, self.worker["id"])
        if self._strangers < self.worker["strangers"]:
            self.tx.tell(RoomFree(self.worker["id"]))
        if self.worker["duty"] != Duty.SERVING:
            settle_drain(self.tx, self.worker["id"])

    def note_accepts(self, *, accepts: bool) -> None:
        """The worker asks for work, and whether it takes any now: what waits can say so."""
        if not self.worker["polls"]:
            self.tx.run("note_polls", worker=self.worker["id"])
        if bool(self.worker["accepts"]) != accepts:
            self.tx.run("note_accepts", worker=self.worker["id"], accepts=int(accepts))

    def give_back(self) -> None:
        """The worker ends: what it runs is asked to stop, and is queued again when its tree is gone. What must never run
        twice is left to its shim. A repeat changes nothing."""
        why = f"its worker {self.worker['name']} ends"
        for job, row in self._rows.reserved():
            if row.state not in LIVE or job.policy is OnWorkerLost.ORPHAN:
                continue
            if row.state is AssignmentState.PENDING:
                facts = self._facts(reason_code="preempted", reason=why, gone=True)
                self._apply(_Entry(job, row, Standing.LIVE), Cause.PREEMPT_REQUEUED, facts)
            else:
                request_stop(self.tx, self.broker, job, row, StopKind.WORKER_ENDS, self.worker["name"], why)

    def stops(self) -> list[Stop]:
        return _stops(self.tx, self.worker["id"], self.said.held)

    def deliveries(self, *, claims: bool) -> tuple[int | None, list[Delivery]]:
        """Pending assignments that `seen` does not cover, again; then new claims, if this poll may claim."""
        if not self.said.recovered:
            return None, []
        number: int | None = None
        again: list[Delivery] = []
        for job, row in self._rows.reserved():
            if _is_to_be_told(job, row) and row.epoch == self.said.epoch and row.answer > self.said.seen:
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
            self._apply(entry, Cause.ACK, self._facts(shim=said.shim, lease_until=lease_until))
            return VerdictWord.ACCEPTED
        # A repeat permits exec only while nothing started, and only to the shim that asked first.
        same = entry.assignment.state is AssignmentState.ACKED and entry.assignment.shim == said.shim
        return VerdictWord.DUPLICATE if same else VerdictWord.STALE_ASSIGNMENT

    def _start(self, entry: _Entry) -> VerdictWord:
        if entry.standing is not Standing.LIVE:
            return _otherwise(entry.standing)
        if entry.assignment.state is AssignmentState.ACKED:
            self._apply_start(entry)
            return VerdictWord.ACCEPTED
        return (
            VerdictWord.DUPLICATE if entry.assignment.state is AssignmentState.STARTED else VerdictWord.STALE_ASSIGNMENT
        )

    def _finish(self, entry: _Entry, final: Final) -> VerdictWord:
        if entry.standing not in (Standing.LIVE, Standing.LOST):
            return _otherwise(entry.standing)
        if entry.assignment.state is AssignmentState.PENDING and executed(final):
            return VerdictWord.STALE_ASSIGNMENT  # nothing may be executed before its ack was accepted
        entry = self._observe(entry, final.peak, final.checkpoints, final.progress)
        if final.left is not None:
            self._note_left(entry, final.left)
        if entry.assignment.state is AssignmentState.ACKED and implies_start(final):
            entry = self._apply_start(entry)
        cause = final_cause(entry.job, entry.assignment, final, self.broker.settings.max_losses)
        if cause is None:
            self._close_lost(entry, final)
            return VerdictWord.ACCEPTED
        launches.failed(self.tx, self.broker, self.worker, entry.job, final)
        told = told_of_end(entry.job, entry.assignment, final, cause)
        facts = self._facts(
            exit_code=final.exit_code,
            signal=final.signal,
            reason_code=told.code,
            reason=told.text,
            limit=told.limit,
            final_size=final.final_size,
            final_index_size=final.final_index_size,
            dropped=final.dropped,
            gone=True,
        )
        if cause is Cause.REFUSE or (cause is Cause.LATE_NEVER_EXECUTED and final.outcome is Outcome.REFUSED):
            self._remember_refusal(entry, told.code or "refused", told.text or "refused")
        if cause is Cause.NEVER_EXECUTED and _was_slow(entry.assignment):
            self._remember_refusal(
                entry, "cwd_start_limit", "what needs the same directory did not start there in time"
            )
        self._apply(entry, cause, facts)
        history.note(self.tx, entry.job.id, cause, final, entry.assignment.peak)
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
        place = f"#{entry.job.shape}" if code.startswith(SHAPE_CODES) else place
        expires_at = self._listened + self.broker.lease_ms
        self.tx.run("refuse", worker=self.worker["id"], place=place, code=code, message=text, expires_at=expires_at)

    # ---- the held list

    def _held(self, held: Held, renewed: list[_Entry]) -> Verdict:
        entry = self._entry(held.job, held.attempt, held.token)
        if entry is None:
            self._strangers += held.phase is not Phase.ENDED
            self.news |= held.stopping is None
            return self._verdict("held", held.job, held.attempt, VerdictWord.STALE_ASSIGNMENT)
        if held.kill_failed != entry.assignment.kill_failed:
            entry = self._note_kill_failed(entry, held.kill_failed)
        if entry.standing is Standing.LIVE:
            entry = self._observe(entry, held.peak, held.checkpoints, held.progress)
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
            self._apply_start(entry)  # its start report was lost
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
        if entry.assignment.started_at is not None:
            facts = self._facts(lease_until=lease_until)
        else:
            self._begins(entry)
            facts = self._facts(lease_until=lease_until, starts=True, wall_until=self._wall_until(entry.job))
        self._apply(entry, Cause.RESURRECT, facts)
        return VerdictWord.ACCEPTED

    def _held_over(self, entry: _Entry, held: Held) -> VerdictWord:
        """A listed entry that has not ended takes room, whatever its state in the tables, until it is gone."""
        if not entry.assignment.reserved:
            self._rows.reserve(entry.assignment, reserved=True)
        self.news |= held.stopping is None
        return VerdictWord.STALE_ASSIGNMENT

    def _note_kill_failed(self, entry: _Entry, left: str | None) -> _Entry:
        """Its tree does not end though it was killed. It keeps its room, and that is said."""
        self.tx.run("note_kill_failed", id=entry.assignment.id, kill_failed=left)
        noted = entry.assignment._replace(kill_failed=left)
        self._rows.keep(entry.job, noted)
        if left is not None:
            watched = Said(EventType.WATCHDOG_FIRED, {"what": "kill_failed", "processes": left})
            say(self.tx, watched, job=entry.job, assignment=noted)
        self.tx.tell(JobChanged(entry.job.id))
        return _Entry(entry.job, noted, entry.standing)

    def _note_left(self, entry: _Entry, left: Left) -> None:
        """What is to come of what it left behind, and what is not: its end does not wait for it."""
        self.tx.run(
            "note_left",
            id=entry.assignment.id,
            artifacts=left.artifacts,
            artifacts_bytes=left.artifacts_bytes,
            warnings=json.dumps(left.warnings) if left.warnings else None,
        )

    def _observe(
        self, entry: _Entry, peak: Peak | None, checkpoints: Checkpoints | None, progress: Progress | None
    ) -> _Entry:
        """What it has used, how far it is, and whether it is safe to stop it: written only where that is news."""
        if peak is None and checkpoints is None and progress is None:
            return entry
        row = entry.assignment
        noted = row._replace(peak=largest(row.peak, peak))
        if noted.peak is not None and noted.peak != row.peak:
            self.tx.run("note_peak", id=row.id, peak=noted.peak.model_dump_json(exclude_none=True))
        if progress is not None and progress != row.progress:
            noted = noted._replace(progress=progress)
            self.tx.run("note_progress", id=row.id, progress=progress.model_dump_json(exclude_none=True))
        if checkpoints is not None and checkpoints.count > row.checkpoints:
            noted = noted._replace(checkpoints=checkpoints.count)
            said_at = self.tx.now_ms - int(min(checkpoints.age_s, _LONGEST_AGE_S) * 1000)
            self.tx.run("note_checkpoint", id=row.id, checkpoints=checkpoints.count, checkpoint_at=said_at)
            safe = Said(EventType.CHECKPOINT_COMPLETE, {"count": checkpoints.count})
            say(self.tx, safe, job=entry.job, assignment=noted)
        self._rows.keep(entry.job, noted)
        return _Entry(entry.job, noted, entry.standing)

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
            if (row.job, row.attempt) in listed or not self._is_evidence(job, row):
                continue
            if row.state not in LIVE:
                self._rows.reserve(row, reserved=False)
                self.tx.tell(RoomFree(row.worker))
                continue
            cause = loss(job, row, self.broker.settings.max_losses)
            told = told_of_loss(job, row, cause, "worker_lost_it", f"{row.worker_name} came back without it")
            facts = self._facts(reason_code=told.code, reason=told.text, limit=told.limit, gone=True)
            self._apply(_Entry(job, row, Standing.LIVE), cause, facts)

    def _is_evidence(self, job: JobRow, row: AssignmentRow) -> bool:
        if not self.said.recovered:
            return False
        # What was acknowledged, or listed after it was over, has arrived, whichever answer carried it last.
        arrived = not _is_to_be_told(job, row) or self.said.seen >= row.answer
        return row.epoch < self.said.epoch or (row.epoch == self.said.epoch and arrived)

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
        admit_name(self.tx, self.worker["id"], self.worker["name"])
        worker_event(self.tx, EventType.WORKER_BACK, self.worker["id"], self.worker["name"])
        self._is_back = True

    def _apply_start(self, entry: _Entry) -> _Entry:
        facts = self._facts(wall_until=self._wall_until(entry.job))
        if entry.job.adopted is not None:
            return self._apply(entry, Cause.ADOPT_CONFIRMED, facts)
        self._begins(entry)
        return self._apply(entry, Cause.START, facts)

    def _begins(self, entry: _Entry) -> None:
        """What else the first word of its process means."""
        launches.succeeded(self.tx, self.worker)
        if entry.job.restarts:
            self._tell_left_behind(entry.assignment)

    def _tell_left_behind(self, now: AssignmentRow) -> None:
        """Its last process ran on another worker, and where that kept its checkpoints this one can't see."""
        last = self.tx.one("started_before", job=now.job, attempt=now.attempt)
        if last is None or last["worker"] == self.worker["id"] or self._shares_checkpoints(last["checkpoint_root"]):
            return
        event(
            self.tx,
            EventType.CHECKPOINT_LEFT_BEHIND,
            job=now.job,
            attempt=now.attempt,
            worker=self.worker["name"],
            data={"left_on": last["worker_name"], "checkpoints": last["checkpoints"]},
        )

    def _shares_checkpoints(self, root: str | None) -> bool:
        return root is not None and root == self.worker["checkpoint_root"]

    def _prefers_until(self) -> int | None:
        """How long this worker is left what it had started and is queued again: it has the checkpoints."""
        prefer_ms = int(self.broker.settings.prefer_s * 1000)
        return self._listened + prefer_ms if prefer_ms and views.closed(self.worker) is None else None

    def _wall_until(self, job: JobRow) -> int | None:
        """Until when its own supervisor should have stopped a job that starts now."""
        if job.max_wall_s is None:
            return None
        return self._listened + int((job.max_wall_s + job.grace_s + self.broker.settings.wall_margin_s) * 1000)

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
