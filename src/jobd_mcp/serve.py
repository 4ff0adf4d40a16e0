"""Composition: the broker's app, its MCP endpoint at /mcp, and mcp.sock, all with one server object."""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from broker import places
from broker.app import Reread, bind_unix, run_broker
from broker.http import auth
from broker.service.context import Broker, Caller
from broker.wire import states as wire
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from jobd_mcp.calls import InProcess
from jobd_mcp.mcp_socket import McpSocket
from jobd_mcp.server import build, lowlevel
from jobd_mcp.waiting import USUAL, Pace

PATH = "/mcp"


@asynccontextmanager
async def serving(
    settings: BrokerSettings,
    state: Path,
    environ: Mapping[str, str],
    *,
    restarts_worker: bool = False,
    reread: Reread | None = None,
    pace: Pace = USUAL,
) -> AsyncIterator[Broker]:
    """A whole broker, with MCP over HTTP and on its private socket. Raises what `run_broker` raises."""
    endpoints: list[McpEndpoint] = []

    @asynccontextmanager
    async def extend(app: FastAPI, broker: Broker) -> AsyncIterator[None]:
        app.state.restarts_worker = restarts_worker
        endpoints.append(McpEndpoint(app, broker, pace))
        yield

    async with run_broker(settings, state, environ, extend, reread=reread) as broker:
        _, mcp_socket = places.sockets(state, environ)
        # Entered last, so closed first: open MCP streams would hold up the end of the HTTP servers.
        async with endpoints[0].open(mcp_socket):
            yield broker


class McpEndpoint:
    """MCP for one app. Over HTTP the caller is whom the app's doorman let in; on the private socket it is the owner.
    Either way each tool call passes the app's routes as that caller."""

    def __init__(self, app: FastAPI, broker: Broker, pace: Pace) -> None:
        settings = broker.settings
        operator = Caller(actor=_owner(), scopes=frozenset({wire.Scope.OPERATOR}))
        server = build(
            app.openapi(),
            InProcess(auth.Doorman(app, broker)),
            version=app.version,
            identity_of=lambda request: request.scope.get(auth.CALLER) if isinstance(request, Request) else operator,
            pace=pace,
        )
        self._sessions = StreamableHTTPSessionManager(
            lowlevel(server),
            security_settings=security(settings.allowed_hosts, settings.allowed_origins),
            max_request_body_size=int(settings.max_body_mb * (1 << 20)),
        )
        self._socket = McpSocket(lowlevel(server))
        self._gate = _Gate(StreamableHTTPASGIApp(self._sessions))
        app.router.routes.append(Route(PATH, endpoint=self._gate, include_in_schema=False))

    @asynccontextmanager
    async def open(self, mcp_socket: Path) -> AsyncIterator[None]:
        """Answer on /mcp and on `mcp_socket`, which is ours alone to bind: we hold the state directory's lock."""
        async with self._sessions.run():
            await self._socket.start(bind_unix(mcp_socket))
            self._gate.is_open = True
            try:
                yield
            finally:
                self._gate.is_open = False
                await self._socket.close()
                with suppress(FileNotFoundError):
                    os.unlink(mcp_socket)


class _Gate:
    """ASGI, in front of the endpoint: tools check their own scopes, but nobody gets in who may not even read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.is_open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope.get(auth.CALLER)
        if not isinstance(caller, Caller) or not caller.may(wire.Scope.READ):
            raise Refused(ProblemCode.FORBIDDEN, "this needs the scope read", hint="job token create --scope read NAME")
        if not self.is_open:
            raise Refused(ProblemCode.NOT_READY, "the broker is starting or stopping", retryable=True)
        # The parser leaves spaces at the end of values, which are none of a value's (RFC 9110, 5.5); the SDK compares.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self._app({**scope, "headers": headers}, receive, send)


def security(hosts: Sequence[str], origins: Sequence[str]) -> TransportSecuritySettings:
    """Said explicitly: left unsaid, the SDK turns its checks off. The same lists as the doorman's."""
    known = [*auth.UNIX_NAMES, *hosts]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*known, *(f"{host}:*" for host in known)],
        allowed_origins=list(origins),
    )


def _owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
