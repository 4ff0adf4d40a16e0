"""A job is accepted: on disk, with its events, before the answer is sent."""

from __future__ import annotations

import hashlib
import json
import shlex

from broker.core.matching import Shape
from broker.service import views
from broker.service.context import Broker, Caller
from broker.service.transition import event, event_of_array, join_line
from broker.store.contract import Tx, Value
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec, Submitted
from broker.wire.states import JobState

COMMAND_SHOWN = 200


async def submit(broker: Broker, caller: Caller, spec: JobSpec) -> Submitted:
    """One job, or an array of `count` whose ids are one block.

    What is valid but fits no worker now is accepted and waits, saying so.
    """

    def fn(tx: Tx) -> Submitted:
        shape, place = _shape(tx, spec), place_of(spec)
        row = _row(tx, spec, shape, place, caller.actor)
        first = _insert(tx, spec.count, row)
        count = spec.count or 1
        tx.run("count_state", project=spec.project, state=JobState.QUEUED.value, by=count)
        join_line(tx, first, shape)  # members have the same priority, and stand behind the first one
        if spec.count is None:
            event(tx, EventType.JOB_SUBMITTED, job=first, project=spec.project, actor=caller.actor)
        else:
            event_of_array(tx, EventType.JOB_SUBMITTED, first, caller.actor)
        hopeless = views.hopeless(tx, broker.fits, Shape.of(spec), place)
        if spec.count is None:
            return Submitted(id=first, state=JobState.QUEUED, waiting=hopeless)
        return Submitted(
            array=first, count=count, ids=f"{first}..{first + count - 1}", state=JobState.QUEUED, waiting=hopeless
        )

    return await broker.store.run(fn, admits=True)


def _shape(tx: Tx, spec: JobSpec) -> int:
    key = Shape.of(spec).key()
    known = tx.one("shape_id", key=key)
    return tx.insert("add_shape", key=key) if known is None else int(known["id"])


def _row(tx: Tx, spec: JobSpec, shape: int, place: str, actor: str) -> dict[str, Value]:
    return {
        "spec": tx.insert("add_spec", json=spec.model_dump_json(exclude_none=True)),
        "shape": shape,
        "project": spec.project,
        "name": spec.name,
        "command": _shown(spec),
        "priority": spec.priority,
        "cpus": spec.cpus,
        "place": place,
        "policy": spec.on_worker_lost.value,
        "grace_s": spec.checkpoint_grace_s,
        "actor": actor,
        "now": tx.now_ms,
    }


def _insert(tx: Tx, count: int | None, row: dict[str, Value]) -> int:
    first = tx.insert("add_job", **row)
    if count is not None:
        tx.run("make_array_head", id=first)
        tx.run("add_array_members", array=first, count=count)
    return first


def _shown(spec: JobSpec) -> str:
    text = spec.command if spec.command is not None else shlex.join(spec.argv or [])
    text = " ".join(text.split())
    return text if len(text) <= COMMAND_SHOWN else text[: COMMAND_SHOWN - 1] + "…"


def place_of(spec: JobSpec) -> str:
    """A key of the directory and environment that the job needs: what a worker's refusal of them holds for."""
    place = [spec.cwd, spec.venv, spec.conda]
    if not any(place):
        return ""
    return hashlib.sha256(json.dumps(place).encode()).hexdigest()[:32]
