"""Rows as answers: what anyone may see of jobs and workers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from broker.core import gate
from broker.core.arrays import aggregate
from broker.core.graph import Parent
from broker.core.matching import COPIES, Machine, Shape, never, waiting
from broker.core.rows import JobRow
from broker.service import array_counts, rows, unreadable
from broker.service.machines import Shown, host_of, troubles
from broker.service.quotas import Quotas
from broker.service.rows import given, peak, progress, reached
from broker.store.contract import Row, Tx
from broker.wire.events import Event, EventType
from broker.wire.jobs import Assignment, Job, Reason, Stopping
from broker.wire.machines import Facts
from broker.wire.states import AssignmentState, Duty, JobState
from broker.wire.workers import COPIES_SINCE, OLDEST_PROTOCOL, Slots, Worker, WorkerCpus, WorkerState

# At submit, "it will start in a moment" and "the machine is busy" are no news; these are.
MOST_RUNNING_SHOWN = 100
MOST_HINTS = 1000
MOST_ENDS_NAMED = 4
EPOCH = datetime.fromtimestamp(0, UTC)
WORTH_SAYING_AT_SUBMIT = frozenset(
    {"no_worker", "no_worker_fits", "workers_offline", "workers_cordoned", "workers_paused"}
)


def at(ms: int | None) -> datetime | None:
    return None if ms is None else rows.at(ms)


def machines(tx: Tx) -> list[Machine]:
    shown = Shown(tx)
    return [replace(with_room(row), host=shown.host(row)) for row in tx.all("workers")]


def with_room(worker: Row) -> Machine:
    """A worker, and what is left of it."""
    return replace(registered(worker), free=worker["slots"] - worker["used"] - worker["strangers"])


def gated(row: Row) -> Reason | None:
    """What keeps a queued job from any worker, besides others that it depends on."""
    hold, retried, retries = bool(row["hold"]), row["retried"], row["retries"]
    return gate.holds(hold=hold, not_before=row["not_before"], retried=retried, retries=retries)


def waits_for(parent: Parent) -> Reason:
    """Why a job waits that depends on others. `parent`: the first that has not ended."""
    return Reason(code="dependencies", message=f"waits for {parent}, which is {parent.state}")


@dataclass(frozen=True, slots=True)
class Kept:
    """A worker is kept for a job until some of what runs there has ended."""

    worker: str
    job: int
    after: Sequence[str]

    @property
    def for_others(self) -> Reason:
        return Reason(
            code="reservation", message=f"{self.worker} is kept for job {self.job}, which waits for {self._ends}"
        )

    @property
    def for_itself(self) -> str:
        return f"{self.worker} is kept for it until {self._ends}"

    @property
    def _ends(self) -> str:
        named = ", ".join(self.after[:MOST_ENDS_NAMED])
        more = len(self.after) - MOST_ENDS_NAMED
        return f"the end of {named}" + (f" and {more} more" if more > 0 else "")


class Waiting:
    """Why queued jobs wait. Machines and reasons are read once for all jobs of one answer."""

    def __init__(self, tx: Tx, quotas: Quotas) -> None:
        self._tx, self._quotas = tx, quotas
        self._machines: list[Machine] | None = None
        self._shapes: dict[int, Shape] = {}
        self._reasons: dict[tuple[Shape, str], Reason] = {}
        self._kept: list[Kept] | None = None

    def kept(self) -> list[Kept]:
        """What is kept on which worker, for which job."""
        if self._kept is None:
            rows = self._tx.all("kept_rooms")
            self._kept = [
                Kept(row["worker_name"], row["job"], json.loads(row["after"]))
                for row in rows
                if row["worker"] is not None
            ]
        return self._kept

    def reason(self, shape: Shape, place: str) -> Reason:
        if (shape, place) not in self._reasons:
            self._reasons[shape, place] = self._reason(shape, place)
        return self._reasons[shape, place]

    def of_job(self, row: Row) -> Reason | None:
        if row["hold"] or (row["not_before"] is not None and not row["blocked"]):
            return gated(row)
        if row["blocked"]:
            parent = array_counts.open_parent(self._tx, row["id"])
            return waits_for(parent) if parent is not None else None
        if row["prefers"] is not None:
            return _left_to(self.name_of(row["prefers"]))
        if row["shape"] not in self._shapes:
            key = self._tx.one("shape_key", shape=row["shape"])
            assert key is not None, "jobs refer to their shape"
            self._shapes[row["shape"]] = Shape.from_key(key["key"])
        found = self.reason(self._shapes[row["shape"]], row["place"])
        if found.code in ("quota", "array_throttle"):
            return found
        mine = [kept for kept in self.kept() if kept.job == row["id"]]
        if not mine:
            return found
        return found.model_copy(update={"message": f"{found.message}; {mine[0].for_itself}"})

    def name_of(self, worker: str) -> str:
        """Of a worker's id, which stands for itself when nobody has it any more."""
        row = self._tx.one("worker", worker=worker)
        return str(row["name"]) if row is not None else worker

    def _reason(self, shape: Shape, place: str) -> Reason:
        if self._machines is None:
            self._machines = machines(self._tx)
        refused = [
            (row["worker"], Reason(code=row["code"], message=row["message"]))
            for row in self._tx.all("refusals_of_place", place=place, key=shape.key())
        ]
        found = waiting(shape, self._machines, refused, {kept.worker: kept.for_others for kept in self.kept()})
        if found.code in WORTH_SAYING_AT_SUBMIT:
            return found
        return self._throttle(shape) or self._quotas.holds(shape) or found

    def _throttle(self, shape: Shape) -> Reason | None:
        return array_counts.throttle(self._tx, shape.array) if shape.array is not None else None


