"""Changes of jobs that have not ended. What was asked for stays; what counts instead says that it comes from here."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.core.effective import seconds
from broker.core.rows import JobRow
from broker.core.states import TERMINAL, Said, ready_until
from broker.service import array_counts, keys, views
from broker.service.context import Broker, Caller
from broker.service.rows import read_job, unknown_job
from broker.service.transition import change, decide, event, say
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.jobs import MAX_COUNT, Updated, UpdateRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState

# Whoever started it was given these, and is told of no others.
BEFORE_THE_START = (
    "hold",
    "release",
    "max_wall_s",
    "idle_timeout_s",
    "first_output_timeout_s",
    "gpu_idle_timeout_s",
    "scheduling_timeout_s",
)


async def update(broker: Broker, caller: Caller, job_id: int, request: UpdateRequest) -> Updated:
    """Change one job, or all members of an array that have not ended. All of it, or nothing.

    Refused: `unknown_job`; `already_terminal`; `already_started`, for all but the priority and max_parallel of what a worker has (an
    array's members that wait are changed, and the answer counts the others); `invalid_request`, max_parallel of what has none.
    """

    def fn(tx: Tx) -> Updated:
        job = read_job(tx, job_id)
        if job is None:
            raise unknown_job(tx, job_id)
        key = keys.of(request, caller, "update", job.project, about=job_id)
        return keys.once(tx, key, Updated, lambda: once(tx, job))

    def once(tx: Tx, job: JobRow) -> Updated:
        array = tx.one("array", array=job_id)
        changed = partial(_change, tx, broker, caller, request)
        return _one(tx, broker, job, request, changed) if array is None else _array(tx, caller, array, request, changed)

    return await decide(broker.store, fn)


def _one(tx: Tx, broker: Broker, job: JobRow, request: UpdateRequest, changed: Callable[[JobRow], bool]) -> Updated:
    if job.state in TERMINAL:
        raise _terminal(f"job {job.id} is {job.state} already")
    if request.max_parallel is not None:
        hint = "leave it out" if job.array is None else f"its array is {job.array}"
        raise _no_throttle(f"job {job.id} is not an array", hint)
    _refuse_started(job, request)
    count = int(changed(job))
    row = tx.one("job_view", job=job.id)
    assert row is not None, "it was read in this transaction"
    waiting = views.Waiting(tx, broker.quotas(tx)).of_job(row) if job.state is JobState.QUEUED else None
    return Updated(id=job.id, state=job.state, changed=count, waiting=waiting)


def _array(tx: Tx, caller: Caller, array: Row, request: UpdateRequest, changed: Callable[[JobRow], bool]) -> Updated:
    live = [
        job for row in tx.all("live_members", array=array["id"], limit=MAX_COUNT) if (job := read_job(tx, row["id"]))
    ]
    if not live:
        raise _terminal(f"all members of array {array['id']} have ended")
    if request.max_parallel is not None:
        _throttle(tx, caller, array, request.max_parallel)
    started = [job for job in live if _is_too_late(job, request)]
    if len(started) == len(live):
        _refuse_started(live[0], request)
    return Updated(id=array["id"], changed=sum(changed(job) for job in live), started=len(started) or None)


def _throttle(tx: Tx, caller: Caller, array: Row, most: int) -> None:
    if array["shape"] is None:
        raise _no_throttle(f"array {array['id']} was submitted without max_parallel", "cancel it and submit it anew")
    if most == array["max_parallel"]:
        return
    array_counts.set_most(tx, array, most)
    data = {"max_parallel": {"from": array["max_parallel"], "to": most}}
    event(tx, EventType.JOB_UPDATED, job=array["id"], project=array["project"], actor=caller.actor, data=data)


def _change(tx: Tx, broker: Broker, caller: Caller, request: UpdateRequest, job: JobRow) -> bool:
    """Whether it is not as it was."""
    asked = tx.one("spec_of_job", job=job.id)
    assert asked is not None, "jobs refer to their specification"
    now = {**json.loads(asked["json"]), **json.loads(asked["changes"] or "{}"), "priority": asked["priority"]}
    wanted = {name: value for name, value in _wanted(request, job).items() if now.get(name) != value}
    if not wanted:
        return False
    values = now | wanted
    after = job._replace(hold=bool(values["hold"]) if "hold" in wanted else job.hold)
    if "max_wall_s" in wanted:
        after = after._replace(max_wall_s=seconds(values["max_wall_s"]))
    if "scheduling_timeout_s" in wanted:
        after = after._replace(scheduling_timeout_s=seconds(values["scheduling_timeout_s"]))
    if {"hold", "scheduling_timeout_s"} & wanted.keys():
        after = after._replace(schedule_until=ready_until(after, broker.listening.now_ms()))
    changes = {**json.loads(asked["changes"] or "{}"), **wanted}
    change(tx, job, after, priority=values["priority"], changes=json.dumps(changes))
    said = {name: {"from": now.get(name), "to": value} for name, value in wanted.items()}
    say(tx, Said(EventType.JOB_UPDATED, said), job=after, actor=caller.actor)
    return True


def _wanted(request: UpdateRequest, job: JobRow) -> dict[str, Any]:
    """Of this job: field, value, as in a specification."""
    wanted = request.model_dump(exclude_none=True, exclude={"hold", "release", "max_parallel"})
    if request.hold or request.release:
        wanted["hold"] = request.hold
    if job.state is JobState.QUEUED:
        return wanted
    return {name: value for name, value in wanted.items() if name not in BEFORE_THE_START}


def _too_late(job: JobRow, request: UpdateRequest) -> str | None:
    """The first field that can't be changed any more."""
    said = request.model_dump(exclude_defaults=True)
    if job.state is not JobState.QUEUED:
        return next((name for name in BEFORE_THE_START if name in said), None)
    return "scheduling_timeout_s" if job.restarts and "scheduling_timeout_s" in said else None


def _is_too_late(job: JobRow, request: UpdateRequest) -> bool:
    return _too_late(job, request) is not None


def _refuse_started(job: JobRow, request: UpdateRequest) -> None:
    field = _too_late(job, request)
    if field is None:
        return
    raise Refused(
        ProblemCode.ALREADY_STARTED,
        f"job {job.id} is {job.state}: {field} can be changed only before a worker has it",
        field=field,
        hint="its priority can be changed at any time; job_cancel stops it",
    )


def _terminal(detail: str) -> Refused:
    return Refused(ProblemCode.ALREADY_TERMINAL, detail, hint="there is nothing to change")


def _no_throttle(detail: str, hint: str) -> Refused:
    return Refused(
        ProblemCode.INVALID_REQUEST, f"{detail}: nothing can have max_parallel", hint=hint, field="max_parallel"
    )
