"""What may be believed of the broker after each step, worked out anew from the tables and from what really ran.

Nothing here asks the broker's own code: a mistake there must not repeat itself here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.wire.problems import ProblemCode
from broker.wire.workers import Ack, Finish, Held, Outcome, Phase, Report, Start, Transition, VerdictWord
from support.machines.hosts import Sent
from support.machines.world import Row, Tables

ENDS = ("completed", "failed", "cancelled", "preempted", "orphaned", "scheduling_timeout")
LIVE = ("pending", "acked", "started")
BY_POLICY = {
    "success": {"completed"},
    "any_exit": set(ENDS),
    "failure": set(ENDS) - {"completed"},
}
NOTHING_RAN = (Outcome.REFUSED, Outcome.NEVER_EXECUTED)
W = VerdictWord


# ---- the fence


def refusal(tables: Tables, sent: Sent) -> ProblemCode | None:
    """Why a whole message is refused."""
    worker = tables.workers.get(sent.host.id)
    if worker is None or worker["epoch"] < sent.epoch:
        return ProblemCode.UNKNOWN_WORKER
    if worker["epoch"] > sent.epoch:
        return ProblemCode.SUPERSEDED
    return ProblemCode.WORKER_NAME_TAKEN if _fresh(worker, sent) and _name_taken(tables, worker) else None


def _fresh(worker: Row, sent: Sent) -> bool:
    return bool(sent.message.seq > worker["seq"])


def _name_taken(tables: Tables, worker: Row) -> bool:
    others = [row for row in tables.workers.values() if row["online"] and row["id"] != worker["id"]]
    return not worker["online"] and any(row["name"] == worker["name"] for row in others)


def is_used(tables: Tables, sent: Sent) -> bool:
    """The list of this message is newer than the last one used."""
    return refusal(tables, sent) is None and _fresh(tables.workers[sent.host.id], sent)


def stands(tables: Tables, worker: str, job: int, attempt: int, token: str) -> str:
    """How the delivery that a worker writes for stands: live, lost, ended, stale or foreign."""
    row = tables.assignments.get((job, attempt))
    if row is None or row["token"] != token or row["worker"] != worker:
        return "foreign"
    owner = tables.jobs[job]
    newest = owner["attempt"] == attempt
    if newest and row["state"] in LIVE:
        return "live"
    lost = row["state"] == "expired" and owner["lost_assignment"] == row["id"]
    if newest and lost and owner["state"] in ("orphaned", "queued"):
        return "lost"
    return "ended" if row["final_size"] is not None and not (newest and lost) else "stale"


def verdict(tables: Tables, worker: str, said: Transition) -> set[VerdictWord]:
    """The words with which a transition may be answered."""
    stood = stands(tables, worker, said.job, said.attempt, said.token)
    row = tables.assignments.get((said.job, said.attempt), {})
    if stood in ("foreign", "stale"):
        return {W.STALE_ASSIGNMENT}
    if stood == "ended":
        return {W.DUPLICATE}
    if isinstance(said, Finish):
        if stood == "lost":
            return {W.ACCEPTED, W.DUPLICATE} if row["final_size"] is not None else {W.ACCEPTED}
        never_acked = row["state"] == "pending" and said.final.outcome not in NOTHING_RAN
        return {W.STALE_ASSIGNMENT} if never_acked else {W.ACCEPTED}
    if stood == "lost":
        return {W.LEASE_LOST}
    if isinstance(said, Ack):
        if row["state"] == "pending":
            return {W.ACCEPTED}
        return {W.DUPLICATE} if (row["state"], row["shim"]) == ("acked", said.shim) else {W.STALE_ASSIGNMENT}
    assert isinstance(said, Start)
    return {{"pending": W.STALE_ASSIGNMENT, "acked": W.ACCEPTED, "started": W.DUPLICATE}[row["state"]]}


def verdict_of_entry(tables: Tables, worker: str, held: Held) -> set[VerdictWord]:
    """The same for an entry of the list that has not ended."""
    stood = stands(tables, worker, held.job, held.attempt, held.token)
    if stood == "lost":
        if tables.assignments[held.job, held.attempt]["final_size"] is not None:
            return {W.DUPLICATE}
        return {W.LEASE_LOST if held.phase is Phase.PREPARING else W.ACCEPTED}
    return {
        {"live": W.ACCEPTED, "ended": W.DUPLICATE, "stale": W.STALE_ASSIGNMENT, "foreign": W.STALE_ASSIGNMENT}[stood]
    }


def predicted(tables: Tables, sent: Sent) -> list[tuple[str, int, int, set[VerdictWord]]]:
    """The verdicts of a message, as far as the tables before it tell: an end may change all that comes after it."""
    found = []
    said = sent.message.transitions if isinstance(sent.message, Report) else []
    for transition in said:
        words = verdict(tables, sent.host.id, transition)
        found.append((transition.kind, transition.job, transition.attempt, words))
        if isinstance(transition, Finish):
            return found
    if is_used(tables, sent):
        for held in sent.message.held:
            if held.phase is Phase.ENDED:
                break
            words = verdict_of_entry(tables, sent.host.id, held)
            found.append(("held", held.job, held.attempt, words))
    return found


def absent(tables: Tables, sent: Sent) -> set[tuple[int, int]]:
    """What this message proves that the worker does not have: it would be in the list."""
    message = sent.message
    if not message.recovered or not is_used(tables, sent):
        return set()
    listed = {(held.job, held.attempt) for held in message.held}
    return {
        key
        for key, row in tables.assignments.items()
        if row["worker"] == sent.host.id
        and key not in listed
        and (row["epoch"] < sent.epoch or (row["epoch"] == sent.epoch and _arrived(row, message.seen)))
    }


def _arrived(row: Row, seen: int) -> bool:
    """The worker has had this delivery: it acknowledged it, or has processed the last answer that carried it."""
    return row["acked_at"] is not None or row["state"] != "pending" or seen >= row["answer"]


def unseen(tables: Tables, sent: Sent) -> set[tuple[int, int]]:
    """What this worker was given, and may never have heard of: it must be told again."""
    if not sent.message.recovered:
        return set()
    return {
        key
        for key, row in tables.assignments.items()
        if row["worker"] == sent.host.id
        and row["state"] == "pending"
        and row["epoch"] == sent.epoch
        and row["answer"] > sent.message.seen
    }


def spoken_of(sent: Sent) -> set[tuple[int, int]]:
    """Deliveries whose end this message may bring."""
    said = sent.message.transitions if isinstance(sent.message, Report) else []
    ended = {(t.job, t.attempt) for t in said if isinstance(t, Finish)}
    return ended | {(held.job, held.attempt) for held in sent.message.held if held.phase is Phase.ENDED}


def check_expiries(before: Tables, after: Tables, sent: Sent | None) -> None:
    """Outside a sweep, only evidence of its own worker makes a delivery expire; and then it does."""
    proved = absent(before, sent) if sent else set()
    may = proved | (spoken_of(sent) if sent else set())
    for key, row in before.assignments.items():
        if row["state"] in LIVE and after.assignments[key]["state"] == "expired":
            assert key in may, f"{key} expired, and nothing proved that its worker does not have it"
    for key in proved:
        row = after.assignments[key]
        assert row["state"] not in LIVE and not row["reserved"], f"{key} is not on its worker, and is {row['state']}"


def check_end(before: Tables, after: Tables, sent: Sent, verdict: VerdictWord | None) -> None:
    """What an accepted final report, the first thing said in a message, makes of its job."""
    said = sent.message.transitions[0] if isinstance(sent.message, Report) and sent.message.transitions else None
    if not isinstance(said, Finish) or verdict is not W.ACCEPTED:
        return
    row, job = before.assignments[said.job, said.attempt], after.jobs[said.job]
    cancelled, early = row["stop_kind"] == "cancel", bool(row["stop_early"])
    again = {"queued", "assigned"} | ({"cancelled"} if forbidden_by(after, said.job) else set())
    preempted = {"preempted"} if job["on_preempt"] == "stop" else again
    stopped = {"cancel": {"cancelled"}, "preempt": preempted}.get(row["stop_kind"])
    match said.final.outcome:
        case Outcome.EXITED if not (cancelled and early):
            allowed = {"completed" if said.final.exit_code == 0 else "failed"}
        case Outcome.EXITED:
            allowed = {"cancelled"}
        case Outcome.REFUSED | Outcome.NEVER_EXECUTED:
            allowed = again if stopped is None or row["state"] == "expired" else stopped
        case _ if row["state"] == "expired":
            allowed = {before.jobs[said.job]["state"]}  # it was lost already: no more is known
        case Outcome.STOPPED:
            allowed = stopped or again | {"orphaned"}
        case _:
            allowed = {"cancelled"} if cancelled else (stopped or again) | again | {"orphaned"}
    assert job["state"] in allowed, f"{said.final.outcome} of {said.job}.{said.attempt}: it is {job['state']}"


# ---- dependencies


def forbidden_by(tables: Tables, job: int) -> list[int]:
    """The parents whose ends forbid the start of this job."""
    good = BY_POLICY[tables.jobs[job]["dependency_policy"]]
    states = {parent: tables.jobs[parent]["state"] for parent in tables.parents.get(job, [])}
    return [parent for parent, state in states.items() if state in ENDS and state not in good]


def open_parents(tables: Tables, job: int) -> list[int]:
    return [parent for parent in tables.parents.get(job, []) if tables.jobs[parent]["state"] not in ENDS]


# ---- what really ran


@dataclass
class Process:
    """One execution. `end`: how it is known to have ended; None while it may be alive."""

    job: int
    attempt: int
    host: str
    policy: str
    cpus: float
    alive: bool = True
    end_known: bool = True


@dataclass
class Truth:
    """What no table can deny: what clients were told, and what ran."""

    acknowledged: set[int] = field(default_factory=set)
    processes: list[Process] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    """The answer to a cancel said that they are."""
    stopping: dict[int, int] = field(default_factory=dict)
    """Job → attempt that a cancel was accepted for."""
    stopping_early: set[int] = field(default_factory=set)
    """The same, before its start was heard."""
    heard: dict[tuple[int, int], float] = field(default_factory=dict)
    """Delivery → the listening time at which its lease began last."""

    def begins(self, tables: Tables, process: Process, token: str) -> None:
        """The moment before exec: nothing may speak against it."""
        job, attempt = process.job, process.attempt
        assert stands(tables, process.host, job, attempt, token) == "live", f"{job}.{attempt} executes and is not live"
        assert tables.assignments[job, attempt]["state"] == "acked", f"{job}.{attempt} executes unacknowledged"
        assert job not in self.cancelled, f"job {job} was cancelled, and runs"
        earlier = [other for other in self.processes if other.job == job]
        assert all(other.attempt != attempt for other in earlier), f"{job}.{attempt} executes twice"
        if process.policy == "orphan":
            assert all(not other.alive and other.end_known for other in earlier), f"orphan {job} runs again"
        if process.policy == "requeue_exclusive":
            assert not any(other.alive for other in earlier), f"two copies of exclusive job {job}"
        self.processes.append(process)

    def ends(self, job: int, attempt: int, *, known: bool = True) -> None:
        for process in self.processes:
            if (process.job, process.attempt) == (job, attempt):
                process.alive, process.end_known = False, known


@dataclass(frozen=True)
class Step:
    """What was done between two looks at the tables."""

    what: str
    claimants: frozenset[str] = frozenset()
    """Workers that may have been given something."""
    returned: frozenset[tuple[int, int]] = frozenset()
    """Deliveries that their holder spoke of."""
    sweeps: bool = False
    quiet: bool = False
    """Nothing may have changed at all."""


def check(before: Tables, after: Tables, truth: Truth, step: Step) -> None:
    """All that holds after every step; raises AssertionError."""
    _nothing_is_missing(before, after, truth)
    for row in after.jobs.values():
        _rows_agree(after, row)
        _ends_are_final(before, after, row, step)
        _children_wait(after, row)
        _words_given_stand(after, row, truth)
    _claims_are_right(before, after, step)
    _room_is_kept(after, truth)
    _events_tell_changes(before, after, step)
    tally: dict[str, int] = {}
    for row in after.jobs.values():
        tally[row["state"]] = tally.get(row["state"], 0) + 1
    assert after.counts == tally, "counts are not what the jobs are"


def _nothing_is_missing(before: Tables, after: Tables, truth: Truth) -> None:
    assert truth.acknowledged <= after.jobs.keys(), "an acknowledged job is missing"
    assert before.assignments.keys() <= after.assignments.keys(), "a delivery is forgotten"


def _rows_agree(tables: Tables, job: Row) -> None:
    live = tables.live(job["id"])
    assert (live is not None) == (job["state"] in ("assigned", "running")), f"job {job['id']}: {job['state']}, {live}"
    if live is not None:
        assert live["attempt"] == job["attempt"], "an old delivery is live"
        assert (live["state"] == "started") == (job["state"] == "running")
        assert live["reserved"], "a live delivery holds no room"
    if job["lost_assignment"] is not None:
        newest = tables.newest(job["id"])
        assert newest is not None and newest["id"] == job["lost_assignment"]
        assert newest["state"] == "expired" and job["state"] in ("orphaned", "queued")


def _ends_are_final(before: Tables, after: Tables, job: Row, step: Step) -> None:
    was = before.jobs.get(job["id"])
    if was is None or was["state"] not in ENDS:
        return
    now = job["state"]
    if now == was["state"]:
        if was["cascaded_by"] == job["cascaded_by"]:
            assert was["exit_code"] == job["exit_code"] and was["ended_at"] == job["ended_at"]
        return
    if was["state"] == "orphaned":
        by_holder = (job["id"], was["attempt"]) in step.returned
        assert by_holder, f"orphaned job {job['id']} is {now}, and its holder said nothing"
        return
    uncancelled = was["state"] == "cancelled" and was["cascaded_by"] is not None
    assert uncancelled, f"job {job['id']} was {was['state']} and is {now}"
    assert before.jobs[was["cascaded_by"]]["state"] != after.jobs[was["cascaded_by"]]["state"] or step.returned


def _children_wait(tables: Tables, job: Row) -> None:
    if job["state"] == "queued":
        forbidding = forbidden_by(tables, job["id"])
        assert not forbidding, f"job {job['id']} is queued, and {forbidding} forbid its start"
        waits_for = open_parents(tables, job["id"])
        assert job["blocked"] == len(waits_for), f"job {job['id']} counts {job['blocked']}, it waits for {waits_for}"
    if job["cascaded_by"] is not None:
        assert job["state"] == "cancelled"
        assert forbidden_by(tables, job["id"]), f"job {job['id']} is cancelled by the cascade, and nothing forbids it"


def _words_given_stand(tables: Tables, job: Row, truth: Truth) -> None:
    number = job["id"]
    if number in truth.cancelled:
        assert job["state"] == "cancelled", f"job {number} was cancelled, and is {job['state']}"
    if number in truth.stopping:
        allowed = {"assigned", "running", "cancelled", "completed", "failed"}
        if number in truth.stopping_early:
            allowed -= {"completed", "failed"}
        assert job["state"] in allowed, f"a stop of job {number} was accepted, and it is {job['state']}"
        assert job["attempt"] == truth.stopping[number], f"job {number} was to stop, and was given out again"


def _claims_are_right(before: Tables, after: Tables, step: Step) -> None:
    new = [row for key, row in after.assignments.items() if key not in before.assignments]
    for row in new:
        worker, job = row["worker"], after.jobs[row["job"]]
        assert worker in step.claimants, f"{row['job']}.{row['attempt']} was given to a worker that did not ask"
        assert not forbidden_by(after, job["id"]) or job["state"] == "cancelled"
        assert not open_parents(after, job["id"]), f"job {job['id']} was given out before its parents ended"
    for worker in {row["worker"] for row in new}:
        offered = after.workers[worker]
        used = after.used(worker) + offered["strangers"]
        assert used <= offered["slots"], f"{used} of {offered['slots']} given out on {offered['name']}"


def _room_is_kept(tables: Tables, truth: Truth) -> None:
    for process in truth.processes:
        if process.alive:
            row = tables.assignments[process.job, process.attempt]
            assert row["reserved"], f"{process.job}.{process.attempt} is alive, and its room is free"


TOLD_BY_THEMSELVES = {"reclaim_suppressed", "job_waiting"}
"""Of what no row of a job, delivery or worker shows: time passed, or a reason is another one by now."""


def _events_tell_changes(before: Tables, after: Tables, step: Step) -> None:
    told = [event["type"] for event in after.events if event["type"] not in TOLD_BY_THEMSELVES]
    was, now = ({key: row["state"] for key, row in tables.assignments.items()} for tables in (before, after))
    changed = before.jobs != after.jobs or was != now
    changed |= [_is(row) for row in before.workers.values()] != [_is(row) for row in after.workers.values()]
    assert changed or not told, f"nothing changed in {step.what}, and {told} are told"
    versions = sum(row["version"] for row in after.jobs.values()) - sum(row["version"] for row in before.jobs.values())
    new_jobs = len(after.jobs) - len(before.jobs)
    new_lives = sum(_is(row) != _is(before.workers.get(worker, {})) for worker, row in after.workers.items())
    assert len(told) <= 2 * versions + new_jobs + 2 * new_lives, f"a storm of events in {step.what}: {told}"
    if step.quiet:
        assert not changed, f"{step.what} changed something"


def _is(worker: Row) -> tuple[object, object]:
    return worker.get("online"), worker.get("epoch")


def ready_and_fitting(tables: Tables, worker: Row, listened_ms: int) -> list[int]:
    """Jobs that this worker could be given at once, and for whose sake it is not kept. None may be left when it asked."""
    refused = {place for id_, place, until in tables.refusals if id_ == worker["id"] and until > listened_ms}
    if "*" in refused:
        return []
    free = worker["slots"] - tables.used(worker["id"]) - worker["strangers"]
    found = [
        job["id"]
        for job in tables.jobs.values()
        if job["state"] == "queued"
        and job["blocked"] == 0
        and job["cpus"] <= free
        and job["place"] not in refused
        and job["prefers"] in (None, worker["id"])
    ]
    first = tables.jobs.get(tables.kept.get(worker["id"], 0))
    if first is None or first["state"] != "queued" or first["blocked"]:
        return found
    return [id_ for id_ in found if id_ == first["id"] or tables.jobs[id_]["priority"] > first["priority"]]