def _left_to(worker: str) -> Reason:
    return Reason(code="preferred_worker", message=f"for a while it is left to {worker}, where it ran before")


class Fits:
    """For each shape a worker that could take it, as last seen: a hint, which is checked before it is believed."""

    def __init__(self) -> None:
        self._worker: dict[Shape, str] = {}

    def somebody(self, tx: Tx, shape: Shape) -> bool:
        """Could a worker that is there take such a job, at least when it has nothing else to do?"""
        hint = self._worker.get(shape)
        row = tx.one("worker", worker=hint) if hint is not None else None
        if row is not None and row["online"] and _would_take(tx, shape, row):
            return True
        for row in tx.all("online_workers"):
            if _would_take(tx, shape, row):
                if len(self._worker) >= MOST_HINTS:
                    self._worker.clear()
                self._worker[shape] = row["id"]
                return True
        return False


def _would_take(tx: Tx, shape: Shape, worker: Row) -> bool:
    machine = registered(worker)
    if machine.closed is not None or never(shape, machine):
        return False
    return not shape.demand or not never(shape, replace(machine, host=host_of(tx, worker)))


def hopeless(tx: Tx, fits: Fits, shape: Shape, place: str, quotas: Quotas) -> Reason | None:
    """What is worth saying at submit: that no worker which is there could ever take the job, or that a quota is in the
    way."""
    if fits.somebody(tx, shape):
        return quotas.holds(shape)
    found = Waiting(tx, quotas).reason(shape, place)
    return found if found.code in WORTH_SAYING_AT_SUBMIT or found.code == "quota" else None


def registered(worker: Row) -> Machine:
    """What a worker said of itself, as if nothing ran there."""
    return Machine(
        name=worker["name"],
        online=bool(worker["online"]),
        slots=worker["slots"],
        free=worker["slots"],
        tags=frozenset(_tags(worker)) | ({COPIES} if worker["protocol"] >= COPIES_SINCE else set()),
        closed=closed(worker),
        closed_why=worker["duty_why"] if worker["duty"] != Duty.SERVING else None,
        platform=worker["platform"],
        gpus=worker["gpus"],
    )


def closed(worker: Row) -> WorkerState | None:
    """Why a worker that is there is given no new work."""
    if worker["duty"] != Duty.SERVING:
        return WorkerState(worker["duty"])
    if worker["protocol"] < OLDEST_PROTOCOL:
        return WorkerState.OUTDATED
    if not worker["accepts"]:
        return WorkerState.PAUSED
    return None if worker["polls"] else WorkerState.NOT_POLLING


def _tags(worker: Row) -> list[str]:
    own: list[str] = json.loads(worker["tags"])
    return own if worker["given_tags"] == "[]" else sorted({*own, *json.loads(worker["given_tags"])})


