"""Many jobs in one call: all of them are on disk when it is answered, or none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio.to_thread

from broker.core.effective import Effective
from broker.service import keys, snapshots
from broker.service.completing import complete
from broker.service.context import Broker, Caller
from broker.service.submit import Denial, Members, accept, admit_environment, members_of
from broker.store.contract import Tx
from broker.wire.jobs import MAX_COUNT, JobSpec, SubmitMany, Submitted, SubmittedMany
from broker.wire.problems import ProblemCode, Refused


class _Denied(Exception):
    """A quota forbids one of them: nothing of the others is kept."""

    def __init__(self, place: int, denial: Denial) -> None:
        super().__init__(place)
        self.place, self.denial = place, denial


async def submit_many(broker: Broker, caller: Caller, said: SubmitMany) -> SubmittedMany:
    """Each as `submit` takes it, arrays too. Refused as a whole, with the place and field that are to blame. A key is
    that of all of them; its scope are the projects that they name."""
    key = keys.of(said, caller, "submit together", ",".join(sorted({spec.project for spec in said.jobs})))
    if (known := await keys.answered(broker.store, key, SubmittedMany)) is not None:
        return known
    specs = [await _taken(broker, caller, place, spec) for place, spec in enumerate(said.jobs)]
    judged = await anyio.to_thread.run_sync(_judged, broker, specs)

    def all_of_them(tx: Tx) -> SubmittedMany:
        return SubmittedMany(jobs=[_accept(tx, broker, caller, n, *one) for n, one in enumerate(judged)])

    def fn(tx: Tx) -> SubmittedMany:
        return keys.once(tx, key, SubmittedMany, lambda: all_of_them(tx))

    try:
        answer = await broker.store.run(fn, admits=True)
    except _Denied as denied:
        await broker.store.run(partial(denied.denial.say, actor=caller.actor))  # what was said of it is undone too
        raise _placed(denied.place, denied.denial.refused) from None
    return answer


async def _taken(broker: Broker, caller: Caller, place: int, spec: JobSpec) -> JobSpec:
    try:
        return await snapshots.taken(broker, caller, spec)
    except Refused as refused:
        raise _placed(place, refused) from None


def _judged(broker: Broker, specs: Sequence[JobSpec]) -> list[tuple[Effective, Members]]:
    found: list[tuple[Effective, Members]] = []
    for place, spec in enumerate(specs):
        try:
            whole = complete(broker, spec)
            admit_environment(whole.spec)
            found.append((whole, members_of(whole.spec)))
        except Refused as refused:
            raise _placed(place, refused) from None
    size = sum(members.size for _, members in found)
    if size > MAX_COUNT:
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"these are {size} jobs with all members; {MAX_COUNT} can be submitted together",
            field="jobs",
            hint="submit them in several calls",
        )
    return found


def _accept(tx: Tx, broker: Broker, caller: Caller, place: int, whole: Effective, members: Members) -> Submitted:
    try:
        answer = accept(tx, broker, caller, whole, members)
    except Refused as refused:
        raise _placed(place, refused) from None
    if isinstance(answer, Denial):
        raise _Denied(place, answer)
    return answer


def _placed(place: int, refused: Refused) -> Refused:
    """The same refusal, which says of which of them."""
    field = f"jobs.{place}.{refused.field}" if refused.field else f"jobs.{place}"
    return Refused(
        refused.code,
        f"jobs.{place}: {refused.detail}; nothing was submitted",
        hint=refused.hint,
        field=field,
        retryable=refused.retryable,
    )
