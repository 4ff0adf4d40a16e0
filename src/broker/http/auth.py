"""Who may come in: Host and Origin first, then the public paths, then the caller, then the scope.

Pure ASGI, in front of every route, mounted apps included. A private socket is the identity of its owner:
on it the caller is `operator`. On TCP a bearer token is needed. An application that calls the broker in
the same process may put a `Caller` into the scope under `CALLER`; nothing on a network can.
"""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from fastapi import Request

from broker.http import problems, surface
from broker.service import tokens
from broker.service.context import Broker, Caller
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope

PUBLIC_PATHS = frozenset({"/livez", "/readyz"})
SNAPSHOTS = "/v1/snapshots/"
CALLER = "jobd.caller"
ENTRY = "jobd.entry"  # which listener a request came in by: "unix" or "tcp"; set by the listener
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
UNIX_NAMES = LOOPBACK_NAMES | {"jobd"}

ScopeMap = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[ScopeMap, Receive, Send], Awaitable[None]]


class Doorman:
    """ASGI middleware: nobody reaches a route unseen."""

    def __init__(self, app: App, broker: Broker) -> None:
        self._app = app
        self._broker = broker
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in broker.settings.allowed_hosts}
        self._origins = frozenset(origin.rstrip("/").lower() for origin in broker.settings.allowed_origins)
        self._owner = _owner()

    async def __call__(self, scope: ScopeMap, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here: the connection is closed without an answer
        try:
            if not isinstance(scope.get(CALLER), Caller):
                scope[CALLER] = await self._admit(scope)
            await self._app(scope, _limited(receive, *self._most_bytes(scope)), send)
        except Refused as refused:
            await problems.response(refused)(scope, receive, send)

    async def _admit(self, scope: ScopeMap) -> Caller | None:
        headers = _headers(scope)
        self._check_host(scope, headers.get("host", ""))
        self._check_origin(headers.get("origin"))
        if scope["path"] in PUBLIC_PATHS:
            return None
        if scope.get(ENTRY) == "unix":
            return Caller(actor=self._owner, scopes=frozenset({Scope.OPERATOR}))
        return await self._by_token(headers.get("authorization", ""))

    def _check_host(self, scope: ScopeMap, host: str) -> None:
        name = host.lower()
        if not name.endswith("]"):
            name = name.rsplit(":", 1)[0] if ":" in name else name
        allowed = UNIX_NAMES if scope.get(ENTRY) == "unix" else self._hosts
        if name not in allowed and host.lower() not in allowed:
            raise Refused(
                ProblemCode.FORBIDDEN_HOST,
                "this Host is not served here",
                hint="add it to JOBD_ALLOWED_HOSTS if it is meant",
            )

    def _check_origin(self, origin: str | None) -> None:
        if origin is not None and origin.rstrip("/").lower() not in self._origins:
            raise Refused(
                ProblemCode.FORBIDDEN_ORIGIN,
                "requests of web pages are refused",
                hint="add the origin to JOBD_ALLOWED_ORIGINS if it is meant",
            )

    async def _by_token(self, header: str) -> Caller:
        kind, _, token = header.partition(" ")
        if kind.lower() == "bearer" and token and token.isascii() and len(token) <= 500:
            caller = await tokens.caller_of(self._broker, token.strip())
            if caller is not None:
                return caller
        raise Refused(
            ProblemCode.UNAUTHENTICATED,
            "no valid token" if header else "a token is needed",
            hint="send Authorization: Bearer TOKEN; job token create makes one",
        )

    def _most_bytes(self, scope: ScopeMap) -> tuple[int, str]:
        """How large its body may be, and the setting that says so."""
        settings = self._broker.settings
        if scope["path"].startswith(SNAPSHOTS):
            return settings.snapshot_bytes, "JOBD_SNAPSHOT_MB"
        return int(settings.max_body_mb * (1 << 20)), "JOBD_MAX_BODY_MB"


async def caller(request: Request) -> Caller:
    """The caller of this request, as a dependency. Async, as all of them: a plain function costs a thread."""
    found = request.scope.get(CALLER)
    if not isinstance(found, Caller):
        raise Refused(ProblemCode.UNAUTHENTICATED, "a token is needed")
    return found


async def check_scope(request: Request) -> None:
    """Compare the caller's scopes with what the route itself declares. A dependency of every route."""
    declared = surface.of_route(request.scope.get("route"))
    needed = declared.get("scope") if declared is not None else None
    if needed is None:
        if request.scope["path"] in PUBLIC_PATHS and declared is not None:
            return
        raise Refused(ProblemCode.FORBIDDEN, "this route declares no scope")
    if not (await caller(request)).may(Scope(needed)):
        raise Refused(
            ProblemCode.FORBIDDEN, f"this needs the scope {needed}", hint=f"job token create --scope {needed} NAME"
        )


def _headers(scope: ScopeMap) -> dict[str, str]:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def _limited(receive: Receive, most_bytes: int, setting: str) -> Receive:
    """The body, up to `most_bytes`; more is refused while it comes, whatever the headers say."""
    got = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal got
        message = await receive()
        if message["type"] == "http.request":
            got += len(message.get("body", b""))
            if got > most_bytes:
                raise Refused(
                    ProblemCode.PAYLOAD_TOO_LARGE,
                    f"the body is larger than {most_bytes} bytes",
                    hint=f"{setting} is the limit",
                )
        return message

    return limited


def _owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
