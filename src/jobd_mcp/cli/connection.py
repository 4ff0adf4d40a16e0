"""How a command talks to the broker: plain HTTP over its private socket, or over TCP with a token.

Standard library only, and nothing of the settings models: a command starts in a tenth of a second.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from jobd_mcp import local
from jobd_mcp.cli.failure import Failure, refused
from jobd_mcp.operations import Operation, Request
from jobd_mcp.schemas import Json

TIMEOUT_S = 60.0
NO_BROKER = "no broker is running; start it with job up"


@dataclass(frozen=True)
class Answer:
    """What the broker said, with the body's bytes unchanged."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Json:
        try:
            value: Json = json.loads(self.body) if self.body else None
        except ValueError:
            raise Failure("what answers there is not a jobd broker: no JSON came back") from None
        return value


@dataclass(frozen=True)
class Connection:
    """Where the broker is. `on_this_machine`: it listens on a unix socket here."""

    url: str
    token: str | None = None

    @property
    def on_this_machine(self) -> bool:
        return self.url.startswith("unix://")

    def call(self, operation: Operation, arguments: Mapping[str, Json], timeout_s: float = TIMEOUT_S) -> Answer:
        """The operation's answer. Raises Failure for a refusal, and where nobody answers."""
        with self.open(operation.request(arguments), timeout_s=timeout_s) as response:
            return Answer(response.status, dict(response.headers.items()), response.read())

    @contextmanager
    def open(
        self, request: Request, *, timeout_s: float = TIMEOUT_S, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The successful response, to be read as it comes. `timeout_s` bounds each silence."""
        connection = self._connection(timeout_s)
        try:
            connection.request(request.method, request.target, request.body, self._headers(request, headers or {}))
            response = connection.getresponse()
            if response.status >= 400:
                failed = Answer(response.status, {}, response.read())
                raise refused(failed.json(), failed.status)
            yield response
        except (TimeoutError, http.client.HTTPException) as error:
            raise Failure(f"the broker at {self.url} did not answer: {str(error) or type(error).__name__}") from None
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if self.on_this_machine:
                raise Failure(NO_BROKER) from None
            raise Failure(f"nobody answers at {self.url}: {error.strerror or error}") from None
        except OSError as error:
            raise Failure(f"the broker at {self.url} can't be reached: {error.strerror or error}") from None
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.on_this_machine:
            return _UnixConnection(self.url.removeprefix("unix://"), timeout_s)
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(
                f"JOBD_URL is {self.url!r}", hint="use unix:///path/broker.sock, http://host:port or https://host"
            )
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)

    def _headers(self, request: Request, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {"Accept": "*/*", "Connection": "close"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        headers |= extra
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return headers


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connect(environ: Mapping[str, str], *, start: bool = False) -> Connection:
    """The broker that the settings name, else this user's own; `start` brings that one up if it isn't running.

    Raises Failure if it is absent, or if a stranger answers in its place.
    """
    url = local.setting(environ, "url")
    if url is not None:
        return Connection(url, local.setting(environ, "token"))
    at = local.here(environ)
    if start:
        from jobd_mcp.cli import starting

        starting.start(environ)
    elif local.find(at) is None:
        raise Failure(NO_BROKER)
    return Connection(f"unix://{Path(at.broker_socket)}")
