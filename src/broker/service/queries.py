"""What can be asked, and waiting for it. Reads never hold a transaction open while they wait."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import anyio.to_thread

from broker.core.arrays import NOT_ENDED
from broker.core.states import TERMINAL
from broker.service import array_counts, forecast, outcomes, output, snapshots, views
from broker.service.context import Broker
from broker.service.dispatch import spec_of
from broker.service.rows import unknown_job
from broker.store.contract import Row, Tx
from broker.wire.events import EventList, EventType
from broker.wire.jobs import Assignment, Ended, Job, JobList, Waited
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState
from broker.wire.workers import WorkerList

BEYOND_ALL_IDS = 1 << 62
MOST_PENDING_SHOWN = 100
MOST_CHILDREN_SHOWN = 100
MOST_ENDED_SHOWN = 50
MOST_ARTIFACTS_SHOWN = 100
MOST_OF_A_RESULT = 1000  # characters, of each job in the answer of a wait
LEAST_OF_A_RESULT = 200  # where it tells of many
TAIL_LINES = 10
TAIL_BUDGET = 200
LOOKS_AGAIN_S = 5.0


async def get_job(broker: Broker, job: int, detail: Literal["concise", "full"]) -> Job:
    """One job as it stands. Refused: `unknown_job`."""

    def fn(tx: Tx) -> tuple[Job, list[Row]]:
        row = tx.one("job_view", job=job)
        if row is None:
            raise unknown_job(tx, job)
        view = views.job(tx, row, views.Waiting(tx, broker.quotas(tx)))
        most = outcomes.CONCISE_CHARACTERS if detail == "concise" else None
        view = view.model_copy(
            update={
                "eta": forecast.eta(tx, broker, row, view.waiting),
                **_result(tx, view.id, view.state, view.attempt, most),
            }
        )
        if detail == "concise":
            return view, []
        spec = tx.one("spec_of_job", job=job)
        assert spec is not None
        view = view.model_copy(
            update={
                "depends_on": [row["id"] for row in tx.all("parents", child=job)] or None,
                "depends_on_array": array_counts.parents(tx, job) or None,
                "dependents": [row["child"] for row in tx.all("first_children", parent=job, limit=MOST_CHILDREN_SHOWN)]
                or None,
            }
        )
        view = view.model_copy(
            update={
                "spec": _said(spec),
                "sources": json.loads(spec["sources"]) if spec["sources"] else None,
            }
        )
        return view, tx.all("assignments_of_job", job=job)

    view, rows = await broker.store.read(fn)
    if view.spec is not None and view.spec.get("snapshot") is not None:
        kept = await snapshots.described(broker, view.spec["snapshot"])
        view = view.model_copy(update={"snapshot": kept.without_diff()})
    if not view.logs_pruned:
        size = await anyio.to_thread.run_sync(_size, broker, job, view.attempt)
        view = view.model_copy(update={"log_bytes": size})
    if detail == "concise":
        return view
    now_ms, listened = broker.clock.wall_ms(), broker.listening.now_ms()
    if view.logs_pruned:
        assignments = [views.assignment(row, listened=listened, now_ms=now_ms) for row in rows]
    else:
        assignments = [await _assignment(broker, row, listened, now_ms) for row in rows]
    return view.model_copy(update={"assignments": assignments})


def _said(row: Row) -> dict[str, Any]:
    """The specification of a job; of a member with its own words in place."""
    if row["array_id"] is None:
        return dict(json.loads(row["json"]))
    return spec_of(row).model_dump(mode="json", exclude_none=True)


def _size(broker: Broker, job: int, attempt: int | None) -> int | None:
    return broker.logs.size(job, attempt) if attempt else None


async def _assignment(broker: Broker, row: Row, listened: int, now_ms: int) -> Assignment:
    size = await anyio.to_thread.run_sync(broker.logs.size, row["job"], row["attempt"])
    index_size = await anyio.to_thread.run_sync(broker.logs.size, row["job"], row["attempt"], "index")
    final_size = row["final_size"]
    complete = None if final_size is None else output.is_complete(final_size, row["final_index_size"], size, index_size)
    view = views.assignment(row, listened=listened, now_ms=now_ms)
    left = await broker.store.read(partial(_left_by, job=row["job"], attempt=row["attempt"]))
    return view.model_copy(update={"log_bytes": size, "log_complete": complete, **left})


def _left_by(tx: Tx, *, job: int, attempt: int) -> dict[str, Any]:
    """What came out of a delivery. Only the job's own result is ever told whole."""
    found = outcomes.artifacts_of(tx, job, attempt, MOST_ARTIFACTS_SHOWN)
    return {"artifacts": found or None, **outcomes.result_of(tx, job, attempt).fields}


