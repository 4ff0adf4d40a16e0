"""What an operator does with workers: let them take no new work, drain, give tags, forget."""

from __future__ import annotations

import json

from broker.service import views
from broker.service.context import Broker, Caller
from broker.service.transition import worker_event
from broker.service.wake import ListVoid, RoomFree
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Duty
from broker.wire.workers import Worker, WorkerList, WorkerUpdate

MOST_NAMED = 10


async def update(broker: Broker, caller: Caller, called: str, request: WorkerUpdate) -> Worker:
    """Cordon, drain or resume a worker, or give it tags. It may be away: what is said holds when it is back.

    A repeat changes nothing. Refused: `unknown_worker`.
    """

    def fn(tx: Tx) -> Worker:
        id_ = _called(tx, called)["id"]
        if request.cordon or request.drain:
            _close(tx, caller, id_, Duty.DRAINING if request.drain else Duty.CORDONED)
        if request.resume:
            _resume(tx, caller, id_)
        if request.tags is not None:
            _give_tags(tx, caller, id_, sorted(set(request.tags)))
        return views.worker(tx, id_)

    return await broker.store.run(fn)


async def remove(broker: Broker, caller: Caller, called: str) -> WorkerList:
    """Forget a worker that is lost, with what it still held; the workers that are left.

    Refused: `unknown_worker`; `worker_in_use` while it is there, or owns jobs that have not ended.
    """

    def fn(tx: Tx) -> WorkerList:
        found = _called(tx, called)
        forget(tx, found["id"], found["name"], caller.actor)
        return WorkerList(workers=views.workers(tx))

    return await broker.store.run(fn)


def forget(tx: Tx, worker: str, name: str, actor: str | None) -> None:
    """Remove the row. Its history stays in its assignments, and a job that it would bring back can still come back."""
    live = tx.all("live_on_worker", worker=worker)
    if live:
        named = ", ".join(f"{row['job']}.{row['attempt']}" for row in live[:MOST_NAMED])
        raise Refused(
            ProblemCode.WORKER_IN_USE,
            f"{name} still owns {len(live)} job(s) that have not ended: {named}",
            hint="they are given up when their leases end; job_cancel ends them sooner",
        )
    if not tx.run("remove_worker", worker=worker):
        raise Refused(ProblemCode.WORKER_IN_USE, f"{name} is there", hint="end its process first; then it is lost")
    tx.run("free_worker", worker=worker)
    tx.run("drop_refusals", worker=worker)
    worker_event(tx, EventType.WORKER_REMOVED, worker, name, actor=actor)


def settle_drain(tx: Tx, worker: str) -> None:
    """A worker that drains is drained once nothing holds resources there; and drains again if something still does."""
    row = tx.one("worker", worker=worker)
    assert row is not None
    if row["duty"] not in (Duty.DRAINING, Duty.DRAINED):
        return
    empty = tx.one("first_reserved", worker=worker) is None and row["strangers"] == 0
    duty = Duty.DRAINED if empty else Duty.DRAINING
    if duty == row["duty"]:
        return
    tx.run("set_duty", worker=worker, duty=duty.value, why=row["duty_why"])
    if duty is Duty.DRAINED:
        worker_event(tx, EventType.WORKER_DRAINED, worker, row["name"])
    else:
        worker_event(tx, EventType.WORKER_CORDONED, worker, row["name"], data={"drain": True})


def _called(tx: Tx, called: str) -> Row:
    """The worker of this name, or of this id. Of several of one name it is the one that is there."""
    found = tx.all("workers_called", worker=called)
    if not found:
        raise Refused(
            ProblemCode.UNKNOWN_WORKER,
            f"there is no worker {called}",
            field="worker",
            hint="worker_list shows their names",
        )
    first = found[0]
    if len(found) > 1 and not first["online"] and first["id"] != called:
        raise Refused(
            ProblemCode.UNKNOWN_WORKER,
            f"{len(found)} workers were called {called}, and none is there",
            field="worker",
            hint="name one by the id that worker_list shows",
        )
    return first


def _close(tx: Tx, caller: Caller, worker: str, duty: Duty) -> None:
    row = tx.one("worker", worker=worker)
    assert row is not None
    now = Duty(row["duty"])
    if now is duty or (duty is Duty.DRAINING and now is Duty.DRAINED):
        return
    tx.run("set_duty", worker=worker, duty=duty.value, why=row["duty_why"])
    drains = duty is Duty.DRAINING
    worker_event(tx, EventType.WORKER_CORDONED, worker, row["name"], actor=caller.actor, data={"drain": drains})
    settle_drain(tx, worker)


def cordon(tx: Tx, worker: str, why: str) -> None:
    """The broker's own wish: this worker does not do well. One that is cordoned, or drains, stays as it is."""
    row = tx.one("worker", worker=worker)
    assert row is not None
    if Duty(row["duty"]) is not Duty.SERVING:
        return
    tx.run("set_duty", worker=worker, duty=Duty.CORDONED.value, why=why)
    data = {"drain": False, "code": "launch_failures", "why": why}
    worker_event(tx, EventType.WORKER_CORDONED, worker, row["name"], actor="jobd", data=data)


def _resume(tx: Tx, caller: Caller, worker: str) -> None:
    row = tx.one("worker", worker=worker)
    assert row is not None
    if Duty(row["duty"]) is Duty.SERVING:
        return
    tx.run("set_duty", worker=worker, duty=Duty.SERVING.value, why=None)
    tx.run("note_launches", worker=worker, failures="[]")
    worker_event(tx, EventType.WORKER_RESUMED, worker, row["name"], actor=caller.actor)
    tx.tell(RoomFree(worker))


def _give_tags(tx: Tx, caller: Caller, worker: str, tags: list[str]) -> None:
    row = tx.one("worker", worker=worker)
    assert row is not None
    if json.loads(row["given_tags"]) == tags:
        return
    tx.run("give_tags", worker=worker, tags=json.dumps(tags))
    worker_event(tx, EventType.WORKER_UPDATED, worker, row["name"], actor=caller.actor, data={"tags": tags})
    tx.tell(ListVoid(worker))  # its parked poll knows the old tags: the next one has the new
