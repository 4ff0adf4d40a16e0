"""What a submit would come to: judged, completed and placed as a submit would, and nothing of it is kept."""

from __future__ import annotations

import json
from typing import Any

import anyio.to_thread
from pydantic import ValidationError

from broker.core import sizing
from broker.core.arrays import is_array
from broker.core.effective import Effective
from broker.core.fingerprint import fingerprint
from broker.core.matching import Shape
from broker.core.placement import Demand
from broker.service import history, snapshots
from broker.service.completing import completed
from broker.service.context import Broker, Caller
from broker.service.explain import Prospect, prospect
from broker.service.forecast import HELD_BACK, told
from broker.service.making_room import would_stop
from broker.service.order import Head
from broker.service.quotas import token_with_quota
from broker.service.rivals import Place
from broker.service.submit import (
    Denial,
    Members,
    admit_environment,
    members_of,
    parents_of,
    place_of,
    shown,
    waits_at_submit,
    warnings_of,
)
from broker.service.views import Waiting
from broker.store.contract import Tx
from broker.wire.jobs import JobSpec, Preview, SpecError, Submission, WouldPreempt
from broker.wire.misfits import hint, misfit
from broker.wire.problems import ProblemCode, Refused

BEHIND_ALL = 1 << 62


async def preview(broker: Broker, caller: Caller, asked: dict[str, Any]) -> Preview:
    """What is wrong with it, all at once, and what it amounts to under the load of now. Refuses nothing."""
    try:
        spec = Submission.model_validate(asked).spec
    except ValidationError as error:
        return Preview(valid=False, errors=_misfits(error))
    token = token_with_quota(broker.settings, caller.actor, caller.token)
    try:
        snapshots.check(caller, spec)
        whole = await completed(broker, spec)
        members = await anyio.to_thread.run_sync(members_of, whole.spec)
    except Refused as refused:
        return Preview(valid=False, errors=[_refusal(refused)])
    return await broker.store.read(lambda tx: _preview(tx, broker, whole, members, token))


def _preview(tx: Tx, broker: Broker, whole: Effective, members: Members, token: str | None) -> Preview:
    spec, errors = whole.spec, []
    quotas = broker.quotas(tx)
    waits = None
    try:
        admit_environment(spec)
    except Refused as refused:
        errors.append(_refusal(refused))
    try:
        waits = waits_at_submit(spec, tx.now_ms, parents_of(tx, spec, members.size)[1])
    except Refused as refused:
        errors.append(_refusal(refused))
    denied = quotas.denies(spec.project, token, members.size, Demand.of(spec).gpus)
    if denied is not None:
        errors.append(_refusal(Denial(spec.project, *denied).refused))
    place = Place(Shape.of(spec, token), spec.priority, BEHIND_ALL, tuple(spec.depends_on or ()))
    found = prospect(tx, broker, Waiting(tx, quotas), place, place_of(members.first), fingerprint(members.first))
    start = HELD_BACK.get(waits.code, found.start) if waits is not None else found.start
    return Preview(
        valid=not errors,
        errors=errors or None,
        count=members.size if is_array(spec) else None,
        command=shown(members.first) if is_array(spec) else None,
        spec=json.loads(spec.model_dump_json(exclude_none=True)),
        sources={name: str(source) for name, source in whole.sources.items()},
        waiting=waits if waits is not None else found.waiting if not _starts(found) else None,
        placement=found.placement,
        more_workers=found.more_workers,
        ahead=found.ahead,
        start_estimate_s=start.start_s,
        run_estimate_s=found.run.run_s,
        basis=told(start, found.run),
        would_preempt=_would_preempt(tx, broker, place, place_of(members.first)) or None,
        suggestion=None if _starts(found) else found.suggestion,
        warnings=_warnings(tx, whole, fingerprint(members.first)),
    )


def _warnings(tx: Tx, whole: Effective, key: str) -> list[str] | None:
    """A submit's, and what past runs say of the size."""
    sized = sizing.advice(whole.spec, sizing.used(history.history(tx, key), key))
    return [*(warnings_of(tx, whole) or ()), *sized] or None


def _would_preempt(tx: Tx, broker: Broker, place: Place, directory: str) -> list[WouldPreempt]:
    """Nothing for one that waits for others: by then all may be different."""
    if place.waits_for:
        return []
    head = Head(shape=0, job=BEHIND_ALL, priority=place.priority, wants=place.shape)
    found = would_stop(tx, broker, head, directory)
    if found is None:
        return []
    worker = found.site.machine.name
    return [WouldPreempt(id=victim.job, worker=worker, priority=victim.priority) for victim in found.stopped]


def _starts(found: Prospect) -> bool:
    """Whether it only waits for its turn."""
    return any(one.fits for one in found.placement) and found.waiting.code not in HELD_BACK


def _refusal(refused: Refused) -> SpecError:
    return SpecError(code=refused.code.value, message=refused.detail, field=refused.field, hint=refused.hint)


def _misfits(error: ValidationError) -> list[SpecError]:
    found = [misfit(one) for one in error.errors(include_url=False, include_context=False, include_input=False)]
    return [
        SpecError(
            code=ProblemCode.INVALID_SPEC.value,
            message=one.message,
            field=one.field or None,
            hint=hint(one, JobSpec),
        )
        for one in found
    ]