def _kind(row: Row) -> Literal["lease", "adopted"] | None:
    if row["lease_ttl_ms"] is not None:
        return "lease"
    return "adopted" if row["adopted_pid"] is not None else None


def job(tx: Tx, row: Row, waits: Waiting) -> Job:
    """The concise view. `log_bytes` is for the caller to add: it lies in files."""
    state = JobState(row["state"])
    stopping = None
    if row["stop_by"] is not None and state in (JobState.ASSIGNED, JobState.RUNNING):
        stopping = Stopping(
            by=row["stop_by"], why=row["stop_why"], grace_s=row["stop_grace_s"], kill_failed=row["kill_failed"]
        )
    return Job(
        id=row["id"],
        state=state,
        name=row["name"],
        project=row["project"],
        kind=_kind(row),
        command=row["command"],
        array=row["array_id"],
        array_index=row["array_index"],
        values=json.loads(row["array_values"]) if row["array_values"] else None,
        worker=row["worker"] if state is not JobState.QUEUED else None,
        gpus=_gpus(row) if state is not JobState.QUEUED else None,
        attempt=row["attempt"] or None,
        exit_code=row["exit_code"],
        reason=reason(row),
        waiting=waits.of_job(row) if state is JobState.QUEUED else None,
        stopping=stopping,
        created_at=at(row["created_at"]),
        started_at=at(row["started_at"]),
        ended_at=at(row["ended_at"]),
        duration_s=_duration(row, tx.now_ms),
        progress=progress(row) if state is not JobState.QUEUED else None,
        artifacts=_artifacts(row) if state is not JobState.QUEUED else None,
        logs_pruned=None if row["logs_kept"] else True,
        retry_of=row["retry_of"],
        retried_as=row["retried_as"],
        warnings=_warnings(tx, row, state),
    )


def array(tx: Tx, row: Row) -> Job:
    """An array as a whole, by its own row."""
    counts = array_counts.counts(tx, row["id"])
    return Job(
        id=row["id"],
        state=aggregate(counts),
        name=row["name"],
        project=row["project"],
        command=row["command"],
        array=row["id"],
        count=row["size"],
        ids=f"{row['id']}..{row['id'] + row['size'] - 1}",
        counts={state.value: n for state, n in counts.items()},
        waiting=array_counts.throttle(tx, row["id"]) if counts[JobState.QUEUED] else None,
        created_at=at(row["created_at"]),
    )


def _gpus(row: Row) -> list[str] | None:
    what = given(row)
    return [share.uuid for share in what.gpus or ()] or None if what is not None else None


def _artifacts(row: Row) -> str | None:
    """How many files it left are here, and of how many, until all are."""
    announced, here = row["artifacts"] or 0, row["artifacts_kept"] or 0
    if not row["logs_kept"] or not max(announced, here):
        return None
    return str(here) if here >= announced else f"{here} of {announced}"


def _warnings(tx: Tx, row: Row, state: JobState) -> list[str] | None:
    if state is JobState.QUEUED:
        return None
    if state not in (JobState.ASSIGNED, JobState.RUNNING):
        return json.loads(row["said"]) if row["said"] is not None else None
    found = troubles(tx, row["worker_id"], _gpus(row) or ()) if row["given"] is not None else []
    if row["kill_failed"] is not None:
        left = row["kill_failed"]
        found.append(f"the kill failed: {left} does not end (pid:state); it keeps its room on {row['worker']}")
    return found or None


def assignment(row: Row, *, listened: int, now_ms: int) -> Assignment:
    state = AssignmentState(row["state"])
    live = state in (AssignmentState.PENDING, AssignmentState.ACKED, AssignmentState.STARTED)
    return Assignment(
        assignment=f"{row['job']}.{row['attempt']}",
        attempt=row["attempt"],
        worker=row["worker_name"],
        state=state,
        exit_code=row["exit_code"],
        signal=row["signal"],
        reason=reason(row),
        gpus=_gpus(row),
        started_at=at(row["started_at"]),
        ended_at=at(row["ended_at"]),
        expired_at=at(row["expired_at"]),
        resumed_at=at(row["resumed_at"]),
        dropped_bytes=row["dropped"] or None,
        peak=peak(row),
        checkpoint_at=at(row["checkpoint_at"]),
        progress=progress(row),
        artifacts_expected=row["artifacts"] or None,
        lease_expires_at=at(now_ms + row["lease_until"] - listened) if live else None,
    )


