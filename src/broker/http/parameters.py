"""Parameters that several routes share, with their bounds."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel

from broker.http.auth import caller
from broker.service.context import Broker, Caller
from broker.wire.jobs import MOST_ID, Keyed, Name
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Uuid

Id = Annotated[int, Path(ge=1, le=MOST_ID)]
Attempt = Annotated[int, Path(ge=1, le=MOST_ID)]
WorkerId = Annotated[Uuid, Path(description="Id of the worker, from its state directory.")]
WorkerName = Annotated[Name, Path(description="Name or id.")]
Who = Annotated[Caller, Depends(caller)]
OptionalAttempt = Annotated[int | None, Query(ge=1, le=MOST_ID, description="Default: newest.")]
MOST_OFFSET = MOST_ID


HeaderKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, description="As idempotency_key in the body."),
]
K = TypeVar("K", bound=Keyed)


def keyed(said: K, header: str | None) -> K:
    """The request with the key of its header, which may be quoted there. Refused: its body has another one."""
    if header is None:
        return said
    quoted = len(header) > 2 and header[0] == header[-1] == '"'
    key = header[1:-1] if quoted else header
    if said.idempotency_key not in (None, key):
        raise Refused(
            ProblemCode.INVALID_REQUEST,
            "the header Idempotency-Key and idempotency_key are not the same",
            field="idempotency_key",
            hint="give one of them",
        )
    return said.model_copy(update={"idempotency_key": key})


async def broker_of(request: Request) -> Broker:
    found = request.app.state.broker
    assert isinstance(found, Broker)
    return found


def answered(model: BaseModel, status: int = 200) -> Response:
    """An answer that is not validated a second time, for the routes that are asked most.

    These also ask for the broker and the caller themselves: a dependency costs more than what it does.
    """
    return Response(model.model_dump_json(exclude_none=True), status, media_type="application/json")


The = Annotated[Broker, Depends(broker_of)]
