"""A process that runs already becomes a job: its worker looks whether it is the one that was named, and sees to it from
then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from broker.core.adoption import completed, devices, given
from broker.core.effective import effective
from broker.core.matching import Shape
from broker.core.states import Claimed, Facts
from broker.service import machines
from broker.service.context import Broker, Caller
from broker.service.quotas import token_with_quota
from broker.service.submit import Denial, row_of, shape_id
from broker.service.transition import adopt as begin
from broker.service.wake import StopWanted
from broker.store.contract import Row, Tx
from broker.wire.adoptions import SAID, AdoptRequest
from broker.wire.jobs import JobSpec, Submitted
from broker.wire.misfits import misfit
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState
from broker.wire.workers import ADOPTS

IN_NO_ANSWER = 1 << 62
"""Above every number that an answer ever has: no list covers it."""


async def adopt(broker: Broker, caller: Caller, said: AdoptRequest) -> Submitted:
    """The job of a process that runs already. It is running from now on; that its worker does not find the process, or
    may not take it, is its end.

    Refused, and nothing is kept but the event of a quota: `unknown_worker`, `already_adopted`, `quota_exceeded`, and a
    specification with what has no meaning for what runs already (`invalid_spec`).
    """
    _only_what_counts(said.spec or {})

    def fn(tx: Tx) -> Submitted | Denial:
        worker = _worker(tx, said)
        start = said.started_on(worker["machine"])
        _not_twice(tx, said.pid, start, worker)
        uuids = devices(said.pid, machines.facts_of(tx, worker["id"]))
        whole = effective(_spec(said, len(uuids)), broker.settings.projects)
        spec, token = whole.spec, token_with_quota(broker.settings, caller.actor, caller.token)
        if (found := broker.quotas(tx).forbids_start(spec.project, token, len(uuids))) is not None:
            denied = Denial(spec.project, *found)
            denied.say(tx, caller.actor)
            return denied
        row = row_of(tx, whole, spec, shape_id(tx, Shape.of(spec, token)), "", caller.actor)
        row |= {"quota_token": token, "pid": said.pid, "start": start}
        claimed = _claimed(broker, worker, spec, uuids)
        facts = Facts(now=tx.now_ms, listened=broker.listening.now_ms(), claimed=claimed)
        job = begin(tx, row, facts, caller.actor)
        tx.tell(StopWanted(worker["id"]))  # its parked poll comes back, and asks again
        return Submitted(id=job.id, state=JobState.RUNNING)

    answer = await broker.store.run(fn, admits=True)
    if isinstance(answer, Denial):
        raise answer.refused
    return answer


def _claimed(broker: Broker, worker: Row, spec: JobSpec, uuids: Sequence[str]) -> Claimed:
    """What the worker has from now on. Its lease runs: there is no ack that could begin it."""
    return Claimed(
        worker=worker["id"],
        worker_name=worker["name"],
        epoch=worker["epoch"],
        token=broker.make_secret(),
        lease_until=broker.listening.now_ms() + broker.lease_ms,
        answer=IN_NO_ANSWER,
        cpus=spec.cpus,
        given=given(spec, uuids),
    )


def _only_what_counts(said: dict[str, Any]) -> None:
    for name in said:
        if name not in SAID:
            known = name in JobSpec.model_fields
            raise Refused(
                ProblemCode.INVALID_SPEC,
                f"{name} {'means nothing for a process that runs already' if known else 'is no field'}",
                field=f"spec.{name}",
                hint=f"fields: {', '.join(sorted(SAID))}",
            )


def _spec(said: AdoptRequest, gpus: int) -> JobSpec:
    fields = said.spec or {}
    if fields.get("vram_gb") is not None and not gpus:
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"process {said.pid} was not seen on any GPU, so there is none of which it could have vram_gb",
            field="spec.vram_gb",
            hint="leave it out, or try again once worker_list shows the process on its GPU",
        )
    try:
        return JobSpec.model_validate(completed(fields, said.pid, gpus))
    except ValidationError as error:
        first = misfit(error.errors(include_url=False, include_context=False, include_input=False)[0])
        field = f"spec.{first.field}" if first.field else "spec"
        raise Refused(ProblemCode.INVALID_SPEC, f"{field}: {first.message}", field=field) from None


def _worker(tx: Tx, said: AdoptRequest) -> Row:
    """The worker that was named; else the one on the caller's machine, or the only one that there is."""
    if said.worker is not None:
        rows = [row for row in tx.all("workers_to_adopt", machine=None) if said.worker in (row["name"], row["id"])]
        if not rows:
            raise Refused(
                ProblemCode.UNKNOWN_WORKER,
                f"there is no worker {said.worker} that could look at a process now",
                field="worker",
                hint="worker_list shows those that are there",
            )
    else:
        rows = tx.all("workers_to_adopt", machine=said.machine)
    if len(rows) != 1:
        where = "on the machine where its start was read" if said.machine is not None else "there"
        many = f"{len(rows)} workers are {where}, and any of them could have process {said.pid}"
        raise Refused(
            ProblemCode.UNKNOWN_WORKER,
            many if rows else f"no worker is {where}, so none could adopt process {said.pid}",
            field="worker",
            hint="name one with worker; worker_list shows those that are there",
        )
    if rows[0]["protocol"] < ADOPTS:
        raise Refused(
            ProblemCode.UNKNOWN_WORKER,
            f"worker {rows[0]['name']} is of a version that can't adopt a process",
            field="worker",
            hint="restart it with the version of the broker",
        )
    return rows[0]


def _not_twice(tx: Tx, pid: int, start: int | None, worker: Row) -> None:
    row = tx.one("adopted_on_worker", pid=pid, start=start, worker=worker["id"])
    if row is not None:
        raise Refused(
            ProblemCode.ALREADY_ADOPTED,
            f"process {pid} of worker {worker['name']} is job {row['id']} already",
            field="pid",
            hint=f"job_get {row['id']} tells how it stands",
        )
