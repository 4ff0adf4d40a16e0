"""Idempotency keys: a request that is made again under its key is answered as it was, and done once.

Kept in the transaction that does what the request says, so there is never one without the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from broker.service import rows
from broker.service.context import Caller
from broker.store.contract import Store, Tx
from broker.wire.jobs import CancelAnswer, Keyed, Repeatable, Submitted, SubmittedMany, Updated
from broker.wire.problems import ProblemCode, Refused

A = TypeVar("A", bound=Repeatable)
N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class Key:
    """A key, whose it is and for what; `request`: a hash of what was asked under it."""

    actor: str
    project: str
    operation: str
    key: str
    request: str

    @property
    def scope(self) -> dict[str, str]:
        return {"actor": self.actor, "project": self.project, "operation": self.operation, "key": self.key}


def of(said: Keyed, caller: Caller, operation: str, project: str, about: int | None = None) -> Key | None:
    """The key of this request; None: it has none. `about`: the job that its path names."""
    if said.idempotency_key is None:
        return None
    return Key(caller.actor, project, operation, said.idempotency_key, _hash(said, about))


def _hash(said: Keyed, about: int | None) -> str:
    """Of what was said, as it was understood: spelling and order of names don't count, but for the axes of a sweep; nor
    does `force`, which confirms what is asked and asks for nothing."""
    asked = said.model_dump(mode="json", exclude={"idempotency_key", "force"}, exclude_unset=True, exclude_none=True)
    axes = list(asked.get("sweep", ()))
    return hashlib.sha256(json.dumps([asked, axes, about], sort_keys=True).encode()).hexdigest()


async def answered(store: Store, key: Key | None, answer: type[A]) -> A | None:
    """What a request was answered when it was made before; None: it was not, or has no key."""
    return await store.read(lambda tx: _before(tx, key, answer)) if key is not None else None


def once(tx: Tx, key: Key | None, answer: type[A], act: Callable[[], A | N]) -> A | N:
    """What `act` answers, or what it answered when it was done. What is no `answer` was not done, and is not kept.

    Refused: the key stands for another request (`idempotency_conflict`).
    """
    if key is None:
        return act()
    known = _before(tx, key, answer)
    if known is not None:
        return known
    done = act()
    if isinstance(done, answer):
        text = done.model_dump_json(exclude_none=True)
        tx.run("keep_key", **key.scope, request=key.request, answer=text, job=_job(done), now=tx.now_ms)
    return done


def _before(tx: Tx, key: Key, answer: type[A]) -> A | None:
    known = tx.one("key", **key.scope)
    if known is None:
        return None
    if known["request"] != key.request:
        raise _conflict(key, known["job"], known["created_at"])
    return answer.model_validate_json(known["answer"]).model_copy(update={"repeated": True})


def _job(answer: Repeatable) -> int | None:
    """The job to name to whoever meets the key again."""
    match answer:
        case Submitted():
            return answer.id if answer.id is not None else answer.array
        case SubmittedMany():
            return _job(answer.jobs[0])
        case Updated():
            return answer.id
        case CancelAnswer():
            return answer.jobs[0].id if answer.jobs else None
        case _:
            return None


def _conflict(key: Key, job: int | None, at_ms: int) -> Refused:
    of_job = f", of job {job}" if job is not None else ""
    return Refused(
        ProblemCode.IDEMPOTENCY_CONFLICT,
        f"the key {key.key!r} stands for another {key.operation}{of_job}, at {rows.at(at_ms).isoformat()}; "
        "nothing was done",
        field="idempotency_key",
        hint="another request needs another key; a repeat has to say the same",
    )