def workers(tx: Tx) -> list[Worker]:
    machines_ = Shown(tx)
    running: defaultdict[str, list[str]] = defaultdict(list)
    for held in tx.all("running_on_workers"):
        running[held["worker"]].append(f"{held['job']}.{held['attempt']}")
    known = tx.all("workers")
    names = Counter(row["name"] for row in known)
    return [
        _worker(tx, row, running[row["id"]][:MOST_RUNNING_SHOWN], machines_, alone=names[row["name"]] == 1)
        for row in known
    ]


def worker(tx: Tx, id_: str) -> Worker:
    """One worker, as in the list of all."""
    known = tx.all("workers")
    [row] = [row for row in known if row["id"] == id_]
    running = [f"{held['job']}.{held['attempt']}" for held in tx.all("running_on_workers") if held["worker"] == id_]
    alone = sum(other["name"] == row["name"] for other in known) == 1
    return _worker(tx, row, running[:MOST_RUNNING_SHOWN], Shown(tx), alone=alone)


def _worker(tx: Tx, row: Row, running: list[str], machines_: Shown, *, alone: bool) -> Worker:
    facts, host = machines_.facts(row["id"]), machines_.host(row)
    return Worker(
        name=row["name"],
        id=None if alone else row["id"],
        state=(closed(row) or WorkerState.ONLINE) if row["online"] else WorkerState.LOST,
        cordoned=row["duty"] != Duty.SERVING or None,
        cordon_reason=Reason(code="launch_failures", message=row["duty_why"]) if row["duty_why"] else None,
        version=row["version"],
        host=row["host"],
        slots=Slots(total=row["slots"], used=row["used"] + row["strangers"]),
        cpus=WorkerCpus(**facts.cpus.model_dump()) if facts else None,
        ram_gb=facts.ram_gb if facts else None,
        ram_reserved_gb=host.ram_reserved_gb or None,
        resources={name: Slots(total=count, used=host.used(name)) for name, count in host.resources} or None,
        disk_free_gb=facts.disk_free_gb if facts else None,
        battery=facts.battery if facts else None,
        driver=_driver(facts) if facts else None,
        gpus=machines_.gpus(row),
        gpus_why=facts.gpus_why if facts else None,
        stale=True if facts is not None and not row["online"] else None,
        tags=_tags(row) or None,
        running=running or None,
        last_seen_s=max(0.0, round((tx.now_ms - row["last_seen_at"]) / 1000, 1)),
        supervision=json.loads(row["supervision"]) or None,
    )


def _driver(facts: Facts) -> str | None:
    if facts.driver is None:
        return None
    return f"{facts.driver} (CUDA {facts.cuda})" if facts.cuda else facts.driver


def events(found: Iterable[Row]) -> list[Event]:
    """Those that can be read: one that can't keeps nobody from the others."""
    return unreadable.without("events", found, _event, key="seq")


def _event(row: Row) -> Event:
    happened_at = at(row["at"])
    assert happened_at is not None
    return Event(
        seq=row["seq"],
        at=happened_at,
        type=EventType(row["type"]),
        job=row["job"],
        attempt=row["attempt"],
        worker=row["worker"],
        project=row["project"],
        actor=row["actor"],
        data=json.loads(row["data"]) if row["data"] else None,
    )


def reason(row: Row) -> Reason | None:
    if row["reason_code"] is None:
        return None
    limit = reached(row)
    own = limit is not None and limit.code == row["reason_code"]
    return Reason(
        code=row["reason_code"],
        message=row["reason"] or row["reason_code"],
        limit_s=limit.limit_s if own and limit else None,
        seen_s=limit.seen_s if own and limit else None,
    )


def told(job: JobRow) -> Reason | None:
    """The same of a job that was read."""
    return None if job.reason_code is None else Reason(code=job.reason_code, message=job.reason or job.reason_code)


def _duration(row: Row, now_ms: int) -> float | None:
    if row["started_at"] is None:
        return None
    lasted_ms: int = (row["ended_at"] or now_ms) - row["started_at"]
    return max(0.0, round(lasted_ms / 1000, 3))
