"""What must hold, whatever happens: the broker's tables, after each commit, against what really happened.

It knows three things: what the tables say (by triggers on the broker's own connection), what was acknowledged to
clients, and what the processes did. The numbers are those of the invariants.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from broker.core import arrays, graph
from broker.core.states import TABLE, TERMINAL
from broker.wire.states import AssignmentState, DependencyPolicy, JobState, OnWorkerLost
from simulation.loop import Machine
from simulation.programs import Tree
from support.folding import OutOfOrder, differences, events_in, fold, fold_workers, jobs_in, workers_in
from worker.handle import ShimSpec

Key = tuple[int, int]

_WATCH = """
CREATE TEMP TABLE seen (n INTEGER PRIMARY KEY, kind TEXT, job INTEGER, attempt INTEGER, was TEXT, now TEXT);
CREATE TEMP TRIGGER job_added AFTER INSERT ON main.jobs BEGIN
  INSERT INTO seen (kind, job, now) VALUES ('job', new.id, new.state); END;
CREATE TEMP TRIGGER job_changed AFTER UPDATE OF state ON main.jobs WHEN old.state <> new.state BEGIN
  INSERT INTO seen (kind, job, was, now) VALUES ('job', new.id, old.state, new.state); END;
CREATE TEMP TRIGGER job_gone AFTER DELETE ON main.jobs BEGIN
  INSERT INTO seen (kind, job, was) VALUES ('gone', old.id, old.state); END;
CREATE TEMP TRIGGER assignment_added AFTER INSERT ON main.assignments BEGIN
  INSERT INTO seen (kind, job, attempt, now) VALUES ('assignment', new.job, new.attempt, new.state); END;
CREATE TEMP TRIGGER assignment_changed AFTER UPDATE OF state ON main.assignments WHEN old.state <> new.state BEGIN
  INSERT INTO seen (kind, job, attempt, was, now) VALUES ('assignment', new.job, new.attempt, old.state, new.state); END;
CREATE TEMP TRIGGER room AFTER UPDATE OF reserved ON main.assignments WHEN old.reserved <> new.reserved BEGIN
  INSERT INTO seen (kind, job, attempt, was, now)
  VALUES ('room', new.job, new.attempt, old.reserved, new.reserved); END;
CREATE TEMP TRIGGER renewal AFTER UPDATE OF lease_until ON main.assignments WHEN old.lease_until <> new.lease_until BEGIN
  INSERT INTO seen (kind, job, attempt) VALUES ('renewal', new.job, new.attempt); END;
CREATE TEMP TRIGGER stop AFTER UPDATE OF stop_kind ON main.assignments WHEN new.stop_kind IS NOT old.stop_kind BEGIN
  INSERT INTO seen (kind, job, attempt, was, now) VALUES ('stop', new.job, new.attempt, old.stop_kind, new.stop_kind); END;
"""

_LEGAL_JOBS = {(was.value, rule.job_to.value) for rule in TABLE.values() if rule.job_to for was in rule.job_from}
_LEGAL_ASSIGNMENTS = {
    (was.value, rule.assignment_to.value)
    for rule in TABLE.values()
    if rule.assignment_to
    for was in rule.assignment_from
}
_LIVE = ("pending", "acked", "started")
GAP_S = 5.0
"""What a gap in the broker's listening may count at most: two sweeps and a second."""


@dataclass
class Execution:
    """A tree that really was started."""

    at: float
    machine: Machine
    tree: Tree
    policy: OnWorkerLost
    disturbed: bool = False  # its shim was frozen or killed, or its machine stood still


@dataclass
class Known:
    """A job as clients know it."""

    cancelled_at: float | None = None
    surely: bool = False  # no process had been heard of, so no other end is possible


