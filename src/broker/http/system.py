"""The broker itself: is it there, is it ready, who is it, who may come in, what can it do."""

from __future__ import annotations

import os
from typing import Any

from fastapi import APIRouter, Request

from broker.http import surface
from broker.http.parameters import The, Who
from broker.service import projects, tokens
from broker.wire.jobs import Name
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import ProjectChange, ProjectEntry, ProjectList, Reloaded
from broker.wire.states import Scope
from broker.wire.system import Health, TokenList, TokenMade, TokenRequest, Whoami

router = APIRouter(tags=["system"])

PROBE = "a probe for service managers"
FOR_OPERATORS = "tokens are an operator's business: job token"


@router.get("/livez", openapi_extra=surface.not_a_tool(None, because=PROBE), response_model_exclude_none=True)
async def livez() -> Health:
    """The process answers."""
    return Health(ok=True)


@router.get("/readyz", openapi_extra=surface.not_a_tool(None, because=PROBE), response_model_exclude_none=True)
async def readyz(broker: The) -> Health:
    """The store takes a write and a read, now. Else 503, `not_ready`."""
    now = str(broker.clock.wall_ms())
    await broker.store.run(lambda tx: tx.run("set_meta", key="probed", value=now))
    row = await broker.store.read(lambda tx: tx.one("get_meta", key="probed"))
    if row is None:
        raise Refused(ProblemCode.NOT_READY, "the store forgot what was written", retryable=True)
    return Health(ok=True)


@router.get(
    "/v1/whoami", openapi_extra=surface.not_a_tool(Scope.READ, because="asked by our own programs before anything else")
)
async def whoami(request: Request, broker: The, who: Who) -> Whoami:
    """Which broker this is, and who the caller is to it."""
    return Whoami(
        installation=broker.installation,
        version=broker.version,
        pid=os.getpid(),
        actor=who.actor,
        scopes=sorted(who.scopes),
        restarts_worker=bool(getattr(request.app.state, "restarts_worker", False)),
    )


@router.post(
    "/v1/tokens",
    openapi_extra=surface.not_a_tool(Scope.OPERATOR, because=FOR_OPERATORS),
    response_model_exclude_none=True,
    status_code=201,
)
async def token_create(request: TokenRequest, broker: The, who: Who) -> TokenMade:
    """Make a token. It is shown this once."""
    return await tokens.create(broker, who, request)


@router.get(
    "/v1/tokens",
    openapi_extra=surface.not_a_tool(Scope.OPERATOR, because=FOR_OPERATORS),
    response_model_exclude_none=True,
)
async def token_list(broker: The) -> TokenList:
    """All tokens, without their secrets."""
    return await tokens.list_tokens(broker)


@router.delete(
    "/v1/tokens/{name}",
    openapi_extra=surface.not_a_tool(Scope.OPERATOR, because=FOR_OPERATORS),
    response_model_exclude_none=True,
)
async def token_revoke(name: str, broker: The, who: Who) -> TokenList:
    """Refuse this token from now on."""
    return await tokens.revoke(broker, who, name)


@router.get(
    "/v1/projects",
    openapi_extra=surface.not_a_tool(Scope.READ, because="job_preview says what counts for a job: job projects"),
    response_model_exclude_none=True,
)
async def project_list(broker: The) -> ProjectList:
    """Projects: what counts for each, whose word that is, and what it holds and has used."""
    return await projects.list_projects(broker)


@router.put(
    "/v1/projects/{name}",
    openapi_extra=surface.not_a_tool(Scope.OPERATOR, because="projects are an operator's business: job projects set"),
    response_model_exclude_none=True,
)
async def project_set(name: Name, request: ProjectChange, broker: The, who: Who) -> ProjectEntry:
    """Change keys of a project at once, over jobd.toml; null takes a change back."""
    return await projects.change(broker, who, name, request)


@router.post(
    "/v1/reload",
    openapi_extra=surface.not_a_tool(Scope.OPERATOR, because="settings are an operator's business: job reload"),
    response_model_exclude_none=True,
)
async def reload(broker: The, who: Who) -> Reloaded:
    """Read jobd.toml again: all of it counts, or nothing."""
    return await projects.reload(broker, who)


@router.get(
    "/openapi.json", openapi_extra=surface.not_a_tool(Scope.READ, because="the document that tools are made from")
)
async def openapi_document(request: Request) -> dict[str, Any]:
    """The one definition of all operations."""
    document: dict[str, Any] = request.app.openapi()
    return document
