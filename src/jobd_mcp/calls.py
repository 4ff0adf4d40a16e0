"""How a tool call reaches the broker: inside the same process, or over HTTP."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

import anyio
import httpx
from starlette.types import ASGIApp, Message, Scope

from jobd_mcp.operations import Request
from jobd_mcp.schemas import Json

_log = logging.getLogger(__name__)

CALLER = "jobd.caller"
"""Scope key of an authenticated caller. It can't come from the network: servers build scopes from their own keys."""
CONNECT_LIMIT_S = 5.0


class Unreachable(Exception):
    """The broker gave no answer. The message says where it was sought, and holds no secret."""


@dataclass(frozen=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Json:
        """What it says; None where that is no JSON, as a proxy's page is none."""
        try:
            value: Json = json.loads(self.body)
        except ValueError:
            return None
        return value


class Caller(Protocol):
    async def request(self, request: Request, identity: object | None) -> Answer:
        """The broker's answer, whatever its status. Raises Unreachable if there is none.

        `identity` is who stands behind the call, where the transport that it came by has authenticated them.
        Cancelling the call cancels the request.
        """


class InProcess:
    """Calls the broker's own ASGI app: the same routes, validation and errors as over the network."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def request(self, request: Request, identity: object | None) -> Answer:
        body = request.body or b""
        answered = _Collected()
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await answered.complete.wait()
            return {"type": "http.disconnect"}

        # A cancelled tool call cancels this very task, so the handler inside sees it at its next await: nobody
        # goes on waiting for a client that has gone.
        try:
            await self._app(_scope(request, body, identity), receive, answered.send)
        except Exception:
            # As a server does: what the app has answered stands, and the fault is in the log.
            _log.exception("%s %s failed", request.method, request.path)
        return answered.answer()


class Remote:
    """Calls a broker by URL: http(s)://host:port, or unix:///path/broker.sock."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        socket = url.removeprefix("unix://") if url.startswith("unix://") else None
        transport = httpx.AsyncHTTPTransport(uds=socket) if socket else None
        self._client = httpx.AsyncClient(
            base_url="http://localhost" if socket else url,
            transport=transport,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(None, connect=CONNECT_LIMIT_S),  # the caller bounds the whole call
            follow_redirects=False,  # the token goes to this broker and nowhere else
            trust_env=False,
        )

    async def request(self, request: Request, identity: object | None) -> Answer:  # noqa: ARG002 (the token says who)
        headers = {"Content-Type": "application/json"} if request.body is not None else {}
        try:
            answer = await self._client.request(request.method, request.target, content=request.body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            raise Unreachable(f"{self._url} does not answer ({type(error).__name__})") from None
        return Answer(
            answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content
        )

    async def aclose(self) -> None:
        await self._client.aclose()


class _Collected:
    """What the app sends, as one answer."""

    def __init__(self) -> None:
        self.complete = anyio.Event()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                self.complete.set()

    def answer(self) -> Answer:
        if not self.complete.is_set():
            raise Unreachable("the broker broke off its answer")
        return Answer(self._status, self._headers, bytes(self._body))


def _scope(request: Request, body: bytes, identity: object | None) -> Scope:
    path, _, query = request.target.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        # Not None: that is what a unix socket looks like, and whoever listens there may trust its peer.
        "client": ("in-process", 0),
        "server": ("in-process", 0),
    }
    return scope if identity is None else {**scope, CALLER: identity}
