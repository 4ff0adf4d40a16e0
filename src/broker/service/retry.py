"""Retries by hand: a new job that does an ended one again. The old one stays as it is, and never comes back itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
from pydantic import ValidationError

from broker.core import retention
from broker.core.effective import Effective, Source
from broker.core.states import TERMINAL
from broker.service import keys, snapshots
from broker.service.completing import complete
from broker.service.context import Broker, Caller
from broker.service.rows import unknown_job
from broker.service.submit import Denial, Members, accept, admit_environment, members_of
from broker.service.transition import MOST_DECISIONS, LostSwap
from broker.service.wake import Happened, JobChanged
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec, RetryRequest, Submitted
from broker.wire.misfits import hint, misfit
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState, RetriedMembers

N = TypeVar("N")
MOST_NAMED = 5
OF_THE_WHOLE = ("count", "sweep", "sweep_mode", "sweep_seed")
"""What says which members there are: a retry has those that there were."""
_EXCLUSIVE = ({"command", "argv"}, {"venv", "conda"})


async def retry(broker: Broker, caller: Caller, job: int, request: RetryRequest) -> Submitted:
    """A new job with the specification as it was asked for, and `changes` to it; a project's defaults are those of now.
    Members of an array become an array of their own, in which they keep index and values.

    Refused: what has not ended (`not_terminal`), was retried already (`already_retried`), or was no job of its own, or
    can't be run as it was (`not_retryable`); and as `submit` refuses. With a key it is done once.
    """
    for left in reversed(range(MOST_DECISIONS)):
        look = partial(_once, caller=caller, job=job, request=request, act=partial(_plan, job=job, request=request))
        plan = await broker.store.read(look)
        if not isinstance(plan, _Plan):
            return plan
        spec = await snapshots.taken(broker, caller, _spec(plan, request))
        judged = await anyio.to_thread.run_sync(_judged, broker, plan, spec)
        again = partial(_again, broker=broker, caller=caller, request=request, judged=judged)
        try:
            answer = await broker.store.run(
                partial(_once, caller=caller, job=job, request=request, act=again), admits=True
            )
        except LostSwap:
            if left:
                continue
            raise
        if isinstance(answer, Denial):
            raise answer.refused
        return answer
    raise AssertionError("the last try is answered, or raises")


def _once(tx: Tx, *, caller: Caller, job: int, request: RetryRequest, act: Callable[[Tx], N]) -> Submitted | N:
    """What `act` comes to, or what was answered when this was asked for under its key."""
    row = tx.one("to_retry", job=job)
    if row is None:
        raise unknown_job(tx, job)
    key = keys.of(request, caller, "retry", row["project"], about=job)
    return keys.once(tx, key, Submitted, lambda: act(tx))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is retried: one job, or of an array the members with these indexes. `spec`: as it was asked for."""

    job: int
    about: int
    array: int | None
    jobs: tuple[int, ...]
    indexes: tuple[int, ...]
    orphans: tuple[int, ...]
    spec: str


@dataclass(frozen=True, slots=True)
class _Judged:
    plan: _Plan
    whole: Effective
    members: Members


def _plan(tx: Tx, job: int, request: RetryRequest) -> _Plan:
    """What there is to do. Refused: nothing of it can be done."""
    row = tx.one("to_retry", job=job)
    if row is None:
        raise unknown_job(tx, job)
    if row["lease_ttl_ms"] is not None:
        raise Refused(
            ProblemCode.NOT_RETRYABLE,
            f"job {job} was a lease: a process held it that the broker did not start",
            hint="job lease asks for another one",
            field="job",
        )
    if row["adopted_pid"] is not None:
        raise Refused(
            ProblemCode.NOT_RETRYABLE,
            f"job {job} was adopted: its process was started by somebody else",
            hint="job_submit with its command",
            field="job",
        )
    members = request.members or (RetriedMembers.FAILED if row["array_id"] == job else RetriedMembers.ONE)
    if members is RetriedMembers.ONE:
        return _planned(row, _one(row))
    if row["array_id"] != job:
        of = f"member {row['array_index']} of array {row['array_id']}" if row["array_id"] is not None else "one job"
        raise Refused(
            ProblemCode.INVALID_REQUEST,
            f"members: job {job} is {of}",
            field="members",
            hint="members=failed and members=all take the id of an array, which is that of its first member",
        )
    return _planned(row, _members(tx, job, members))


def _one(row: Row) -> list[Row]:
    if JobState(row["state"]) not in TERMINAL:
        raise Refused(
            ProblemCode.NOT_TERMINAL,
            f"job {row['id']} is {row['state']}: only what has ended is retried",
            hint="wait for its end, or cancel it first",
            field="job",
        )
    if row["retried_as"] is not None:
        raise _retried(f"job {row['id']}", row["retried_as"])
    return [row]