def _result(tx: Tx, job: int, state: JobState, attempt: int | None, most: int | None) -> dict[str, Any]:
    """What came out of its newest delivery; none of a job that is to run again."""
    if attempt is None or state is JobState.QUEUED:
        return {}
    return outcomes.result_of(tx, job, attempt, most).fields


@dataclass(frozen=True, slots=True)
class Filter:
    state: JobState | None = None
    project: str | None = None
    array: int | None = None
    name: str | None = None


async def list_jobs(broker: Broker, wanted: Filter, limit: int, cursor: str | None) -> JobList:
    """A page of jobs, newest first, with counts per state. `cursor` comes from an earlier page."""
    before = BEYOND_ALL_IDS if cursor is None else _cursor(cursor)

    def fn(tx: Tx) -> JobList:
        if wanted.array is None and wanted.state is None and wanted.name is None:
            return _folded(tx, broker, wanted, before, limit)
        ids = [row["id"] for row in _page(tx, wanted, before, limit + 1)]
        waits = views.Waiting(tx, broker.quotas(tx))
        jobs = [views.job(tx, row, waits) for row in tx.all("job_views", ids=json.dumps(ids[:limit]))]
        counts = _counts(tx, wanted)
        more = str(jobs[-1].id) if len(ids) > limit else None
        row = tx.one("array", array=wanted.array) if wanted.array is not None else None
        whole = views.array(tx, row) if row is not None else None
        return JobList(jobs=jobs, array=whole, counts=counts, total=_total(tx, wanted, counts), next_cursor=more)

    return await broker.store.read(fn)


def _folded(tx: Tx, broker: Broker, wanted: Filter, before: int, limit: int) -> JobList:
    """A page in which an array is one entry, however many members it has."""
    if wanted.project is not None:
        found = tx.all("page_folded_of_project", project=wanted.project, before=before, limit=limit + 1)
    else:
        found = tx.all("page_folded", before=before, limit=limit + 1)
    page, waits = found[:limit], views.Waiting(tx, broker.quotas(tx))
    single = json.dumps([row["id"] for row in page if row["array_id"] is None])
    shown = {row["id"]: views.job(tx, row, waits) for row in tx.all("job_views", ids=single)}
    for row in page:
        if row["array_id"] is not None and (array := tx.one("array", array=row["array_id"])) is not None:
            shown[array["id"]] = views.array(tx, array)
    jobs = [shown[id_] for id_ in sorted(shown, reverse=True)]
    counts = _counts(tx, wanted)
    more = str(jobs[-1].id) if len(found) > limit else None
    return JobList(jobs=jobs, counts=counts, total=_total(tx, wanted, counts), next_cursor=more)


def _page(tx: Tx, wanted: Filter, before: int, limit: int) -> list[Row]:
    """Ids, newest first, by the index that fits the filter best."""
    state, project, name = wanted.state.value if wanted.state else None, wanted.project, wanted.name
    if wanted.array is not None:
        array = wanted.array
        return tx.all("page_of_array", array=array, state=state, project=project, name=name, before=before, limit=limit)
    if name is not None:
        return tx.all("page_of_name", name=name, state=state, project=project, before=before, limit=limit)
    if project is not None and state is not None:
        return tx.all("page_of_project_in_state", project=project, state=state, before=before, limit=limit)
    if project is not None:
        return tx.all("page_of_project", project=project, before=before, limit=limit)
    if state is not None:
        return tx.all("page_in_state", state=state, before=before, limit=limit)
    return tx.all("page_of_all", before=before, limit=limit)


def _counts(tx: Tx, wanted: Filter) -> dict[str, int]:
    if wanted.array is not None:
        return {row["state"]: row["n"] for row in tx.all("counts_of_array", array=wanted.array)}
    return {row["state"]: row["n"] for row in tx.all("counts", project=wanted.project)}


