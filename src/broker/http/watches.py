"""Waits that are kept, for MCP tasks and for whoever can't hold a connection."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from broker.http import surface
from broker.http.parameters import The, Who
from broker.service import watches
from broker.wire.states import Scope
from broker.wire.watches import Watch, WatchRequest

router = APIRouter(prefix="/v1/watches", tags=["watches"])

AS_A_TASK = "job_wait is the tool; it answers with such a wait as a task where the client knows tasks"
WatchId = Annotated[str, Path(max_length=128)]


@router.post(
    "",
    openapi_extra=surface.not_a_tool(Scope.READ, because=AS_A_TASK),
    response_model_exclude_none=True,
    status_code=201,
)
async def watch_create(said: WatchRequest, broker: The, who: Who) -> Watch:
    """Keep a wait for jobs or an array; its answer can be fetched later, also after the broker has started again."""
    return await watches.create(broker, who, said)


@router.get(
    "/{watch}", openapi_extra=surface.not_a_tool(Scope.READ, because=AS_A_TASK), response_model_exclude_none=True
)
async def watch_get(watch: WatchId, broker: The, who: Who) -> Watch:
    """How a kept wait stands, and its answer once there is one."""
    return await watches.look(broker, who, watch)


@router.post(
    "/{watch}/cancel", openapi_extra=surface.not_a_tool(Scope.READ, because=AS_A_TASK), response_model_exclude_none=True
)
async def watch_cancel(watch: WatchId, broker: The, who: Who) -> Watch:
    """Wait no longer. The jobs go on."""
    return await watches.cancel(broker, who, watch)
