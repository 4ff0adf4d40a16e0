"""Clients and workers who do what they may, in any order, over a wire that loses, delays and doubles what they say."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from broker.service import cancel, exchange, preempt, queries, registration, submit
from broker.service.exchange import Client
from broker.wire.jobs import CancelRequest, PreemptRequest, Submission
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.states import DependencyPolicy, JobState, OnPreempt, OnWorkerLost
from broker.wire.workers import Outcome, Phase, Poll, PollAnswer, Report, ReportAnswer
from support.machines import beliefs
from support.machines.beliefs import ENDS, Process, Step, Truth
from support.machines.hosts import Copy, Host, Parked, Sent, Stage
from support.machines.world import OPERATOR, Row, Tables, World

T = TypeVar("T")

LEASE_S, EXCLUSIVE_S, MARGIN_S, SWEEP_S, START_LIMIT_S, GRACE_S = 60.0, 100.0, 30.0, 5.0, 40.0, 3.0
MOST_JOBS = 25
MOST_OLD = 40
ROUNDS_TO_HEAL = 80
HEAL_S = 10.0  # at most two sweeps: more would count as a gap

any_number = st.integers(0, 1_000)
wire = st.sampled_from([*["arrives"] * 6, "answer lost", "answer late", "late"])


class Listened:
    """How long the broker has listened, worked out from when it swept."""

    def __init__(self, now: float) -> None:
        self.total, self._since, self._most = 0.0, now, 2 * SWEEP_S + 1

    def at(self, now: float) -> float:
        return self.total + min(now - self._since, self._most)

    def swept(self, now: float) -> None:
        self.total, self._since = self.at(now), now

    def restarted(self, now: float) -> None:
        self._since = now


class Operations(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        settings = {"lease_s": LEASE_S, "exclusive_lease_s": EXCLUSIVE_S, "exclusive_margin_s": MARGIN_S}
        self.world = World(
            BrokerSettings.model_validate({**settings, "sweep_s": SWEEP_S, "start_limit_s": START_LIMIT_S})
        )
        self.hosts = [self._host("a", "a", 2), self._host("b", "b", 1), self._host("c", "b", 1)]
        self.truth = Truth()
        self.listened = Listened(self.now)
        self.acked_at: dict[tuple[int, int], float] = {}
        self.late_messages: list[Sent] = []
        self.late_answers: list[tuple[Sent, ReportAnswer]] = []
        self.old: list[Sent] = []
        self.answered: list[tuple[Sent, ReportAnswer]] = []
        """Of parked polls, and not heard yet."""
        self.tables = self.tables_before = self.world.read()
        self.sound = True
        for host in self.hosts[:2]:
            self._starts(host)
            self._recovers(host)

    def _host(self, digit: str, name: str, slots: float) -> Host:
        return Host(uuid.UUID(digit * 32).hex, name, slots, LEASE_S, EXCLUSIVE_S, self._executes)

    @property
    def now(self) -> float:
        return self.world.clock.boot_s()

    @initialize(policies=st.lists(st.sampled_from(OnWorkerLost), min_size=2, max_size=5), works=st.integers(0, 3))
    def a_story_begins(self, policies: list[OnWorkerLost], works: int) -> None:
        """Some jobs, of which some run."""
        for policy in policies:
            self.somebody_submits(policy, 1, 0, False, None, [], DependencyPolicy.SUCCESS, OnPreempt.REQUEUE)
        for number in range(2):
            if works >> number & 1:
                self.a_worker_works(number, ["arrives"] * 4)

    # ---- what clients do

    @precondition(lambda self: len(self.tables.jobs) < MOST_JOBS)
    @rule(
        policy=st.sampled_from(OnWorkerLost),
        cpus=st.sampled_from([1, 1, 2]),
        priority=st.sampled_from([0, 0, 1]),
        somewhere=st.booleans(),
        count=st.sampled_from([None, None, 2]),
        after=st.lists(any_number, max_size=2),
        depends=st.sampled_from(DependencyPolicy),
        preempts=st.sampled_from([None, *OnPreempt]),
    )
    def somebody_submits(
        self,
        policy: OnWorkerLost,
        cpus: int,
        priority: int,
        somewhere: bool,
        count: int | None,
        after: list[int],
        depends: DependencyPolicy,
        preempts: OnPreempt | None,
    ) -> None:
        known = sorted(self.tables.jobs)
        parents = [known[number % len(known)] for number in after] if known else []
        spec = Submission(
            command="true",
            cpus=cpus,
            priority=priority,
            cwd="/data" if somewhere else None,
            count=count,
            depends_on=parents or None,
            dependency_policy=depends,
            on_worker_lost=policy,
            checkpoint_grace_s=GRACE_S,
            preemptible=preempts is not None,
            on_preempt=preempts or OnPreempt.STOP,
        )
        good = beliefs.BY_POLICY[depends]
        hopeless = [parent for parent in parents if self._state(parent) in ENDS and self._state(parent) not in good]
        said = self._asked(submit.submit(self.world.broker, OPERATOR, spec))
        if isinstance(said, Refused):
            assert said.code is ProblemCode.DEPENDENCY_UNSATISFIABLE and hopeless, said
            self._look("a refused submit", quiet=True)
            return
        assert not hopeless, f"it depends on {hopeless}"
        first = said.array or said.id
        assert first is not None
        self.truth.acknowledged.update(range(first, first + (count or 1)))
        self._look("submit")

    @precondition(lambda self: self.tables.jobs)
    @rule(which=st.sampled_from([1, 1, 1, 3]).flatmap(lambda n: st.lists(any_number, min_size=n, max_size=n)))
    def somebody_cancels(self, which: list[int]) -> None:
        known = sorted(self.tables.jobs)
        jobs = list(dict.fromkeys(known[number % len(known)] for number in which))
        before = self.tables
        said = self._asked(cancel.cancel(self.world.broker, OPERATOR, CancelRequest(job=jobs, force=True)))
        assert not isinstance(said, Refused), said
        for answer in said.jobs:
            was, live = before.jobs[answer.id]["state"], before.live(answer.id)
            if answer.note.startswith("stopping"):
                assert live is not None and live["state"] != "pending"
                self.truth.stopping.setdefault(answer.id, live["attempt"])
                if was == "assigned":
                    self.truth.stopping_early.add(answer.id)
            elif answer.note.startswith("cancelled"):
                assert was == "queued" or (live is not None and live["state"] == "pending")
            elif len(jobs) == 1:  # else the cascade of another one may have ended it meanwhile
                assert was in ENDS, f"job {answer.id} was {was}: {answer.note}"
            if answer.state is JobState.CANCELLED:
                self.truth.cancelled.add(answer.id)
        # A cancel of what may come back is remembered.
        returns = ("cascaded_by", "lost_assignment")
        rows = [before.jobs[job] for job in jobs]
        over = [row["state"] in ENDS and all(row[name] is None for name in returns) for row in rows]
        self._look("cancel", quiet=all(over))

    @precondition(lambda self: self.tables.jobs)
    @rule(which=any_number)
    def somebody_preempts(self, which: int) -> None:
        known = sorted(self.tables.jobs)
        job = known[which % len(known)]
        row, live = self.tables.jobs[job], self.tables.live(job)
        said = self._asked(preempt.preempt(self.world.broker, OPERATOR, job, PreemptRequest()))
        if isinstance(said, Refused):
            owned = {ProblemCode.ALREADY_TERMINAL: row["state"] in ENDS, ProblemCode.NOT_RUNNING: live is None}
            assert owned.get(said.code, not row["preemptible"]), said
            self._look("a refused preemption", quiet=True)
            return
        assert live is not None and row["preemptible"]
        assert said.note.startswith("preempted before") == (live["state"] == "pending")
        stopping = live["state"] != "pending" and live["stop_id"] is not None and live["stop_kind"] != "start_limit"
        self._look("a preemption", quiet=stopping)

    # ---- what workers say

    @rule(which=any_number, fate=wire, accept=st.sampled_from([True, True, True, False]))
    def a_worker_polls(self, which: int, fate: str, accept: bool) -> None:
        if host := self._speaker(which):
            self._send(host.poll(self.now, accept=accept, wait_s=0), fate)

    @rule(which=any_number, fates=st.integers(1, 4).flatmap(lambda n: st.lists(wire, min_size=n, max_size=n)))
    def a_worker_works(self, which: int, fates: list[str]) -> None:
        """It asks for work, acknowledges all that it has, executes, and says so."""
        host = self._speaker(which)
        if host is None:
            return
        if not host.recovered:
            self._recovers(host)
        for step, fate in enumerate(fates):
            if host.up and step == 0:
                self._send(host.poll(self.now, accept=True, wait_s=0), fate)
            elif host.up:
                said = [t for copy in host.copies.values() if (t := copy.transition())]
                self._send(host.report(self.now, *said), fate)

    @rule(which=any_number, late=st.booleans())
    def a_worker_parks_a_poll(self, which: int, late: bool) -> None:
        host = self._speaker(which)
        if host is None:
            return
        if beliefs.refusal(self.tables, host.poll(self.now, accept=True, wait_s=0)) is not None:
            return
        older, sent, left = host.parked, host.poll(self.now, accept=True, wait_s=60), asyncio.Event()
        host.parked = Parked(sent, self.world.begin(self._polled(sent, left)), left, late)
        self.world.settle()
        if older is not None:
            assert older.task.done(), "an older poll is still parked"
            self.answered.append((older.sent, older.task.result()))
        self.old.append(sent)
        self._look("a poll is parked", sent)

    @precondition(lambda self: any(host.parked for host in self.hosts))
    @rule(which=any_number)
    def a_connection_breaks(self, which: int) -> None:
        """The client of a parked poll is gone: nothing may be given to it any more."""
        parked = [host for host in self.hosts if host.parked]
        host = parked[which % len(parked)]
        self._disconnect(host)
        self._look("a connection breaks", quiet=True)

    @rule(which=any_number, fate=wire, together=st.booleans())
    def a_worker_reports(self, which: int, fate: str, together: bool) -> None:
        """All that it has to say, in one message or one by one; or nothing but its list."""
        host = self._speaker(which)
        if host is None:
            return
        said = [t for copy in host.copies.values() if (t := copy.transition())] if host.recovered else []
        for part in [said] if together or not said else [[one] for one in said]:
            if all((t.job, t.attempt) in host.copies for t in part):
                self._send(host.report(self.now, *part), fate)

    @rule(which=any_number, number=any_number, fate=wire)
    def a_worker_reports_one_thing(self, which: int, number: int, fate: str) -> None:
        host = self._speaker(which)
        said = [t for copy in host.copies.values() if (t := copy.transition())] if host and host.recovered else []
        if host is not None and said:
            self._send(host.report(self.now, said[number % len(said)]), fate)

    @precondition(lambda self: self.old)
    @rule(which=any_number)
    def a_double_arrives(self, which: int) -> None:
        """Any message that was ever sent, once more; its answer goes nowhere."""
        sent = self.old[which % len(self.old)]
        answer = self._exchanged(sent)
        self._look("a double arrives", sent, answer)

    @precondition(lambda self: self.late_messages)
    @rule(which=any_number, fate=wire)
    def a_late_message_arrives(self, which: int, fate: str) -> None:
        self._send(self.late_messages.pop(which % len(self.late_messages)), fate)

    @precondition(lambda self: self.late_answers)
    @rule(which=any_number)
    def a_late_answer_arrives(self, which: int) -> None:
        sent, answer = self.late_answers.pop(which % len(self.late_answers))
        self._hears(sent, answer)
        self._look("a late answer arrives", quiet=True)

    # ---- what must not change anything

    @precondition(lambda self: self.tables.assignments)
    @rule(which=any_number, by=any_number, what=st.sampled_from(["read", "left", "token", "worker", "unacknowledged"]))
    def somebody_tries_in_vain(self, which: int, by: int, what: str) -> None:
        match what:
            case "read":
                self._reads(which)
            case "left":
                self._polls_and_leaves(which)
            case _:
                self._strangers_end(which, by, what)

    def _reads(self, which: int) -> None:
        """What can be asked says what the tables say, and changes nothing."""
        known = sorted(self.tables.jobs)
        job = known[which % len(known)]
        broker, row = self.world.broker, self.tables.jobs[job]
        got = self.world.call(queries.get_job(broker, job, "full"))
        assert got.state.value == row["state"] and got.exit_code == row["exit_code"]
        assert [a.state.value for a in got.assignments or []] == [a["state"] for a in self.tables.of(job)]
        state = JobState(row["state"])
        page = self.world.call(queries.list_jobs(broker, queries.Filter(state=state), MOST_JOBS + 1, None))
        there = [number for number, other in self.tables.jobs.items() if other["state"] == row["state"]]
        assert sorted(entry.id for entry in page.jobs) == there
        assert {key: n for key, n in page.counts.items() if n} == self.tables.counts
        self._look("reads", quiet=True)

    def _polls_and_leaves(self, which: int) -> None:
        if host := self._speaker(which):
            sent = host.poll(self.now, accept=True, wait_s=0)
            left = asyncio.Event()
            left.set()
            answer = self._asked(self._polled(sent, left))
            assert isinstance(answer, Refused) or answer == PollAnswer()
            self._look("a poll of a client that has left", quiet=True)

    def _strangers_end(self, which: int, by: int, wrong: str) -> None:
        """Another worker that knows the token, the holder without it, or before its ack, writes nothing."""
        rows = list(self.tables.assignments.values())
        if wrong == "unacknowledged":
            rows = [row for row in rows if row["state"] == "pending"]
        if not rows:
            return
        row = rows[which % len(rows)]
        speakers = [host for host in self.hosts if host.up and (host.id == row["worker"]) == (wrong != "worker")]
        if not speakers:
            return
        host = speakers[by % len(speakers)]
        token = "guessed" if wrong == "token" else row["token"]
        copy = Copy(row["job"], row["attempt"], token, OnWorkerLost.REQUEUE, 1, GRACE_S, "none")
        copy.ends(Outcome.EXITED, exit_code=0)
        said = copy.transition()
        assert said is not None
        self._send(host.report(self.now, said), "answer lost")
        self.old.pop()  # it would not be in vain for ever

    # ---- what happens on their machines

    def _copies(self, stage: Stage) -> list[tuple[Host, Copy]]:
        return [(host, copy) for host in self.hosts for copy in host.copies.values() if copy.stage is stage]

    @precondition(lambda self: self._copies(Stage.ALIVE))
    @rule(which=any_number, code=st.sampled_from([0, 0, 1]), by_itself=st.booleans())
    def a_process_ends(self, which: int, code: int, by_itself: bool) -> None:
        alive = self._copies(Stage.ALIVE)
        self._ends(*alive[which % len(alive)], code, by_itself=by_itself)

    @precondition(lambda self: self._copies(Stage.PREPARED))
    @rule(which=any_number, code=st.sampled_from(["cwd_missing", "disk_full"]))
    def a_worker_refuses(self, which: int, code: str) -> None:
        prepared = self._copies(Stage.PREPARED)
        _, copy = prepared[which % len(prepared)]
        copy.ends(Outcome.REFUSED, reason_code=code, reason=code)

    @precondition(lambda self: not all(host.recovered for host in self.hosts))
    @rule(which=any_number, early=st.sampled_from([None, "poll", "report"]))
    def a_worker_starts(self, which: int, early: str | None) -> None:
        """It registers as a new epoch; its records are read later, and it may be heard `early`."""
        starting = [host for host in self.hosts if not host.recovered]
        host = starting[which % len(starting)]
        (self._recovers if host.up else self._starts)(host)
        if early and host.up:
            poll = host.poll(self.now, accept=True, wait_s=0)
            self._send(poll if early == "poll" else host.report(self.now), "arrives")

    @rule(which=any_number, power=st.sampled_from([None, None, "records kept", "records lost"]))
    def a_worker_dies(self, which: int, power: str | None) -> None:
        host = self.hosts[which % len(self.hosts)]
        self._crashes(host)
        if power is not None:
            before = {copy.key for copy in host.copies.values() if copy.stage is Stage.ALIVE}
            host.loses_power(self.now, records=power == "records kept")
            for key in before:
                self.truth.ends(*key, known=False)
        self._look("a worker dies", quiet=True)

    # ---- time, and the broker's own life

    @rule(seconds=st.sampled_from([1, 4, 16, 31, 61, 61, 145]), silent=st.integers(0, 7), ends=st.booleans())
    def time_passes(self, seconds: int, silent: int, ends: bool) -> None:
        """Some workers are heard meanwhile, and the others (a bit each in `silent`) are not; what runs there may end."""
        left = float(seconds)
        while left > 0:
            self._pass(min(left, 2 * SWEEP_S))
            left -= 2 * SWEEP_S
            for bit, host in enumerate(self.hosts):
                if host.up and not silent >> bit & 1:
                    self._send(host.report(self.now), "arrives")
        for host, copy in self._copies(Stage.ALIVE) if ends else []:
            if silent >> self.hosts.index(host) & 1:
                self._ends(host, copy, 0, by_itself=True)

    @rule(what=st.sampled_from(["frozen", "jump", "restart"]), how=st.integers(0, 2))
    def the_broker_suffers(self, what: str, how: int) -> None:
        match what:
            case "frozen":
                self._pass([30, 200, 4000][how])
            case "jump":
                self.world.clock.wall += [2, -4, 24][how] * 3_600_000
                self.world.sweep()
                self.listened.swept(self.now)
                self._look("the clock jumps", sweeps=True)
            case _:
                self._restarts([0.5, 20, 500][how])

    def _restarts(self, away_s: float) -> None:
        for host in self.hosts:
            self._disconnect(host)
        self.world.restart(away_s)
        self.listened.restarted(self.now)
        self._time_passed()
        self._look("the broker restarts", quiet=True)

    # ---- one way to do each of these

    def _starts(self, host: Host) -> None:
        self._disconnect(host)
        host.starts()
        worker = self.tables.workers.get(host.id, {})
        taken = [row for row in self.tables.workers.values() if row["online"] and row["name"] == host.name]
        said = self._asked(registration.register(self.world.broker, OPERATOR, host.id, host.registration()))
        if isinstance(said, Refused):
            assert said.code is ProblemCode.WORKER_NAME_TAKEN and any(row["id"] != host.id for row in taken), said
            host.crashes(self.now)
        else:
            assert all(row["id"] == host.id for row in taken) and worker.get("epoch", 0) < host.epoch
        self._look("a worker registers", quiet=isinstance(said, Refused))

    def _recovers(self, host: Host) -> None:
        if host.up:
            host.reads_its_records()
            self._send(host.report(self.now), "arrives")

    def _crashes(self, host: Host) -> None:
        self._disconnect(host)
        host.crashes(self.now)

    def _disconnect(self, host: Host) -> None:
        parked, host.parked = host.parked, None
        if parked is not None:
            parked.left.set()
            self.world.settle()

    def _speaker(self, which: int) -> Host | None:
        up = [host for host in self.hosts if host.up]
        return up[which % len(up)] if up else None

    def _executes(self, host: Host, copy: Copy) -> None:
        process = Process(copy.job, copy.attempt, host.id, copy.policy.value, copy.cpus)
        self.truth.begins(self.tables, process, copy.token)

    def _ends(self, host: Host, copy: Copy, code: int, *, by_itself: bool) -> None:
        self.truth.ends(*copy.key)
        if copy.stale:
            del host.copies[copy.key]
        elif copy.stopping is not None and not by_itself:
            copy.ends(Outcome.STOPPED, exit_code=code, stop=copy.stopping)
        else:
            copy.ends(Outcome.EXITED, exit_code=code)

    def _send(self, sent: Sent, fate: str) -> None:
        """Say it over the wire. Whatever becomes of the answer, what the broker did is looked at."""
        self.old.append(sent)
        del self.old[:-MOST_OLD]
        if fate == "late":
            self.late_messages.append(sent)
            return
        answer = self._exchanged(sent)
        self._look("an exchange", sent, answer)
        if isinstance(answer, Refused):
            if answer.code in (ProblemCode.WORKER_NAME_TAKEN, ProblemCode.SUPERSEDED) and sent.epoch == sent.host.epoch:
                self._crashes(sent.host)
            return
        if isinstance(sent.message, Poll) and sent.claims and beliefs.is_used(self.tables_before, sent):
            self._nothing_fits(sent.host.id, answer)
        if fate == "arrives":
            self._hears(sent, answer)
        elif fate == "answer late":
            self.late_answers.append((sent, answer))
            del self.late_answers[:-MOST_OLD]

    def _hears(self, sent: Sent, answer: ReportAnswer) -> None:
        sent.host.hears(sent, answer, self.now)

    def _exchanged(self, sent: Sent) -> ReportAnswer | Refused:
        """The broker's answer, judged by the tables before it."""
        self._collect()
        if isinstance(sent.message, Poll):
            asked: Coroutine[Any, Any, ReportAnswer] = self._polled(sent, asyncio.Event())
        else:
            said = Report.model_validate_json(sent.message.model_dump_json())
            asked = exchange.report(self.world.broker, OPERATOR, sent.host.id, said)
        answer = self._asked(asked)
        expected = beliefs.refusal(self.tables, sent)
        assert expected is (answer.code if isinstance(answer, Refused) else None), f"{answer}, expected {expected}"
        if not isinstance(answer, Refused):
            given = {(v.kind, v.job, v.attempt): v.verdict for v in answer.verdicts}
            for kind, job, attempt, words in beliefs.predicted(self.tables, sent):
                word = given.get((kind, job, attempt))
                assert word in words, f"{kind} of {job}.{attempt}: {word}, expected one of {words}"
            if isinstance(answer, PollAnswer) and beliefs.is_used(self.tables, sent):
                put = {(delivery.job, delivery.attempt) for delivery in answer.deliveries}
                again = beliefs.unseen(self.tables, sent) - beliefs.spoken_of(sent)
                assert again <= put, f"{again - put} may be lost on the way, and was not put again"
        return answer

    async def _polled(self, sent: Sent, left: asyncio.Event) -> PollAnswer:
        said = Poll.model_validate_json(sent.message.model_dump_json())

        async def gone() -> bool:
            return left.is_set()

        async def leaves() -> None:
            await left.wait()

        return await exchange.poll(self.world.broker, OPERATOR, sent.host.id, said, Client(gone, leaves))

    def _asked(self, asked: Coroutine[Any, Any, T]) -> T | Refused:
        self.sound = False
        try:
            return self.world.call(asked)
        except Refused as refused:
            return refused

    def _collect(self) -> None:
        """Answers of parked polls that have come meanwhile."""
        if any(host.parked for host in self.hosts):
            self.world.settle()
        for host in self.hosts:
            parked = host.parked
            if parked is not None and parked.task.done():
                host.parked = None
                answer = parked.task.result()
                if parked.late:
                    self.late_answers.append((parked.sent, answer))
                else:
                    self.answered.append((parked.sent, answer))

    # ---- looking

    def _look(
        self,
        what: str,
        sent: Sent | None = None,
        answer: ReportAnswer | Refused | None = None,
        *,
        sweeps: bool = False,
        quiet: bool = False,
    ) -> None:
        self.sound = False
        waiting = {host.id for host in self.hosts if host.parked}
        self._collect()
        before, after = self.tables, self.world.read()
        self.tables_before, self.tables = before, after
        spoken = frozenset((held.job, held.attempt) for held in sent.message.held) if sent else frozenset()
        if sent and isinstance(sent.message, Report):
            spoken |= {(t.job, t.attempt) for t in sent.message.transitions}
        claimants = waiting | ({sent.host.id} if sent and sent.claims else set())
        step = Step(what, frozenset(claimants), spoken, sweeps, quiet)
        beliefs.check(before, after, self.truth, step)
        if not sweeps and not isinstance(answer, Refused):
            beliefs.check_expiries(before, after, sent)
        if sent is not None and answer is not None and not isinstance(answer, Refused) and answer.verdicts:
            beliefs.check_end(before, after, sent, answer.verdicts[0].verdict)
        self._leases(before, after, sent, answer, sweeps=sweeps)
        for host in self.hosts:
            if host.parked is not None and host.parked.sent.claims:
                self._no_parked_poll_is_forgotten(host)
        answered, self.answered = self.answered, []
        for parked, found in answered:
            self._hears(parked, found)
        self.sound = True

    def _no_parked_poll_is_forgotten(self, host: Host) -> None:
        worker = self.tables.workers[host.id]
        if any(id_ == host.id for id_, _, _ in self.tables.refusals) or not worker["online"]:
            return  # that a refusal is over wakes nobody: the next poll sees it
        fits = beliefs.ready_and_fitting(self.tables, worker, self.world.broker.listening.now_ms())
        assert not fits, f"{host.name} waits, and {fits} would fit"

    def _nothing_fits(self, worker: str, answer: PollAnswer | ReportAnswer) -> None:
        fits = beliefs.ready_and_fitting(self.tables, self.tables.workers[worker], self.world.broker.listening.now_ms())
        assert not fits, f"asked, and was not given {fits}"

    # ---- leases

    def _leases(
        self,
        before: Tables,
        after: Tables,
        sent: Sent | None,
        answer: ReportAnswer | Refused | None,
        *,
        sweeps: bool,
    ) -> None:
        listened = self.listened.at(self.now)
        for key, row in after.assignments.items():
            was = before.assignments.get(key)
            if was is None or (was["state"] == "pending" and row["state"] in ("acked", "started")):
                self.truth.heard[key] = listened
                self.acked_at[key] = self.now
            if sweeps and was is not None and was["state"] in beliefs.LIVE:
                self._expired_rightly(key, was, row, listened)
        if sent is not None and beliefs.is_used(before, sent) and not isinstance(answer, Refused):
            for held in sent.message.held:
                row = after.assignments.get((held.job, held.attempt))
                renewed = row is not None and row["state"] in ("acked", "started") and row["token"] == held.token
                if renewed and held.phase is not Phase.ENDED:
                    self.truth.heard[held.job, held.attempt] = listened

    def _expired_rightly(self, key: tuple[int, int], was: Row, row: Row, listened: float) -> None:
        over = listened - self.truth.heard[key] - self._lease_of(was)
        expired = row["state"] == "expired"
        if abs(over) > 0.01:
            assert expired == (over > 0), f"{key} was {was['state']}, is {row['state']}; its lease is over for {over} s"
        if row["stop_id"] != was["stop_id"]:
            assert row["stop_kind"] == "start_limit" and was["state"] == "acked"
            waited = self.now - self.acked_at[key]
            assert waited >= START_LIMIT_S - 0.01, f"{key} was asked to stop {waited} s after its ack"

    def _lease_of(self, row: Row) -> float:
        if row["state"] == "pending":
            return LEASE_S / 4
        exclusive = self.tables.jobs[row["job"]]["policy"] == "requeue_exclusive"
        return EXCLUSIVE_S + GRACE_S + MARGIN_S if exclusive else LEASE_S

    def _pass(self, seconds: float) -> None:
        self.world.clock.pass_s(seconds)
        self._time_passed()
        self.world.sweep()
        self.listened.swept(self.now)
        self._look("time passes", sweeps=True)

    def _time_passed(self) -> None:
        for host in self.hosts:
            host.time_passed(self.now)
            for copy in host.copies.values():
                if copy.final is not None and copy.final.outcome is Outcome.LEASE_ENDED:
                    self.truth.ends(*copy.key)

    # ---- the end of a story

    def teardown(self) -> None:
        try:
            if self.sound:
                self._heals()
                assert not (lines := self.world.untold()), lines
        finally:
            for host in self.hosts:
                self._disconnect(host)
            self.world.close()

    def _heals(self) -> None:
        """Once worker and network are back, every job comes to an end."""
        self.late_messages.clear()
        self.late_answers.clear()
        for host in self.hosts[2:]:  # nobody repairs the one whose name another has
            self._crashes(host)
        for _ in range(ROUNDS_TO_HEAL):
            if all(row["state"] in ENDS for row in self.tables.jobs.values()):
                return
            for host in self.hosts[:2]:
                if not host.up:
                    self._starts(host)
                    self._recovers(host)
                elif not host.recovered:
                    self._recovers(host)
                for copy in list(host.copies.values()):
                    if copy.stage is Stage.ALIVE and (copy.start_told or copy.stale):
                        self._ends(host, copy, 0, by_itself=False)
                for said in [copy.transition() for copy in host.copies.values()]:
                    if host.up and said is not None and (said.job, said.attempt) in host.copies:
                        self._send(host.report(self.now, said), "arrives")
                if host.up:
                    self._send(host.poll(self.now, accept=True, wait_s=0), "arrives")
            self._pass(HEAL_S)
        waiting = {job: row["state"] for job, row in self.tables.jobs.items() if row["state"] not in ENDS}
        raise AssertionError(f"these never end: {waiting}")

    def _state(self, job: int) -> str:
        return str(self.tables.jobs[job]["state"])
