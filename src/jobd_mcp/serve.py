"""Composition: the broker's app, its MCP endpoint at /mcp, and mcp.sock, all with one server object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.service.context import Caller
from broker.wire import states as wire
from broker.wire.problems import ProblemCode, Refused
from jobd_mcp.calls import CALLER, InProcess
from jobd_mcp.mcp_socket import McpSocket
from jobd_mcp.server import build, lowlevel

PATH = "/mcp"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


class _Gate:
    """ASGI, in front of the endpoint: tools check their own scopes, but nobody gets in who may not even read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope.get(CALLER)
        if not isinstance(caller, Caller) or not caller.may(wire.Scope.READ):
            raise Refused(ProblemCode.FORBIDDEN, "this needs the scope read", hint="job token create --scope read NAME")
        await self._app(scope, receive, send)


def add_mcp(
    app: FastAPI,
    *,
    operator: Caller,
    most_body_bytes: int,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> McpSocket:
    """Give `app` its MCP endpoint; the private socket's server comes back, to be started by whoever runs the app.

    Over HTTP the caller is whom the app's own checks, which stand in front of every route, have put into the scope;
    on the private socket it is `operator`. Either way each tool call passes the app's routes as that caller.
    """
    server = build(
        app.openapi(),
        InProcess(app),
        version=app.version,
        identity_of=lambda request: request.scope.get(CALLER) if isinstance(request, Request) else operator,
    )
    sessions = StreamableHTTPSessionManager(
        lowlevel(server),
        security_settings=_security(hosts, origins),
        max_request_body_size=most_body_bytes,
    )
    app.router.routes.append(Route(PATH, endpoint=_Gate(StreamableHTTPASGIApp(sessions)), include_in_schema=False))
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with inner(running) as state, sessions.run():
            yield state or {}

    app.router.lifespan_context = lifespan
    return McpSocket(lowlevel(server))


def _security(hosts: Sequence[str], origins: Sequence[str]) -> TransportSecuritySettings:
    """Said explicitly: left unsaid, the SDK turns its checks off. The same lists as in front of every route."""
    known = [*LOOPBACK_HOSTS, *hosts]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*known, *(f"{host}:*" for host in known)],
        allowed_origins=list(origins),
    )