def _total(tx: Tx, wanted: Filter, counts: dict[str, int]) -> int:
    state = wanted.state.value if wanted.state else None
    project, name = wanted.project, wanted.name
    if wanted.array is not None and (project is not None or name is not None):
        row = tx.one("count_of_array", array=wanted.array, state=state, project=project, name=name)
        return int(row["n"]) if row else 0
    if wanted.array is None and name is not None:
        row = tx.one("count_named", name=name, state=state, project=project)
        return int(row["n"]) if row else 0
    return counts.get(state, 0) if state else sum(counts.values())


def _cursor(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    raise Refused(
        ProblemCode.INVALID_REQUEST,
        "this cursor is not one of ours",
        field="cursor",
        hint="pass next_cursor of the page before",
    )


async def wait(
    broker: Broker,
    jobs: list[int],
    array: int | None,
    mode: Literal["all", "any"],
    timeout_s: float,
    gone: Callable[[], Awaitable[bool]],
) -> Waited:
    """Wait until the jobs have ended, or any of them; at most `timeout_s`. Never changes a job."""
    if array is not None and not jobs:
        return await _wait_for_array(broker, array, mode, timeout_s, gone)
    ids = await broker.store.read(lambda tx: _ids(tx, jobs, array))
    deadline = broker.clock.boot_s() + timeout_s
    with broker.wake.watch_jobs(ids) as watch:
        seen: dict[int, Row] = {}
        while True:
            # What has ended stays so (but for a resurrection, which comes before anyone reads on): only the rest is read.
            left = [job for job in ids if job not in seen or JobState(seen[job]["state"]) not in TERMINAL]
            seen |= await broker.store.read(partial(_views, jobs=left))
            ended = [seen[job] for job in ids if JobState(seen[job]["state"]) in TERMINAL]
            done = len(ended) == len(ids) if mode == "all" else bool(ended)
            left_s = deadline - broker.clock.boot_s()
            over = done or left_s <= 0 or broker.wake.closed
            if over or (not await watch.wait(min(left_s, LOOKS_AGAIN_S)) and await gone()):
                return await _waited(broker, [seen[job] for job in ids], ended, done=done)


async def _wait_for_array(
    broker: Broker, array: int, mode: Literal["all", "any"], timeout_s: float, gone: Callable[[], Awaitable[bool]]
) -> Waited:
    """The same for an array as a whole: each look reads its counts, and not its members."""
    await broker.store.read(lambda tx: _known_array(tx, array))
    deadline = broker.clock.boot_s() + timeout_s
    with broker.wake.watch_array(array) as watch:
        while True:
            counts = await broker.store.read(lambda tx: array_counts.counts(tx, array))
            live = sum(counts[state] for state in NOT_ENDED)
            done = not live if mode == "all" else live < counts.total()
            left_s = deadline - broker.clock.boot_s()
            over = done or left_s <= 0 or broker.wake.closed
            if over or (not await watch.wait(min(left_s, LOOKS_AGAIN_S)) and await gone()):
                return await _array_waited(broker, array, counts, done=done)


async def _array_waited(broker: Broker, array: int, counts: Counter[JobState], *, done: bool) -> Waited:
    """Its ends, those that are not good first, as many as an answer tells."""

    def fn(tx: Tx) -> tuple[list[Row], list[Row]]:
        ends = [row["id"] for row in tx.all("worst_ends", array=array, limit=MOST_ENDED_SHOWN)]
        views_of_ends = _views(tx, jobs=ends)
        return list(views_of_ends.values()), tx.all("live_members", array=array, limit=MOST_PENDING_SHOWN)

    ended, pending = await broker.store.read(fn)
    with_tail = sum(counts.values()) - sum(counts[state] for state in NOT_ENDED) <= MOST_ENDED_SHOWN // 5
    states = ", ".join(state.value for state in NOT_ENDED if counts[state])
    return Waited(
        done=done,
        jobs=[await _ended(broker, row, with_tail=with_tail) for row in ended],
        counts={state.value: n for state, n in counts.items()},
        pending=[row["id"] for row in pending] or None,
        next=None if done else f"not done: {states}. Call job_wait array={array} again; the jobs go on meanwhile.",
    )


def _views(tx: Tx, *, jobs: list[int]) -> dict[int, Row]:
    rows = {job: tx.one("job_view", job=job) for job in jobs}
    return {job: row for job, row in rows.items() if row is not None}


def _known_array(tx: Tx, array: int) -> None:
    if tx.one("array", array=array) is None:
        raise Refused(ProblemCode.UNKNOWN_JOB, f"there is no array {array}", field="array")


def _ids(tx: Tx, jobs: list[int], array: int | None) -> list[int]:
    ids = list(dict.fromkeys(jobs))
    if array is not None:
        _known_array(tx, array)
        ids = list(dict.fromkeys(ids + [row["id"] for row in tx.all("members_of_array", array=array)]))
    if not ids:
        raise Refused(ProblemCode.INVALID_REQUEST, "name jobs: job (ids) or array", field="job")
    for job in ids:
        if tx.one("job_owner", job=job) is None:
            raise unknown_job(tx, job)
    return ids


async def _waited(broker: Broker, rows: list[Row], ended: list[Row], *, done: bool) -> Waited:
    over = {row["id"] for row in ended}
    pending = [row for row in rows if row["id"] not in over]
    return Waited(
        done=done,
        jobs=[
            await _ended(broker, row, with_tail=len(ended) <= MOST_ENDED_SHOWN // 5) for row in ended[:MOST_ENDED_SHOWN]
        ],
        pending=[row["id"] for row in pending[:MOST_PENDING_SHOWN]] or None,
        next=None if done else _next(pending),
    )


def _next(pending: list[Row]) -> str:
    ids = ",".join(str(row["id"]) for row in pending[:5]) + ("…" if len(pending) > 5 else "")
    states = ", ".join(sorted({row["state"] for row in pending}))
    return f"not done: {states}. Call job_wait job=[{ids}] again; the jobs go on meanwhile."


async def _ended(broker: Broker, row: Row, *, with_tail: bool) -> Ended:
    duration = None if row["started_at"] is None else round((row["ended_at"] - row["started_at"]) / 1000, 3)
    if with_tail:
        await output.settled(broker, row["id"])
    result = await broker.store.read(
        partial(
            _result,
            job=row["id"],
            state=JobState(row["state"]),
            attempt=row["attempt"],
            most=MOST_OF_A_RESULT if with_tail else LEAST_OF_A_RESULT,
        )
    )
    return Ended(
        id=row["id"],
        state=JobState(row["state"]),
        exit_code=row["exit_code"],
        reason=views.reason(row),
        duration_s=duration,
        **result,
        log_tail=await output.tail_text(broker, row["id"], row["attempt"], TAIL_LINES, TAIL_BUDGET)
        if with_tail
        else None,
    )


@dataclass(frozen=True, slots=True)
class EventFilter:
    type: EventType | None = None
    job: int | None = None
    project: str | None = None
    worker: str | None = None
    actor: str | None = None


async def list_events(broker: Broker, since: int, wanted: EventFilter, limit: int) -> EventList:
    """What happened after event `since`, in order. The same call with `next_cursor` goes on."""

    def fn(tx: Tx) -> EventList:
        kind = wanted.type.value if wanted.type else None
        if wanted.job is not None:
            rows = tx.all("events_of_job", job=wanted.job, since=since, type=kind, limit=limit)
        else:
            rows = tx.all(
                "events",
                since=since,
                type=kind,
                project=wanted.project,
                worker=wanted.worker,
                actor=wanted.actor,
                limit=limit,
            )
        last = tx.one("last_event")
        assert last is not None
        # A full page goes on after its last event; a short one has seen all there is.
        cursor = rows[-1]["seq"] if len(rows) == limit else max(since, last["seq"])
        return EventList(events=views.events(rows), next_cursor=cursor, pruned_to=_gap(tx, since, wanted.job))

    return await broker.store.read(fn)


def _gap(tx: Tx, since: int, job: int | None) -> int | None:
    """Up to which event some are missing after `since`. A job that is kept has all of its events."""
    pruned = tx.one("get_meta", key="events_pruned_to")
    if pruned is None or int(pruned["value"]) <= since:
        return None
    if job is not None and tx.one("job_owner", job=job) is not None:
        return None
    return int(pruned["value"])


async def events_pruned_to(broker: Broker, since: int) -> int | None:
    """Up to which event some are missing after `since`; None: none is."""
    return await broker.store.read(lambda tx: _gap(tx, since, None))


async def last_event(broker: Broker) -> int:
    """Where the story ends now."""

    def fn(tx: Tx) -> int:
        last = tx.one("last_event")
        return int(last["seq"]) if last is not None else 0

    return await broker.store.read(fn)


async def list_workers(broker: Broker) -> WorkerList:
    return await broker.store.read(lambda tx: WorkerList(workers=views.workers(tx)))
