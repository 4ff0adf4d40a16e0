"""Jobs by the clock: each instant is an ordinary job, submitted in the transaction that moves on to the next one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

import anyio.to_thread
import structlog

from broker.core import cron
from broker.core.retention import REMOVED
from broker.service import snapshots, views
from broker.service.completing import complete, completed
from broker.service.context import Broker, Caller
from broker.service.submit import Denial, accept, admit_environment, members_of
from broker.service.transition import event
from broker.store.contract import Row, StorageFailed, StorageFull, Tx
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.schedules import LABEL, Missed, Overlap, Schedule, ScheduleList, ScheduleRequest
from broker.wire.states import Scope

log = structlog.get_logger("broker.schedules")

BATCH = 100
LATE_MS = 60_000
"""An instant is missed when nothing was submitted for so long after it."""


async def put(broker: Broker, caller: Caller, name: str, asked: ScheduleRequest) -> Schedule:
    """Make it or change it. Refused: what no job could be submitted of, and a time that never comes."""
    await anyio.to_thread.run_sync(_judge, broker, caller, asked)

    def fn(tx: Tx) -> Schedule:
        known = tx.one("schedule", name=name)
        next_at = _next(asked.cron, asked.tz, tx.now_ms)
        same = known is not None and (known["cron"], known["tz"]) == (asked.cron, asked.tz) and not known["paused"]
        if known is not None and same and not asked.paused:
            next_at = known["next_at"]  # one that is due just now is not passed over
        tx.run(
            "put_schedule",
            name=name,
            cron=asked.cron,
            tz=asked.tz,
            spec=asked.job.model_dump_json(exclude_unset=True, exclude_none=True),
            missed=asked.missed.value,
            overlap=asked.overlap.value,
            paused=int(asked.paused),
            actor=caller.actor,
            token=caller.token,
            next_at=next_at,
        )
        event(tx, EventType.SCHEDULE_CHANGED, project=asked.job.project, actor=caller.actor, data={"schedule": name})
        return _view(_known(tx, name))

    return await broker.store.run(fn)


async def get(broker: Broker, name: str) -> Schedule:
    return await broker.store.read(lambda tx: _view(_known(tx, name)))


async def list_all(broker: Broker) -> ScheduleList:
    return await broker.store.read(lambda tx: ScheduleList(schedules=[_view(row) for row in tx.all("schedules")]))


async def pause(broker: Broker, caller: Caller, name: str, *, paused: bool) -> Schedule:
    """It rests, or goes on with the next instant; what passes meanwhile is not missed."""

    def fn(tx: Tx) -> Schedule:
        row = _known(tx, name)
        if bool(row["paused"]) != paused:
            next_at = _next(row["cron"], row["tz"], tx.now_ms)
            tx.run("pause_schedule", name=name, paused=int(paused), next_at=next_at)
            data = {"schedule": name, "paused": paused}
            event(tx, EventType.SCHEDULE_CHANGED, actor=caller.actor, data=data)
        return _view(_known(tx, name))

    return await broker.store.run(fn)


async def remove(broker: Broker, caller: Caller, name: str) -> ScheduleList:
    """It runs no more; its jobs stay. A repeat is refused as `unknown_schedule`."""

    def fn(tx: Tx) -> None:
        _known(tx, name)
        tx.run("drop_schedule", name=name)
        event(tx, EventType.SCHEDULE_REMOVED, actor=caller.actor, data={"schedule": name})

    await broker.store.run(fn)
    return await list_all(broker)


def _judge(broker: Broker, caller: Caller, asked: ScheduleRequest) -> None:
    if LABEL in (asked.job.labels or {}):
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"the label {LABEL} is the schedule's own",
            field="job.labels",
            hint="leave it out",
        )
    if ":" in (asked.job.snapshot or ""):
        raise Refused(
            ProblemCode.INVALID_SPEC,
            "a schedule takes a snapshot at each instant",
            field="job.snapshot",
            hint="snapshot=copy, or snapshot=git",
        )
    snapshots.check(caller, asked.job)
    whole = complete(broker, asked.job)
    admit_environment(whole.spec)
    members_of(whole.spec)


def _next(expression: str, tz: str, at_ms: int) -> int:
    try:
        return cron.next_after(expression, tz, at_ms)
    except cron.BadSchedule as error:
        raise Refused(
            ProblemCode.INVALID_SPEC, str(error), field=error.field, hint='as --cron "0 3 * * *" --tz Europe/Berlin'
        ) from None


def _known(tx: Tx, name: str) -> Row:
    row = tx.one("schedule", name=name)
    if row is None:
        raise Refused(
            ProblemCode.UNKNOWN_SCHEDULE, f"there is no schedule {name}", field="name", hint="job schedule list"
        )
    return row


def _view(row: Row) -> Schedule:
    job = json.loads(row["spec"])
    if job.get("env"):
        job["env"] = dict.fromkeys(job["env"], REMOVED)
    return Schedule(
        name=row["name"],
        cron=row["cron"],
        tz=row["tz"],
        job=job,
        missed=Missed(row["missed"]),
        overlap=Overlap(row["overlap"]),
        paused=bool(row["paused"]),
        actor=row["actor"],
        next_at=None if row["paused"] else views.at(row["next_at"]),
        last_at=views.at(row["last_at"]),
        last_job=row["last_job"],
    )


# ---- their instants


async def fire(broker: Broker) -> None:
    """Submit what is due."""
    now_ms = broker.clock.wall_ms()
    for row in await broker.store.read(lambda tx: tx.all("schedules_due", now=now_ms, limit=BATCH)):
        try:
            await _fire(broker, row["name"])
        except (StorageFull, StorageFailed):
            raise
        except Exception:
            log.exception("a schedule can't be looked at", schedule=row["name"])


async def _fire(broker: Broker, name: str) -> None:
    try:
        await _submit(broker, name)
    except Refused as refused:  # nothing of it is kept, so the instant is passed in a transaction of its own
        said = {"reason": refused.code.value, "message": refused.detail}
        await broker.store.run(lambda tx: _skip(tx, name, said))


async def _submit(broker: Broker, name: str) -> None:
    row = await broker.store.read(lambda tx: tx.one("schedule", name=name))
    if row is None:
        return
    caller = Caller(actor=row["actor"], scopes=frozenset({Scope.SUBMIT}), token=row["token"])
    asked = JobSpec.model_validate_json(row["spec"])
    spec = asked.model_copy(update={"labels": {**(asked.labels or {}), LABEL: name}})
    reason = await broker.store.read(lambda tx: _why_not(tx, row, broker.clock.wall_ms()))
    if reason is not None:
        await broker.store.run(partial(_skip, name=name, said=reason))
        return
    whole = await completed(broker, await snapshots.taken(broker, caller, spec))
    members = await anyio.to_thread.run_sync(members_of, whole.spec)

    def fn(tx: Tx) -> None:
        now = tx.one("schedule", name=name)
        if now is None or now["paused"] or (now["spec"], now["next_at"]) != (row["spec"], row["next_at"]):
            return  # it was changed meanwhile, and is looked at again
        if (reason := _why_not(tx, now, tx.now_ms)) is not None:
            _skip(tx, name, reason)
            return
        answer = accept(tx, broker, caller, whole, members)
        if isinstance(answer, Denial):
            _skip(tx, name, {"reason": "quota", "message": answer.refused.detail})
            return
        tx.run("schedule_ran", name=name, at=now["next_at"], job=answer.id or answer.array)
        _move(tx, now)

    await broker.store.run(fn, admits=True)


def _why_not(tx: Tx, row: Row, now_ms: int) -> dict[str, object] | None:
    """Why this instant is no job."""
    late_ms = now_ms - row["next_at"]
    if late_ms > LATE_MS and row["missed"] == Missed.SKIP:
        return {"reason": "missed", "message": f"nothing could be submitted for {late_ms // 1000} s after it"}
    last = row["last_job"]
    if row["overlap"] == Overlap.SKIP and last is not None and tx.one("still_runs", job=last) is not None:
        return {"reason": "overlap", "message": f"job {last} has not ended", "job": last}
    return None


def _skip(tx: Tx, name: str, said: Mapping[str, object]) -> None:
    row = tx.one("schedule", name=name)
    if row is None or row["paused"] or row["next_at"] > tx.now_ms:
        return
    data = {"schedule": name, "due_at": (views.at(row["next_at"]) or views.EPOCH).isoformat(), **said}
    event(tx, EventType.SCHEDULE_SKIPPED, actor=row["actor"], data=data)
    _move(tx, row)


def _move(tx: Tx, row: Row) -> None:
    """To the first instant that is still to come: however many have passed, they were one."""
    tx.run("move_schedule", name=row["name"], next_at=cron.next_after(row["cron"], row["tz"], tx.now_ms))
