"""What a submit would come to: judged, completed and placed as a submit would, and nothing of it is kept."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from broker.core.effective import Effective, effective
from broker.core.fingerprint import fingerprint
from broker.core.matching import Shape
from broker.service.context import Broker
from broker.service.explain import Prospect, prospect
from broker.service.forecast import Place, told
from broker.service.submit import admit_environment, parents_of, place_of, warnings_of
from broker.service.views import Waiting, waits_for
from broker.store.contract import Tx
from broker.wire.jobs import JobSpec, Preview, SpecError
from broker.wire.misfits import hint, misfit
from broker.wire.problems import ProblemCode, Refused

BEHIND_ALL = 1 << 62


async def preview(broker: Broker, asked: dict[str, Any]) -> Preview:
    """What is wrong with it, all at once, and what it amounts to under the load of now. Refuses nothing."""
    try:
        spec = JobSpec.model_validate(asked)
    except ValidationError as error:
        return Preview(valid=False, errors=_misfits(error))
    whole = effective(spec, broker.settings.projects)
    return await broker.store.read(lambda tx: _preview(tx, broker, whole))


def _preview(tx: Tx, broker: Broker, whole: Effective) -> Preview:
    spec, errors = whole.spec, []
    waits = None
    try:
        admit_environment(spec)
    except Refused as refused:
        errors.append(_refusal(refused))
    try:
        waits = parents_of(tx, spec)[1].because
    except Refused as refused:
        errors.append(_refusal(refused))
    place = Place(Shape.of(spec), spec.priority, BEHIND_ALL, spec.depends_on or ())
    found = prospect(
        tx, Waiting(tx, broker.quotas(tx)), broker.settings.projects, place, place_of(spec), fingerprint(spec)
    )
    return Preview(
        valid=not errors,
        errors=errors or None,
        spec=json.loads(spec.model_dump_json(exclude_none=True)),
        sources={name: source.value for name, source in whole.sources.items()},
        waiting=waits_for(waits) if waits is not None else found.waiting if not _fits(found) else None,
        placement=found.placement,
        more_workers=found.more_workers,
        ahead=found.ahead,
        start_estimate_s=found.start.start_s,
        run_estimate_s=found.run.run_s,
        basis=told(found.start, found.run),
        suggestion=None if _fits(found) else found.suggestion,
        warnings=warnings_of(whole),
    )


def _fits(found: Prospect) -> bool:
    return any(one.fits for one in found.placement)


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
