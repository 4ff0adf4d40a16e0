"""What ended long ago goes, in small transactions: environment values, then output, then rows and their events.

Never of a job that has not ended, that something may still run of, whose output is still to come, or that a job
depends on which has not ended. What remains of a job that others depended on is how it ended.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import anyio.to_thread
import structlog

from broker.core import retention
from broker.core.retention import REMOVED, Cutoffs, Keep
from broker.failpoint import failpoint
from broker.service import output, snapshots, workers
from broker.service.context import Broker
from broker.service.submit import TWICE_WITHIN_S
from broker.service.transition import event
from broker.store.contract import Row, StorageFailed, StorageFull, Tx
from broker.wire.events import EventType
from broker.wire.watches import KEPT_S

log = structlog.get_logger("broker.retention")

BATCH = 100
LONGEST_PAUSE_S = 3600.0


class Look(Protocol):
    """A page of what is old enough, after a job that was seen already."""

    def __call__(self, tx: Tx, /, *, before: int, after_at: int, after_id: int) -> list[Row]: ...


def every_s(broker: Broker) -> float:
    """How often `prune` runs: a tenth of what is kept shortest, an hour at most."""
    kept = [kept_s for kept_s in _keep(broker) if kept_s > 0]
    return max(broker.settings.sweep_s, min([LONGEST_PAUSE_S, *(kept_s / 10 for kept_s in kept)]))


async def prune(broker: Broker) -> None:
    """One pass. While the wall clock has just jumped nothing goes: what is old by it may be young."""
    if not broker.jumps.steady():
        log.warning("nothing is removed: this machine's clock has jumped", held_for_s=broker.jumps.held_s())
        return
    cut = retention.cutoffs(Keep(*_keep(broker)), broker.clock.wall_ms())
    await _workers(broker, cut)
    await _env(broker, cut)
    await _logs(broker, cut)
    await _jobs(broker, cut)
    await _events(broker, cut)
    await _run_times(broker, cut)
    await _watches(broker)
    await _keys(broker)
    await snapshots.prune(broker)


def _keep(broker: Broker) -> tuple[float, float, float]:
    settings = broker.settings
    return settings.keep_env_s, settings.keep_logs_s, settings.keep_jobs_s


# ---- environment values


async def _env(broker: Broker, cut: Cutoffs) -> None:
    if cut.env is None:
        return
    before = cut.env
    needed: set[int] = set()  # specifications with which something may run

    async def scrub(page: list[Row]) -> None:
        by_spec: dict[int, list[int]] = defaultdict(list)
        for row in page:
            by_spec[row["spec"]].append(row["id"])
        for spec, jobs in by_spec.items():
            if spec not in needed and not await broker.store.run(partial(_scrub, spec=spec, jobs=jobs, before=before)):
                needed.add(spec)

    await _in_pages(broker, _with_old_env, before, scrub)


def _with_old_env(tx: Tx, *, before: int, after_at: int, after_id: int) -> list[Row]:
    return tx.all("jobs_with_old_env", before=before, after_at=after_at, after_id=after_id, limit=BATCH)


def _scrub(tx: Tx, *, spec: int, jobs: Sequence[int], before: int) -> bool:
    """False: something may run with it, now or again."""
    if tx.one("spec_still_needed", spec=spec, before=before) is not None:
        return False
    text = tx.one("spec_text", spec=spec)
    assert text is not None, "jobs refer to their specification"
    asked = json.loads(text["json"])
    asked["env"] = dict.fromkeys(asked.get("env") or {}, REMOVED)
    tx.run("replace_spec", spec=spec, json=json.dumps(asked, separators=(",", ":")))
    tx.run("forget_env", ids=json.dumps(jobs))
    return True


# ---- output


async def _logs(broker: Broker, cut: Cutoffs) -> None:
    if cut.logs is None:
        return
    before = cut.logs

    async def remove(page: list[Row]) -> None:
        whole = await _without_output_to_come(broker, [row["id"] for row in page])
        gone = await broker.store.run(partial(_forget_logs, jobs=whole, before=before)) if whole else []
        # The tables first: a crash in between leaves files, which go with the row; never a log that is half there.
        if gone:
            failpoint("logs_forgotten")
        for job in gone:
            await anyio.to_thread.run_sync(_remove_files, broker, job)

    await _in_pages(broker, _with_old_logs, before, remove)


def _with_old_logs(tx: Tx, *, before: int, after_at: int, after_id: int) -> list[Row]:
    return tx.all("jobs_with_old_logs", before=before, after_at=after_at, after_id=after_id, limit=BATCH)


async def _without_output_to_come(broker: Broker, jobs: list[int]) -> list[int]:
    """Those of which all output is here that a worker which is known declared."""
    declared = await broker.store.read(lambda tx: tx.all("declared_output", ids=json.dumps(jobs)))

    def incomplete() -> set[int]:
        logs = broker.logs
        return {
            row["job"]
            for row in declared
            if not output.is_complete(
                row["final_size"],
                row["final_index_size"],
                logs.size(row["job"], row["attempt"]),
                logs.size(row["job"], row["attempt"], "index"),
            )
        }

    to_come = await anyio.to_thread.run_sync(incomplete)
    return [job for job in jobs if job not in to_come]


def _forget_logs(tx: Tx, *, jobs: list[int], before: int) -> list[int]:
    gone = [row["id"] for row in tx.all("forget_logs", ids=json.dumps(jobs), before=before)]
    if gone:
        tx.run("drop_artifacts", ids=json.dumps(gone))
        event(tx, EventType.LOGS_PRUNED, data={"jobs": retention.blocks(gone)})
    return gone


def _remove_files(broker: Broker, job: int) -> None:
    broker.logs.remove(job)
    broker.artifacts.remove(job)


# ---- rows, and events with them


async def _jobs(broker: Broker, cut: Cutoffs) -> None:
    if cut.jobs is None:
        return
    before = cut.jobs

    async def remove(page: list[Row]) -> None:
        for row in page:
            await anyio.to_thread.run_sync(_remove_files, broker, row["id"])  # what a crash had left
        failpoint("rows_next")
        await broker.store.run(partial(_drop, page=page, before=before))

    await _in_pages(broker, _old, before, remove)


def _old(tx: Tx, *, before: int, after_at: int, after_id: int) -> list[Row]:
    return tx.all("old_jobs", before=before, after_at=after_at, after_id=after_id, limit=BATCH)


def _drop(tx: Tx, *, page: list[Row], before: int) -> None:
    first, last = page[0], page[-1]
    still = _old(tx, before=before, after_at=first["ended_at"], after_id=first["id"] - 1)
    rows = [row for row in still if (row["ended_at"], row["id"]) <= (last["ended_at"], last["id"])]
    if not rows:
        return
    ids = json.dumps([row["id"] for row in rows])
    tx.run("keep_ends", ids=ids)
    tx.run("drop_dependencies", ids=ids)
    arrays = [row["id"] for row in tx.all("arrays_of", ids=ids)]
    tx.run("drop_array_dependencies", ids=ids)
    of_jobs = tx.one("last_event_of_jobs", ids=ids)
    tx.run("drop_events_of_jobs", ids=ids)
    tx.run("drop_artifacts", ids=ids)
    tx.run("drop_results", ids=ids)
    tx.run("drop_assignments", ids=ids)
    tx.run("drop_jobs", ids=ids)
    for spec in {row["spec"] for row in rows}:
        tx.run("drop_spec", spec=spec)
    for row in tx.all("drop_arrays", arrays=json.dumps(arrays)):
        tx.run("drop_shape", shape=row["shape"])
        tx.run("drop_event_of_array", array=row["id"])
    for (project, state), count in Counter((row["project"], row["state"]) for row in rows).items():
        tx.run("uncount", project=project, state=state, by=count)
    if of_jobs is not None and of_jobs["seq"] is not None:
        _note_gap(tx, of_jobs["seq"])
    event(tx, EventType.JOBS_PRUNED, data={"jobs": retention.blocks(row["id"] for row in rows)})


async def _events(broker: Broker, cut: Cutoffs) -> None:
    """Events that belong to no job, by their own age."""
    if cut.jobs is None:
        return

    def fn(tx: Tx) -> int:
        seqs = [row["seq"] for row in tx.all("old_events_of_no_job", before=cut.jobs, limit=BATCH)]
        if seqs:
            tx.run("drop_events", seqs=json.dumps(seqs))
            _note_gap(tx, seqs[-1])
        return len(seqs)

    await _repeated(broker, fn)


async def _run_times(broker: Broker, cut: Cutoffs) -> None:
    """What nobody has run for as long as rows are kept."""
    if cut.jobs is not None:
        await _repeated(broker, lambda tx: tx.run("drop_run_times", before=cut.jobs, limit=BATCH))


async def _watches(broker: Broker) -> None:
    before = broker.clock.wall_ms() - KEPT_S * 1000
    await _repeated(broker, lambda tx: tx.run("drop_watches", before=before, limit=BATCH))


async def _keys(broker: Broker) -> None:
    before = broker.clock.wall_ms() - int(broker.settings.keep_keys_s * 1000)
    await _repeated(broker, lambda tx: tx.run("drop_keys", before=before, limit=BATCH))


async def forget_recent_specs(broker: Broker) -> None:
    """Nobody is warned of what was submitted longer ago."""
    before = broker.clock.wall_ms() - TWICE_WITHIN_S * 1000
    await _repeated(broker, lambda tx: tx.run("drop_recent_specs", before=before, limit=BATCH))


def _note_gap(tx: Tx, seq: int) -> None:
    """Whoever reads on from before this event is told that some are missing."""
    known = tx.one("get_meta", key="events_pruned_to")
    if known is None or int(known["value"]) < seq:
        tx.run("set_meta", key="events_pruned_to", value=str(seq))


# ---- workers


async def _workers(broker: Broker, cut: Cutoffs) -> None:
    """Workers that are lost for as long as rows are kept: what they held can go then, too."""
    if cut.jobs is None:
        return

    def fn(tx: Tx) -> int:
        lost = tx.all("workers_long_lost", before=cut.jobs, limit=BATCH)
        for row in lost:
            workers.forget(tx, row["id"], row["name"], None)
        return len(lost)

    await _repeated(broker, fn)


async def _repeated(broker: Broker, fn: Callable[[Tx], int]) -> None:
    """Until there is nothing left; others get their turn in between."""
    while True:
        if not await broker.store.run(fn):
            return
        await asyncio.sleep(0)


async def _in_pages(broker: Broker, look: Look, before: int, act: Callable[[list[Row]], Awaitable[None]]) -> None:
    """Act on what is old enough, page by page. What has to stay is passed by, so that it can't keep the rest."""
    after_at, after_id = -(1 << 62), 0
    while True:
        page = await broker.store.read(partial(look, before=before, after_at=after_at, after_id=after_id))
        if not page:
            return
        try:
            await act(page)
        except (StorageFull, StorageFailed):
            raise
        except Exception:
            await _singly(page, act)
        after_at, after_id = page[-1]["ended_at"], page[-1]["id"]
        await asyncio.sleep(0)


async def _singly(page: list[Row], act: Callable[[list[Row]], Awaitable[None]]) -> None:
    """One bad row must not keep its page, nor all that comes after it."""
    for row in page:
        try:
            await act([row])
        except (StorageFull, StorageFailed):
            raise
        except Exception:
            log.exception("can't be removed", job=row["id"])