def _members(tx: Tx, array: int, which: RetriedMembers) -> list[Row]:
    """Those that are meant, of which none was retried before."""
    rows = tx.all("members_to_retry", array=array)
    live = [row["id"] for row in rows if JobState(row["state"]) not in TERMINAL]
    if live and which is RetriedMembers.ALL:
        raise Refused(
            ProblemCode.NOT_TERMINAL,
            f"{len(live)} members of array {array} have not ended, the first of them is job {live[0]}",
            hint="members=failed retries those that have ended and did not complete",
            field="members",
        )
    meant = [
        row
        for row in rows
        if JobState(row["state"]) in TERMINAL
        and (which is RetriedMembers.ALL or JobState(row["state"]) is not JobState.COMPLETED)
    ]
    found = [row for row in meant if row["retried_as"] is None]
    if found:
        return found
    if meant:
        raise _retried(f"array {array}", meant[-1]["retried_as"])
    raise Refused(
        ProblemCode.NOT_RETRYABLE,
        f"no member of array {array} has failed" + (f"; {len(live)} have not ended" if live else ""),
        hint="members=all retries all of them",
        field="members",
    )


def _retried(what: str, by: int) -> Refused:
    return Refused(
        ProblemCode.ALREADY_RETRIED,
        f"{what} was retried already, as job {by}",
        hint=f"look at job {by}, or retry that once it has ended; job_submit for one more of the same",
        field="job",
    )


def _planned(row: Row, jobs: Sequence[Row]) -> _Plan:
    sources: Mapping[str, str] | None = json.loads(row["sources"]) if row["sources"] else None
    said: dict[str, Any] = json.loads(row["json"])
    asked = {name: value for name, value in said.items() if sources is None or sources.get(name) == Source.JOB}
    of_array = row["array_id"] is not None
    return _Plan(
        job=row["id"],
        about=row["array_id"] if of_array and len(jobs) > 1 else row["id"],
        array=row["array_id"],
        jobs=tuple(job["id"] for job in jobs),
        indexes=tuple(job["array_index"] for job in jobs) if of_array else (),
        orphans=tuple(job["id"] for job in jobs if job["lost_assignment"] is not None),
        spec=json.dumps(asked),
    )


# ---- what is asked for now


def _spec(plan: _Plan, request: RetryRequest) -> JobSpec:
    spec = _changed(json.loads(plan.spec), request.changes or {})
    if retention.REMOVED in (spec.env or {}).values():
        raise Refused(
            ProblemCode.NOT_RETRYABLE,
            "values of its environment were removed, so long after its end",
            hint="give env in changes, with all of its values",
            field="changes.env",
        )
    return spec


def _judged(broker: Broker, plan: _Plan, spec: JobSpec) -> _Judged:
    whole = complete(broker, spec)
    admit_environment(whole.spec)
    return _Judged(plan, whole, members_of(whole.spec, plan.indexes or None))


def _changed(asked: dict[str, Any], changes: Mapping[str, Any]) -> JobSpec:
    """Judged as a whole. Of words that exclude each other the new one counts."""
    for name in OF_THE_WHOLE:
        if name in changes:
            raise Refused(
                ProblemCode.INVALID_SPEC,
                f"changes.{name}: a retry has the members that there were",
                field=f"changes.{name}",
                hint="job_submit makes another array",
            )
    given = {name for name, value in changes.items() if value is not None}
    over = {name for words in _EXCLUSIVE if words & given for name in words}
    said = {name: value for name, value in asked.items() if name not in over} | dict(changes)
    try:
        return JobSpec.model_validate({name: value for name, value in said.items() if value is not None})
    except ValidationError as error:
        found = misfit(error.errors(include_url=False, include_context=False, include_input=False)[0])
        field = f"changes.{found.field}" if found.field else "changes"
        raise Refused(
            ProblemCode.INVALID_SPEC, f"{field}: {found.message}", field=field, hint=hint(found, JobSpec)
        ) from None


# ---- in one transaction


def _again(tx: Tx, broker: Broker, caller: Caller, request: RetryRequest, judged: _Judged) -> Submitted | Denial:
    plan = judged.plan
    if _plan(tx, plan.job, request) != plan:
        raise LostSwap(f"job {plan.job} changed meanwhile")
    answer = accept(tx, broker, caller, judged.whole, judged.members, retry_of=plan.about)
    if isinstance(answer, Denial):
        return answer
    by = answer.id if answer.id is not None else answer.array
    assert by is not None, "what was accepted has an id"
    ids = json.dumps(plan.jobs)
    if plan.array is None:
        changed = tx.run("retried", job=plan.about, retried_as=by)
        tx.run("retry_of", job=by, retry_of=plan.about)
    else:
        changed = tx.run("retried_members", jobs=ids, array=by)
        tx.run("retries_of_members", old=plan.array, array=by)
    assert changed == len(plan.jobs), "they were read in this transaction"
    kind = EventType.JOB_RETRIED.value
    tx.run("add_events_of_jobs", at=tx.now_ms, type=kind, ids=ids, actor=caller.actor, data=json.dumps({"as": by}))
    tx.tell(Happened(None))
    for job in plan.jobs:
        tx.tell(JobChanged(job))
    return answer.model_copy(update={"warnings": [*(answer.warnings or ()), *_left(plan)] or None})


def _left(plan: _Plan) -> list[str]:
    if not plan.orphans:
        return []
    some = ", ".join(str(job) for job in plan.orphans[:MOST_NAMED]) + (" …" if len(plan.orphans) > MOST_NAMED else "")
    return [f"what may still run of job {some} is stopped when its worker is heard; until then there may be two copies"]
