"""Why a job waits, worker by worker: what dispatch would say, read and never written."""

from __future__ import annotations

from collections.abc import Mapping

from broker.core.explaining import Verdict, suggestion, verdicts
from broker.core.matching import Machine, Shape
from broker.service import views
from broker.service.context import Broker
from broker.service.rows import unknown_job
from broker.store.contract import Row, Tx
from broker.wire.jobs import Ahead, Explained, Placement, Reason
from broker.wire.states import JobState

MOST_WORKERS = 6
MOST_COUNTED = 10_000


async def explain(broker: Broker, job: int) -> Explained:
    """Of a queued job all that is in its way; of any other where it is, and why. Refused: `unknown_job`."""

    def fn(tx: Tx) -> Explained:
        row = tx.one("job_view", job=job)
        if row is None:
            raise unknown_job(tx, job)
        state = JobState(row["state"])
        if state is not JobState.QUEUED:
            return Explained(id=job, state=state, reason=views.reason(row))
        waits = views.Waiting(tx, broker.quotas(tx))
        waiting = waits.of_job(row)
        if row["blocked"]:
            said = f"it starts after that job; job_explain {_parent(tx, row)} says why that one waits"
            return Explained(id=job, state=state, waiting=waiting, suggestion=said)
        return _queued(tx, row, waiting, {kept.worker: kept.for_others for kept in waits.kept() if kept.job != job})

    return await broker.store.read(fn)


def _parent(tx: Tx, row: Row) -> int:
    parent = tx.one("open_parent", child=row["id"])
    assert parent is not None, "a blocked job has a parent that has not ended"
    return int(parent["id"])


def _queued(tx: Tx, row: Row, waiting: Reason | None, kept: Mapping[str, Reason]) -> Explained:
    key = tx.one("shape_key", shape=row["shape"])
    assert key is not None, "jobs refer to their shape"
    shape, machines = Shape.from_key(key["key"]), _worth_telling(views.machines(tx))
    refused = {
        refusal["worker"]: Reason(code=refusal["code"], message=refusal["message"])
        for refusal in tx.all("refusals_of_place", place=row["place"], key=key["key"])
    }
    found = verdicts(shape, machines, refused, kept)
    return Explained(
        id=row["id"],
        state=JobState.QUEUED,
        waiting=waiting,
        placement=[_shown(verdict) for verdict in found[:MOST_WORKERS]],
        more_workers=max(0, len(found) - MOST_WORKERS) or None,
        ahead=_ahead(tx, row),
        suggestion=_of_quota(waiting) or suggestion(shape, found),
    )


def _of_quota(waiting: Reason | None) -> str | None:
    if waiting is None or waiting.code != "quota":
        return None
    whose = waiting.message.partition(" ")[0]
    when = "until the next day" if waiting.need is None else f"until another job of the {whose} has ended"
    return f"wait {when}, or have its quota raised"


def _worth_telling(machines: list[Machine]) -> list[Machine]:
    """Without workers that are lost while another has their name: they are what it was."""
    there = {machine.name for machine in machines if machine.online}
    return [machine for machine in machines if machine.online or machine.name not in there]


def _shown(verdict: Verdict) -> Placement:
    return Placement(worker=verdict.worker, fits=not verdict.reasons, reasons=list(verdict.reasons) or None)


def _ahead(tx: Tx, row: Row) -> Ahead | None:
    found = tx.one("jobs_ahead", job=row["id"], most=MOST_COUNTED)
    jobs = int(found["jobs"]) if found is not None else 0
    return Ahead(jobs=jobs, because="of the same needs, with a higher priority or submitted before") if jobs else None