@dataclass
class Oracle:
    now: Callable[[], float]
    trace: Callable[[str, str], None]
    violations: list[str] = field(default_factory=list)
    executions: dict[Key, Execution] = field(default_factory=dict)
    states: dict[int, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    assignments: dict[Key, str] = field(default_factory=dict)
    acked_at: dict[Key, float] = field(default_factory=dict)
    renewed: dict[Key, tuple[float, int]] = field(default_factory=dict)
    listened: Callable[[], tuple[float, int]] = lambda: (0.0, 0)
    """How long the broker was there and not frozen, and how often it was not."""
    lease_s: float = 0.0
    exclusive_s: float = 0.0
    start_limit_s: float = 0.0
    acknowledged: dict[int, Known] = field(default_factory=dict)
    keyed: dict[str, int] = field(default_factory=dict)
    _given_up: set[int] = field(default_factory=set)  # jobs and arrays whose cancel was asked for
    transitions: int = 0
    changed: int = 0

    def wrong(self, number: int, text: str) -> None:
        self.violations.append(f"{self.now():.3f} s: invariant {number}: {text}")
        self.trace("oracle", f"WRONG {number}: {text}")

    # ---- what really happened (Truth)

    def executed(self, job: int, attempt: int, machine: Machine, tree: Tree, spec: ShimSpec) -> None:
        self.trace(machine.name, f"executes {job}.{attempt}")
        key = job, attempt
        if key in self.executions:
            self.wrong(4, f"{job}.{attempt} was executed twice")
        if self.assignments.get(key, "pending") == "pending":
            self.wrong(3, f"{job}.{attempt} was executed before its ack was accepted")
        policy = spec.on_worker_lost
        for (other, number), earlier in self.executions.items():
            if other != job or key == (other, number):
                continue
            if policy is OnWorkerLost.ORPHAN and self.assignments.get((job, number)) not in ("preempted", "failed"):
                self.wrong(4, f"{job}.{attempt} runs after {job}.{number}, whose policy is orphan")
            if policy is OnWorkerLost.REQUEUE_EXCLUSIVE and not earlier.tree.gone and not earlier.disturbed:
                self.wrong(4, f"{job}.{attempt} runs beside {job}.{number}, whose policy is requeue_exclusive")
        self.executions[key] = Execution(self.now(), machine, tree, policy)
        tree.over = lambda: self.trace(machine.name, f"{job}.{attempt} is gone: {tree.status}")

    # ---- what the tables say, after each commit

    def watch(self, connection: sqlite3.Connection) -> None:
        connection.executescript(_WATCH)

    def committed(self, connection: sqlite3.Connection) -> None:
        seen = connection.execute("SELECT kind, job, attempt, was, now FROM temp.seen ORDER BY n").fetchall()
        if not seen:
            return
        connection.execute("DELETE FROM temp.seen")
        self.changed += 1
        for kind, job, attempt, was, now in seen:
            if kind == "renewal":
                self.renewed[job, attempt] = self.listened()
                continue
            name = f"{job}.{attempt}" if attempt else str(job)
            self.trace("tables", f"{kind} {name}: {was} -> {now}")
            if kind == "job":
                self._job(job, was, now)
            elif kind == "assignment":
                self._assignment(connection, (job, attempt), was, now)
            elif kind == "room" and int(now) == 0:
                self._room_freed((job, attempt))
            elif kind == "stop" and now == "start_limit":
                if self.now() < self.acked_at.get((job, attempt), 0.0) + self.start_limit_s:
                    self.wrong(9, f"{name} is stopped for not starting, before its time")
            elif kind == "gone":
                self.wrong(1, f"job {job} was removed")
        for job in sorted({row[1] for row in seen if row[0] in ("job", "assignment")}):
            self._consistent(connection, job)

    def _job(self, job: int, was: str | None, now: str) -> None:
        self.transitions += 1
        if was is not None and (was, now) not in _LEGAL_JOBS:
            self.wrong(2, f"job {job} went from {was} to {now}")
        if was is None and now != JobState.QUEUED:
            self.wrong(2, f"job {job} began as {now}")
        self.states[job].append((self.now(), now))

    def _assignment(self, connection: sqlite3.Connection, key: Key, was: str | None, now: str) -> None:
        self.transitions += 1
        if was is not None and (was, now) not in _LEGAL_ASSIGNMENTS:
            self.wrong(2, f"assignment {key} went from {was} to {now}")
        self.assignments[key] = now
        if now == "acked":
            self.acked_at[key] = self.now()
        if now == "expired" and was in ("acked", "started"):
            self._lost(connection, key)
        if was is None:
            self._claimed(connection, key)

    def _claimed(self, connection: sqlite3.Connection, key: Key) -> None:
        job, attempt = key
        worker, used = connection.execute(
            "SELECT worker, (SELECT sum(cpus) FROM assignments AS a WHERE a.worker = b.worker AND reserved = 1) "
            "FROM assignments AS b WHERE job = ? AND attempt = ?",
            key,
        ).fetchone()
        known = self.acknowledged.get(job)
        if known is not None and known.cancelled_at is not None:
            self.wrong(10, f"job {job} is given away again, and its cancel was acknowledged")
        (slots,) = connection.execute("SELECT slots FROM workers WHERE id = ?", (worker,)).fetchone()
        back = connection.execute(
            "SELECT count(*) FROM assignments WHERE worker = ? AND reserved = 1 AND resumed_at IS NOT NULL", (worker,)
        ).fetchone()[0]
        if (used or 0) > slots and not back:
            self.wrong(5, f"{used:g} of {slots:g} slots are given away with {job}.{attempt}")
        (policy,) = connection.execute("SELECT dependency_policy FROM jobs WHERE id = ?", (job,)).fetchone()
        for parent, state in connection.execute(
            "SELECT id, state FROM dependencies JOIN jobs ON id = parent WHERE child = ?", (job,)
        ):
            if graph.of_parent(DependencyPolicy(policy), JobState(state)) is not graph.Standing.MET:
                self.wrong(6, f"job {job} is given away while its parent {parent} is {state}")
        for parent, standing in self._array_parents(connection, job, policy):
            if standing is not graph.Standing.MET:
                self.wrong(6, f"job {job} is given away while array {parent} stands {standing}")
        self._throttled(connection, job)

    def _throttled(self, connection: sqlite3.Connection, job: int) -> None:
        """Of its array no more are given away than may run, but for those that came back by themselves."""
        row = connection.execute(
            "SELECT arrays.id, max_parallel FROM jobs JOIN arrays ON arrays.id = array_id WHERE jobs.id = ?", (job,)
        ).fetchone()
        if row is None or row[1] is None:
            return
        alive, back = connection.execute(
            "SELECT count(*), count(a.resumed_at) FROM jobs JOIN assignments AS a ON a.id = jobs.assignment "
            "WHERE array_id = ? AND jobs.state IN ('assigned', 'running')",
            (row[0],),
        ).fetchone()
        if alive > row[1] and not back:
            self.wrong(13, f"{alive} members of array {row[0]} run with job {job}, and {row[1]} may")

    def _array_parents(self, connection: sqlite3.Connection, job: int, policy: str) -> list[tuple[int, graph.Standing]]:
        parents = connection.execute("SELECT array FROM array_dependencies WHERE child = ?", (job,)).fetchall()
        return [(parent, self._standing(connection, parent, policy)) for (parent,) in parents]

    def _standing(self, connection: sqlite3.Connection, array: int, policy: str) -> graph.Standing:
        """By the members themselves, and not by what is counted of them."""
        states = connection.execute("SELECT state, count(*) FROM jobs WHERE array_id = ? GROUP BY state", (array,))
        return arrays.standing(DependencyPolicy(policy), {JobState(state): count for state, count in states})

    def _lost(self, connection: sqlite3.Connection, key: Key) -> None:
        """A lease ran out: only silence while the broker listened counts, but for a little of each gap."""
        reason, policy, grace_s = connection.execute(
            "SELECT a.reason_code, policy, grace_s FROM assignments AS a JOIN jobs ON jobs.id = job "
            "WHERE job = ? AND a.attempt = ?",
            key,
        ).fetchone()
        if reason != "worker_lost" or key not in self.renewed:
            return
        exclusive = OnWorkerLost(policy) is OnWorkerLost.REQUEUE_EXCLUSIVE
        lease_s = self.exclusive_s + grace_s if exclusive else self.lease_s
        then, now = self.renewed[key], self.listened()
        counted_s = now[0] - then[0] + GAP_S * (now[1] - then[1])
        if counted_s < lease_s - 0.1:
            self.wrong(9, f"{key[0]}.{key[1]} is given up after {counted_s:.3f} s in which its worker could be heard")

    def _room_freed(self, key: Key) -> None:
        execution = self.executions.get(key)
        if execution is not None and not execution.tree.gone:
            self.wrong(5, f"the room of {key[0]}.{key[1]} is free, and its processes live")

    def _consistent(self, connection: sqlite3.Connection, job: int) -> None:
        """One job, as it stands after a commit."""
        state, policy, blocked = connection.execute(
            "SELECT state, dependency_policy, blocked FROM jobs WHERE id = ?", (job,)
        ).fetchone()
        rows = connection.execute(
            "SELECT attempt, state, exit_code FROM assignments WHERE job = ? ORDER BY attempt", (job,)
        ).fetchall()
        live = [row for row in rows if row[1] in _LIVE]
        if len(live) > 1:
            self.wrong(4, f"job {job} has {len(live)} live assignments")
        if (state in ("assigned", "running")) != bool(live):
            self.wrong(2, f"job {job} is {state} with {[row[1] for row in rows]}")
        if not connection.execute(
            "SELECT 1 FROM jobs JOIN events ON events.job = coalesce(jobs.array_id, jobs.id) "
            "WHERE jobs.id = ? AND type IN ('job_submitted', 'array_submitted')",
            (job,),
        ).fetchone():
            self.wrong(7, f"job {job} is in the tables, and no event says so")
        if state == JobState.QUEUED:
            open_parents = 0
            for parent, of in connection.execute(
                "SELECT id, state FROM dependencies JOIN jobs ON id = parent WHERE child = ?", (job,)
            ):
                standing = graph.of_parent(DependencyPolicy(policy), JobState(of))
                open_parents += standing is graph.Standing.OPEN
                if standing is graph.Standing.NEVER:
                    self.wrong(6, f"job {job} waits for job {parent}, which is {of}")
            for parent, standing in self._array_parents(connection, job, policy):
                open_parents += standing is graph.Standing.OPEN
                if standing is graph.Standing.NEVER:
                    self.wrong(6, f"job {job} waits for array {parent}, which can't let it start")
            if open_parents != blocked:
                self.wrong(6, f"job {job} waits for {open_parents} jobs, and is said to wait for {blocked}")
        if JobState(state) in TERMINAL:
            self._children(connection, job, state)
        if rows:
            self._ended(job, rows[-1], state)

    def _children(self, connection: sqlite3.Connection, job: int, state: str) -> None:
        for child, policy in connection.execute(
            "SELECT id, dependency_policy FROM dependencies JOIN jobs ON id = child WHERE parent = ? AND state = 'queued'",
            (job,),
        ):
            if graph.of_parent(DependencyPolicy(policy), JobState(state)) is graph.Standing.NEVER:
                self.wrong(6, f"job {child} waits for job {job}, which is {state}")

    def _ended(self, job: int, newest: tuple[int, str, int | None], state: str) -> None:
        """An end that was committed is the one that happened."""
        attempt, assignment, exit_code = newest
        execution = self.executions.get((job, attempt))
        if state == JobState.COMPLETED and (execution is None or assignment != AssignmentState.SUCCEEDED):
            self.wrong(3, f"job {job} is completed, and {job}.{attempt} ({assignment}) never ran")
            return
        if execution is None or assignment not in ("succeeded", "failed", "cancelled", "preempted"):
            return
        tree = execution.tree
        if not tree.gone:
            self.wrong(2, f"job {job} is {state}, and processes of {job}.{attempt} live")
        elif assignment in ("succeeded", "failed") and tree.status is not None:
            if tree.status.exit_code != exit_code:
                self.wrong(3, f"job {job} is {state} with exit code {exit_code}; it was {tree.status}")
            if tree.termed and state == JobState.COMPLETED:
                self.wrong(10, f"job {job} is completed by a process that was told to stop")

    # ---- what clients were told

    def submitted(self, jobs: range) -> None:
        for job in jobs:
            self.acknowledged[job] = Known()
            if job not in self.states:
                self.wrong(1, f"job {job} was acknowledged, and was never committed")

    def done_under_key(self, key: str, job: int) -> None:
        """One key, one job: whatever was lost, and however often it was asked."""
        known = self.keyed.setdefault(key, job)
        if known != job:
            self.wrong(15, f"key {key} stands for job {job}, and job {known} was told of it before")
        if (
            other := next((name for name, told in self.keyed.items() if told == job and name != key), None)
        ) is not None:
            self.wrong(15, f"job {job} was told of for key {key}, and for key {other}")

    def retried(self, job: int) -> None:
        """It does not come back: nothing else may become of it."""
        self._given_up.add(job)

    def cancel_asked(self, jobs: Iterable[int], array: int | None) -> None:
        """Whether or not the answer comes: an orphan may have been given up by it."""
        self._given_up.update(jobs)
        self._given_up.update(() if array is None else [array])

    def cancelled(self, job: int, state: str) -> None:
        """Acknowledged while the job was in this state."""
        known = self.acknowledged.setdefault(job, Known())
        known.surely = known.surely or state in ("assigned", "cancelled")
        known.cancelled_at = known.cancelled_at if known.cancelled_at is not None else self.now()

    def answered(self, job: int, state: str, asked_at: float) -> None:
        """A client heard `state`: the job must have been in it between question and answer."""
        if state not in self._states_since(job, asked_at):
            self.wrong(3, f"job {job} was said to be {state}; since the question it was {self.states[job][-3:]}")

    def state_of(self, job: int) -> str | None:
        """As it is committed now."""
        return self.states[job][-1][1] if job in self.states else None

    def _states_since(self, job: int, at: float) -> set[str]:
        found: set[str] = set()
        for when, state in self.states[job]:
            if when <= at:
                found = set()
            found.add(state)
        return found

    # ---- whole views

    def check_fold(self, connection: sqlite3.Connection) -> None:
        events = events_in(connection)
        try:
            folded = fold(events)
        except OutOfOrder as error:
            self.wrong(7, str(error))
            return
        for line in differences(folded, jobs_in(connection)):
            self.wrong(7, line)
        told, is_so = fold_workers(events), workers_in(connection)
        if told != is_so:
            self.wrong(7, f"workers: events tell {told}, the tables {is_so}")

    def check_logs(self, logs: Path) -> None:
        """The broker's copies are what the processes wrote, as far as they go."""
        for (job, attempt), execution in self.executions.items():
            kept = _bytes(logs / str(job // 1000) / str(job) / f"{attempt}.log")
            if bytes(execution.tree.wrote[: len(kept)]) != kept:
                self.wrong(8, f"the broker's copy of {job}.{attempt} is not what the process wrote")

    def check_end(self, connection: sqlite3.Connection, logs: Path) -> None:
        """All is healed and quiet."""
        for job, state in connection.execute("SELECT id, state FROM jobs"):
            if JobState(state) not in TERMINAL:
                self.wrong(9, f"job {job} is still {state}")
        ids = {row[0] for row in connection.execute("SELECT id FROM jobs")}
        for job in sorted(self.acknowledged.keys() - ids):
            self.wrong(1, f"job {job} was acknowledged, and is missing")
        for (job, attempt), execution in self.executions.items():
            if not execution.tree.gone:
                self.wrong(11, f"processes of {job}.{attempt} live on {execution.machine.name}")
        for name, number in connection.execute(
            "SELECT worker_name, count(*) FROM assignments WHERE reserved = 1 GROUP BY worker_name"
        ):
            self.wrong(5, f"{number} assignments still take room on {name}")
        self._check_arrays(connection)
        self._check_retries(connection)
        self._check_cancelled(connection)
        self._check_retried(connection)
        self._check_nothing_thrown_away(connection)
        self._check_whole_logs(connection, logs)
        self.check_logs(logs)
        self.check_fold(connection)
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
        (of_workers,) = connection.execute("SELECT count(*) FROM events WHERE job IS NULL").fetchone()
        (stops,) = connection.execute("SELECT count(*) FROM events WHERE type = 'job_stop_requested'").fetchone()
        if events - of_workers - stops > 2 * self.transitions:
            self.wrong(12, f"{events} events for {self.transitions} transitions")

    def _check_arrays(self, connection: sqlite3.Connection) -> None:
        """What is kept of arrays is what their members are; and one that has given up has ended so."""
        kept = connection.execute("SELECT array, state, n FROM array_counts WHERE n <> 0").fetchall()
        counted = connection.execute(
            "SELECT array_id, state, count(*) FROM jobs WHERE array_id IS NOT NULL GROUP BY array_id, state"
        ).fetchall()
        if sorted(kept) != sorted(counted):
            self.wrong(7, f"members per state are kept as {kept}, and are {counted}")
        for (shape,) in connection.execute("SELECT id FROM shapes WHERE held = 1"):
            self.wrong(13, f"shape {shape} is held back, and nothing of its array runs")

    def _check_retries(self, connection: sqlite3.Connection) -> None:
        """Each retry is of a failure of the program itself, none is left of a job that failed so, and no more are used."""
        for job, retries, retried, state, reason in connection.execute(
            "SELECT id, retries, retried, state, reason_code FROM jobs"
        ):
            failed = [
                row[0]
                for row in connection.execute(
                    "SELECT attempt FROM assignments WHERE job = ? AND state = 'failed' AND reason_code = 'exit_code'"
                    " AND exit_code IS NOT NULL",
                    (job,),
                )
            ]
            ended_so = state == JobState.FAILED and reason == "exit_code"
            if retried != len(failed) - ended_so or retried > retries:
                self.wrong(14, f"job {job} has used {retried} of {retries} retries, and {len(failed)} starts failed")
            for attempt in failed:
                execution = self.executions.get((job, attempt))
                if execution is None or execution.tree.status is None or not execution.tree.status.exit_code:
                    self.wrong(14, f"{job}.{attempt} counts as a failure of its own, and was none")
            stops = connection.execute(
                "SELECT count(*) FROM assignments WHERE job = ? AND stop_kind IN ('cancel', 'wall')", (job,)
            ).fetchone()[0]
            if ended_so and retried < retries and not stops:
                self.wrong(14, f"job {job} failed with {retries - retried} retries left")

    def _check_retried(self, connection: sqlite3.Connection) -> None:
        """Old and new name each other, the old one has stayed as it was, and each key stands for a job that is there."""
        for job, state, by, of in connection.execute(
            "SELECT old.id, old.state, old.retried_as, new.retry_of FROM jobs AS old "
            "LEFT JOIN jobs AS new ON new.id = old.retried_as WHERE old.retried_as IS NOT NULL"
        ):
            if of != job or JobState(state) not in TERMINAL:
                self.wrong(15, f"job {job} is {state}, retried as job {by}, which says that it is one of {of}")
        for job, number in connection.execute(
            "SELECT retry_of, count(*) FROM jobs WHERE retry_of IS NOT NULL GROUP BY retry_of HAVING count(*) > 1"
        ):
            self.wrong(15, f"job {job} was retried {number} times")
        for key, job in connection.execute(
            "SELECT key, job FROM keys WHERE job IS NOT NULL AND job NOT IN (SELECT id FROM jobs)"
        ):
            self.wrong(15, f"key {key} stands for job {job}, which is not there")

    def _check_cancelled(self, connection: sqlite3.Connection) -> None:
        for job, known in self.acknowledged.items():
            if known.cancelled_at is None:
                continue
            row = connection.execute("SELECT state, attempt FROM jobs WHERE id = ?", (job,)).fetchone()
            if row is not None and known.surely and row[0] != JobState.CANCELLED:
                self.wrong(10, f"job {job} was cancelled before its start was heard, and is {row[0]}")
            if row is None or row[0] != JobState.COMPLETED:
                continue
            execution = self.executions.get((job, row[1]))
            if execution is None or execution.at >= known.cancelled_at:
                self.wrong(10, f"job {job} was cancelled, started after that, and is completed")

    def _check_nothing_thrown_away(self, connection: sqlite3.Connection) -> None:
        """What ended by itself, and whose worker kept its records, is not called lost."""
        for job, attempt, array in connection.execute(
            "SELECT id, attempt, array_id FROM jobs WHERE state = 'orphaned'"
        ):
            execution = self.executions.get((job, attempt))
            if not self._given_up.isdisjoint((job, array)):
                continue  # an orphan that was cancelled is not taken back
            if execution is None or execution.disturbed or execution.tree.termed or execution.tree.status is None:
                continue
            if execution.tree.status.exit_code is not None:
                self.wrong(9, f"job {job} is orphaned, though {job}.{attempt} ended with {execution.tree.status}")

    def _check_whole_logs(self, connection: sqlite3.Connection, logs: Path) -> None:
        """Of what ended by a final report, and whose worker still had all, everything is here."""
        for job, attempt, size in connection.execute(
            "SELECT job, attempt, final_size FROM assignments WHERE final_size IS NOT NULL"
        ):
            execution = self.executions.get((job, attempt))
            kept = _bytes(logs / str(job // 1000) / str(job) / f"{attempt}.log")
            if len(kept) < size:
                self.wrong(8, f"of {size} bytes that {job}.{attempt} declared, {len(kept)} are here")
            if execution is not None and not execution.disturbed and len(kept) < len(execution.tree.wrote):
                self.wrong(8, f"of {len(execution.tree.wrote)} bytes that {job}.{attempt} wrote, {len(kept)} are here")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
