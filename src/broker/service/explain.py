"""Why a job waits, worker by worker, and when it starts: what dispatch would say, read and never written."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.estimates import Estimate
from broker.core.explaining import Verdict, suggestion, verdicts
from broker.core.forecast import Start
from broker.core.graph import Parent
from broker.core.matching import Machine, Shape
from broker.service import array_counts, views
from broker.service.context import Broker
from broker.service.forecast import HELD_BACK, Outlook, place_of_job
from broker.service.rivals import Place
from broker.service.rows import unknown_job
from broker.store.contract import Row, Tx
from broker.wire.jobs import Ahead, Explained, Placement, Reason
from broker.wire.states import JobState

MOST_WORKERS = 6
_OF_GATES = {
    "hold": "release it: job update ID --release, or job_update release=true",
    "not_before": "wait for that time; a new job without not_before starts at once",
    "retry_delay": "wait for the retry, or cancel it and submit what is right",
}


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
        return _blocked(tx, broker, row, waits) if row["blocked"] else _queued(tx, broker, row, waits)

    return await broker.store.read(fn)


def _blocked(tx: Tx, broker: Broker, row: Row, waits: views.Waiting) -> Explained:
    parent = array_counts.open_parent(tx, row["id"])
    assert parent is not None, "a blocked job has a parent that has not ended"
    start = Outlook(tx, broker, views.machines(tx)).start(place_of_job(tx, row))
    return Explained(
        id=row["id"],
        state=JobState.QUEUED,
        waiting=waits.of_job(row),
        start_estimate_s=start.start_s,
        basis=start.basis,
        suggestion=_of_parent(parent),
    )


def _queued(tx: Tx, broker: Broker, row: Row, waits: views.Waiting) -> Explained:
    found = prospect(tx, broker, waits, place_of_job(tx, row), row["place"], row["fingerprint"], row)
    return Explained(
        id=row["id"],
        state=JobState.QUEUED,
        waiting=found.waiting,
        placement=found.placement,
        more_workers=found.more_workers,
        ahead=found.ahead,
        start_estimate_s=found.start.start_s,
        basis=found.start.basis,
        suggestion=found.suggestion,
    )


def _of_parent(parent: Parent) -> str:
    if parent.array:
        return f"it starts after all members of that array; job_list array={parent.id} shows them"
    return f"it starts after that job; job_explain {parent.id} says why that one waits"


@dataclass(frozen=True, slots=True)
class Prospect:
    """How a job in some place of the queue stands to all workers."""

    waiting: Reason
    placement: list[Placement]
    more_workers: int | None
    ahead: Ahead | None
    start: Start
    run: Estimate
    suggestion: str


def prospect(
    tx: Tx,
    broker: Broker,
    waits: views.Waiting,
    place: Place,
    directory: str,
    fingerprint: str | None,
    row: Row | None = None,
) -> Prospect:
    """`directory`: the key of the directory and environment that it needs, which workers may have refused; `row`: of a
    job that is there already."""
    everybody = views.machines(tx)
    shape, machines = place.shape, _worth_telling(everybody)
    refused = {
        refusal["worker"]: Reason(code=refusal["code"], message=refusal["message"])
        for refusal in tx.all("refusals_of_place", place=directory, key=shape.key())
    }
    why = (waits.of_job(row) if row is not None else None) or waits.reason(shape, directory)
    mine = row["id"] if row is not None else None
    kept = {one.worker: one.for_others for one in waits.kept() if one.job != mine}
    if row is not None and row["prefers"] is not None:
        first = waits.name_of(row["prefers"])
        kept |= {machine.name: why for machine in machines if machine.name != first}
    found = verdicts(shape, machines, refused, kept)
    outlook = Outlook(tx, broker, everybody)
    return Prospect(
        waiting=why,
        placement=[_shown(verdict) for verdict in found[:MOST_WORKERS]],
        more_workers=max(0, len(found) - MOST_WORKERS) or None,
        ahead=outlook.ahead(place, refused),
        start=HELD_BACK.get(why.code) or outlook.start(place, refused),
        run=outlook.run(fingerprint),
        suggestion=_of_hold(why, shape) or suggestion(shape, found),
    )


def _of_hold(waiting: Reason | None, shape: Shape) -> str | None:
    if waiting is not None and waiting.code == "array_throttle":
        return f"raise max_parallel of array {shape.array}, or wait until a member that runs has ended"
    if waiting is not None and waiting.code in _OF_GATES:
        return _OF_GATES[waiting.code]
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
