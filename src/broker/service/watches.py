"""Waits that are kept: an agent asks once, goes away, and fetches the answer later, from whichever broker is there then."""

from __future__ import annotations

import json
from collections import Counter

from broker.service import array_counts, output, queries, views
from broker.service.context import Broker, Caller
from broker.service.rows import progress
from broker.store.contract import Row, Tx
from broker.wire.jobs import Waited
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState, Scope
from broker.wire.watches import KEPT_S, Watch, WatchRequest, WatchState

LONGEST_LINE = 200


async def create(broker: Broker, caller: Caller, asked: WatchRequest) -> Watch:
    """Keep this wait, durably, and say how it stands. Refused: jobs that there are not."""
    waited = await _waited(broker, asked)
    id_ = f"{_named(asked)}.{broker.make_secret()}"

    def fn(tx: Tx) -> Row | None:
        tx.run(
            "add_watch",
            id=id_,
            actor=caller.actor,
            jobs=json.dumps(asked.job or []),
            array=asked.array,
            mode=asked.mode,
            now=tx.now_ms,
        )
        return tx.one("watch", id=id_)

    row = await broker.store.run(fn)
    assert row is not None, "it was written in this transaction"
    return await _shown(broker, row, waited)


async def look(broker: Broker, caller: Caller, id_: str) -> Watch:
    """How it stands now; with the answer, once there is one."""
    row = await _mine(broker, caller, id_)
    if row["cancelled_at"] is not None:
        return _cancelled(row)
    return await _shown(broker, row, await _waited(broker, _asked(row)))


async def cancel(broker: Broker, caller: Caller, id_: str) -> Watch:
    """Wait no longer. The jobs go on: to stop them is `job_cancel`. A repeat changes nothing."""
    await _mine(broker, caller, id_)

    def fn(tx: Tx) -> Row | None:
        tx.run("cancel_watch", id=id_, now=tx.now_ms)
        return tx.one("watch", id=id_)

    row = await broker.store.run(fn)
    if row is None:
        raise _unknown()
    return _cancelled(row)


async def _mine(broker: Broker, caller: Caller, id_: str) -> Row:
    """Whose it is not is told no more than who guesses."""
    row = await broker.store.read(lambda tx: tx.one("watch", id=id_))
    if row is None or (row["actor"] != caller.actor and not caller.may(Scope.OPERATOR)):
        raise _unknown()
    return row


def _unknown() -> Refused:
    return Refused(
        ProblemCode.UNKNOWN_WATCH,
        "there is no such wait, or it is older than it is kept",
        field="watch",
        hint="call job_wait again; job_list shows the jobs",
    )


def _asked(row: Row) -> WatchRequest:
    return WatchRequest(job=json.loads(row["jobs"]) or None, array=row["array"], mode=row["mode"])


async def _waited(broker: Broker, asked: WatchRequest) -> Waited:
    async def nobody_leaves() -> bool:
        return False

    return await queries.wait(broker, asked.job or [], asked.array, asked.mode, 0, nobody_leaves)


def _named(asked: WatchRequest) -> str:
    """The beginning of its id, for people: what is waited for."""
    if not asked.job:
        return f"array{asked.array}"
    more = len(asked.job) - 1 + (asked.array is not None)
    return f"job{asked.job[0]}" + (f"+{more}" if more else "")


async def _shown(broker: Broker, row: Row, waited: Waited) -> Watch:
    return Watch(
        watch=row["id"],
        state=WatchState.COMPLETED if waited.done else WatchState.WORKING,
        message=await _message(broker, _asked(row)),
        created_at=views.at(row["created_at"]) or views.EPOCH,
        updated_at=views.at(broker.clock.wall_ms()) or views.EPOCH,
        kept_s=KEPT_S,
        waited=waited if waited.done else None,
    )


def _cancelled(row: Row) -> Watch:
    return Watch(
        watch=row["id"],
        state=WatchState.CANCELLED,
        message="nobody waits any more; the jobs go on",
        created_at=views.at(row["created_at"]) or views.EPOCH,
        updated_at=views.at(row["cancelled_at"]) or views.EPOCH,
        kept_s=KEPT_S,
    )


async def _message(broker: Broker, asked: WatchRequest) -> str:
    """One job: where it runs, how far it is, and its last line. Several: how many are in each state."""
    jobs = asked.job or []
    if len(jobs) == 1 and asked.array is None:
        return await _of_one(broker, jobs[0])

    def fn(tx: Tx) -> Counter[JobState]:
        states = Counter[JobState]()
        for job in jobs:
            row = tx.one("job_view", job=job)
            if row is not None:
                states[JobState(row["state"])] += 1
        return states + (array_counts.counts(tx, asked.array) if asked.array is not None else Counter())

    states = await broker.store.read(fn)
    what = f"array {asked.array}" if not jobs else f"{states.total()} jobs"
    return f"{what}: " + ", ".join(f"{count} {state.value}" for state, count in states.items() if count)


async def _of_one(broker: Broker, job: int) -> str:
    row = await broker.store.read(lambda tx: tx.one("job_view", job=job))
    if row is None:
        return f"job {job} is gone"
    said = f"job {job} {row['state']}"
    if row["state"] != JobState.RUNNING:
        return said
    if row["started_at"] is not None:
        said += f" for {max(0, broker.clock.wall_ms() - row['started_at']) // 1000} s"
    said += f" on {row['worker']}"
    if (done := progress(row)) is not None:
        said += f"; {done.fraction:.0%}" + (f" {done.message}" if done.message else "")
    last = await output.tail_text(broker, job, row["attempt"], 1, LONGEST_LINE)
    return said + (f"; last line: {last.strip()[:LONGEST_LINE]}" if last else "")
