"""Leases for work that is no job: asked for, renewed, given back, and ended when nobody renews them.

Each is a job with a process that only holds (`core.leases`); here is what it has besides a job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from broker.core.effective import effective
from broker.core.leases import holder, state_of, unused
from broker.core.matching import Machine, Shape, never, reasons
from broker.core.rows import AssignmentRow, JobRow, StopKind
from broker.core.states import TERMINAL, Cause, Facts
from broker.service import machines, views
from broker.service.context import Broker, Caller
from broker.service.rows import given, read_assignment, read_job, unknown_job
from broker.service.stops import not_confirmed, request_stop
from broker.service.submit import Denial, accept, cut
from broker.service.transition import apply, decide, event
from broker.service.wake import JobChanged
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.jobs import Stopping
from broker.wire.leases import Lease, LeaseRequest, LeaseState
from broker.wire.machines import Facts as MachineFacts
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import AssignmentState, JobState, Scope

LOOKS_AGAIN_S = 5.0
ANY = "any"


async def request(broker: Broker, caller: Caller, said: LeaseRequest) -> Lease:
    """A lease, waiting in the queue among jobs. It must be renewed from now on, or it leaves the queue.

    Refused: `unknown_worker` where no worker is on the machine that it is for, and `quota_exceeded`.
    """

    def fn(tx: Tx) -> Lease | Denial:
        spec = holder(said, _worker_for(tx, said))
        whole = effective(spec, broker.settings.projects)
        accepted = accept(tx, broker, caller, whole)
        if isinstance(accepted, Denial):
            return accepted
        job = accepted.id
        assert job is not None, "a lease is no array"
        ttl_ms = int(said.ttl_s * 1000)
        until = broker.listening.now_ms() + ttl_ms
        tx.run("begin_lease", job=job, ttl=ttl_ms, until=until, what=cut(said.what or "a lease"))
        return _view(tx, broker, _lease(tx, job))

    answer = await broker.store.run(fn, admits=True)
    if isinstance(answer, Denial):
        raise answer.refused
    return answer


async def renew(broker: Broker, caller: Caller, job: int) -> Lease:
    """Another `ttl_s` from now. Refused: `unknown_lease`, another's (`forbidden`), one that ends or has ended
    (`already_terminal`)."""

    def fn(tx: Tx) -> Lease:
        row = _lease(tx, job)
        if row["actor"] != caller.actor and not caller.may(Scope.OPERATOR):
            raise Refused(
                ProblemCode.FORBIDDEN, f"lease {job} belongs to {row['actor']}", hint="only its owner renews a lease"
            )
        view = _view(tx, broker, row)
        if view.state is LeaseState.ENDED or not row["lease_until"]:
            why = view.reason.message if view.reason else view.stopping.why if view.stopping else view.state.value
            raise Refused(
                ProblemCode.ALREADY_TERMINAL,
                f"lease {job} is over: {why}",
                hint="what ran under it must end; ask for another one",
            )
        tx.run("renew_lease", job=job, until=broker.listening.now_ms() + row["lease_ttl_ms"])
        return _view(tx, broker, _lease(tx, job))

    return await broker.store.run(fn)


async def release(broker: Broker, caller: Caller, job: int, *, force: bool) -> Lease:
    """Give it back, or leave the queue. A repeat changes nothing.

    Refused: `unknown_lease`, and another actor's without `force` (`confirmation_needed`).
    """

    def fn(tx: Tx) -> Lease:
        row = _lease(tx, job)
        if row["actor"] != caller.actor and not force:
            raise not_confirmed(job, row["actor"], "the lease was not released")
        _end(tx, broker, job, StopKind.LEASE_RELEASED, caller.actor, f"released by {caller.actor}")
        return _view(tx, broker, _lease(tx, job))

    return await decide(broker.store, fn)


async def look(
    broker: Broker, job: int, unless: LeaseState | None, wait_s: float, gone: Callable[[], Awaitable[bool]]
) -> Lease:
    """The lease as it stands; after at most `wait_s` if that is as `unless` says. Refused: `unknown_lease`."""
    deadline = broker.clock.boot_s() + wait_s
    first: Lease | None = None
    with broker.wake.watch_jobs([job]) as watch:
        while True:
            found = await broker.store.read(lambda tx: _view(tx, broker, _lease(tx, job)))
            first = first or found
            left_s = deadline - broker.clock.boot_s()
            news = found.state is not unless or found.idle != first.idle
            if news or left_s <= 0 or broker.wake.closed:
                return found
            if not await watch.wait(min(left_s, LOOKS_AGAIN_S)) and await gone():
                return found


def expire(id_: int, tx: Tx, *, broker: Broker, listened: int) -> bool:
    """Not renewed in its time, which is measured as all deadlines are: while the broker listened."""
    row = tx.one("lease", job=id_)
    if row is None or row["lease_until"] > listened:
        return False
    why = f"not renewed for {row['lease_ttl_ms'] / 1000:g} s"
    if not row["lease_until"]:
        why = "it was over before its worker came back"
    return _end(tx, broker, id_, StopKind.LEASE_EXPIRED, "jobd", why)


def idle(tx: Tx) -> set[int]:
    """Leases of which nothing is on their devices."""
    facts: dict[str, MachineFacts | None] = {}
    found = set()
    for row in tx.all("leases_with_devices"):
        if row["worker"] not in facts:
            facts[row["worker"]] = machines.facts_of(tx, row["worker"])
        known, what = facts[row["worker"]], given(row)
        mine = [share.uuid for share in what.gpus or ()] if what is not None else []
        if mine and known is not None and unused(known.gpus, mine, f"{row['id']}.{row['attempt']}"):
            found.add(row["id"])
    return found


def tell_idle(id_: int, tx: Tx, *, idle_s: float) -> bool:
    job = read_job(tx, id_)
    assignment = read_assignment(tx, job.assignment) if job is not None else None
    if job is None or assignment is None or not tx.run("note_idle_lease", job=id_, now=tx.now_ms):
        return False
    event(
        tx,
        EventType.LEASE_IDLE,
        job=id_,
        attempt=assignment.attempt,
        worker=assignment.worker_name,
        project=job.project,
        data={"idle_s": idle_s},
    )
    tx.tell(JobChanged(id_))
    return True


def _end(tx: Tx, broker: Broker, job_id: int, kind: StopKind, by: str, why: str) -> bool:
    """Out of the queue, or a stop of what holds. It is said once, and holds also for one that was lost and comes back.

    Whether anything changed.
    """
    job = read_job(tx, job_id)
    if job is None:
        return False
    first = tx.run("close_lease", job=job_id)
    if first:
        said = EventType.LEASE_RELEASED if kind is StopKind.LEASE_RELEASED else EventType.LEASE_EXPIRED
        event(tx, said, job=job_id, project=job.project, actor=by, data={"why": why})
    if job.state in TERMINAL:
        return False
    facts = Facts(now=tx.now_ms, listened=broker.listening.now_ms(), reason_code=kind.value, reason=why, gone=True)
    assignment = read_assignment(tx, job.assignment) if job.state is not JobState.QUEUED else None
    if assignment is None:
        apply(tx, job, None, Cause.CANCEL_QUEUED, facts, actor=by)
    elif assignment.state is AssignmentState.PENDING:
        apply(tx, job, assignment, Cause.CANCEL_PENDING, facts, actor=by)
    else:
        # Who gives a lease back has ended its use of it: nothing is waited for.
        grace_s = 0.0 if kind is StopKind.LEASE_RELEASED else None
        asked = assignment.stop is not None and not first  # what it was asked to end for stands
        return not asked and request_stop(tx, broker, job, assignment, kind, by, why, grace_s)
    return True


def _lease(tx: Tx, job: int) -> Row:
    row = tx.one("lease", job=job)
    if row is not None:
        return row
    if tx.one("job_owner", job=job) is None:
        raise unknown_job(tx, job)
    raise Refused(
        ProblemCode.UNKNOWN_LEASE, f"job {job} is no lease", field="job", hint="job_cancel stops a job that runs"
    )


def _view(tx: Tx, broker: Broker, row: Row) -> Lease:
    job = read_job(tx, row["id"])
    assert job is not None, "it was read in this transaction"
    owned = job.state is not JobState.QUEUED
    assignment = read_assignment(tx, job.assignment) if owned else None
    what = assignment.given if assignment is not None else None
    until = row["lease_until"]
    return Lease(
        job=job.id,
        state=state_of(job, assignment),
        worker=assignment.worker_name if assignment is not None else None,
        gpus=[share.uuid for share in what.gpus or ()] or None if what is not None else None,
        ttl_s=row["lease_ttl_ms"] / 1000,
        expires_in_s=None if not until else max(0.0, round((until - broker.listening.now_ms()) / 1000, 1)),
        idle=row["lease_idle_at"] is not None or None,
        waiting=None if owned else views.Waiting(tx, broker.quotas(tx)).of_job(row),
        stopping=_stopping(job, assignment),
        reason=views.told(job),
    )


def _stopping(job: JobRow, assignment: AssignmentRow | None) -> Stopping | None:
    stop = assignment.stop if assignment is not None and job.state not in TERMINAL else None
    return None if stop is None else Stopping(by=stop.by, why=stop.why, grace_s=stop.grace_s)


def _worker_for(tx: Tx, said: LeaseRequest) -> str:
    """Of the workers on the machine one that has room now, else one that could ever take it, else the first."""
    if said.machine is None:
        assert said.worker is not None, "a request says where"
        return said.worker
    rows = tx.all("workers_on_machine", machine=said.machine)
    if said.worker is not None:
        rows = [row for row in rows if row["name"] == said.worker]
    if not rows:
        what = f"worker {said.worker} does not run" if said.worker is not None else "no worker runs"
        raise Refused(
            ProblemCode.UNKNOWN_WORKER,
            f"{what} on the machine that the lease is for, so nothing of it can be leased",
            field="worker" if said.worker is not None else "machine",
            hint="start one there: job up, or job worker with JOBD_URL; job workers shows those that are known",
        )
    shape = Shape.of(holder(said, ANY))
    found = [replace(views.with_room(row), host=machines.host_of(tx, row)) for row in rows]
    return min(found, key=partial(_unfit, shape)).name


def _unfit(shape: Shape, machine: Machine) -> tuple[bool, bool]:
    mine = replace(shape, worker=machine.name)
    return bool(never(mine, machine)), bool(reasons(mine, machine))
