"""HTTP/1.1 to one broker, over its private socket or TCP: what the client's calls travel on.

Each request in flight has a connection of its own, kept for the next one: a poll that is parked for half a minute, and
a megabyte of output, delay nobody. A worker asks several times for each of its jobs, so a request must cost little:
the parser is the broker's own, in C, and there is one buffer between it and the socket.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import httptools

CONNECT_S = 5.0
MOST_KEPT = 16
"""Connections that wait for their next request."""


class Answer(NamedTuple):
    """What the broker answered: its HTTP status and body."""

    status: int
    body: bytes


class Endpoint(NamedTuple):
    """Where a broker listens. `socket`: the path of its private socket, instead of host and port."""

    host: str
    port: int
    socket: str | None
    tls: bool
    authority: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Of unix:///path or http(s)://host:port. Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls("", 0, unquote(parts.path), tls=False, authority="jobd", prefix="")
        if parts.scheme in ("http", "https") and parts.hostname:
            tls = parts.scheme == "https"
            port = parts.port or (443 if tls else 80)
            return cls(parts.hostname, port, None, tls, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"))
        raise ValueError(f"{url!r} is no broker URL: unix:///path/broker.sock or http(s)://host:port")


class Broken(Exception):
    """No answer: not reachable, closed in the middle, too late, or no HTTP."""


class Asks(Protocol):
    """One request; its answer. `Line` is the one over HTTP."""

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, answer_s: float, /
    ) -> Answer: ...

    async def aclose(self) -> None: ...


class Line:
    """`ask()` as often as needed, also at the same time; `aclose()` in the end."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._always = _lines({"Host": endpoint.authority, **headers})
        self._tls = _certificates() if endpoint.tls else None
        self._kept: list[_Connection] = []
        self._closed = False

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, answer_s: float
    ) -> Answer:
        """One request; its answer, of whatever status, within `answer_s`. Raises Broken. Nothing is sent twice."""
        head = f"{method} {self._endpoint.prefix}{target} HTTP/1.1\r\n".encode() + self._always + _lines(headers)
        if body is not None:
            head += b"Content-Length: %d\r\n" % len(body)
        connection = self._free() or await self._connect()
        try:
            async with asyncio.timeout(answer_s):
                answer = await connection.exchange(head + b"\r\n", body)
        except TimeoutError:
            raise Broken(f"no answer within {answer_s:g} s") from None
        finally:
            self._keep(connection)
        return answer

    async def aclose(self) -> None:
        self._closed = True
        for connection in self._kept:
            connection.close()
        self._kept.clear()
        await asyncio.sleep(0)  # the loop lets go of the sockets

    def _free(self) -> _Connection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.reusable:
                return connection
        return None

    def _keep(self, connection: _Connection) -> None:
        if connection.reusable and not self._closed and len(self._kept) < MOST_KEPT:
            self._kept.append(connection)
        else:
            connection.close()

    async def _connect(self) -> _Connection:
        loop, where = asyncio.get_running_loop(), self._endpoint
        try:
            async with asyncio.timeout(CONNECT_S):
                if where.socket is not None:
                    _, connection = await loop.create_unix_connection(_Connection, where.socket)
                else:
                    _, connection = await loop.create_connection(_Connection, where.host, where.port, ssl=self._tls)
        except TimeoutError:
            raise Broken(f"no connection within {CONNECT_S:g} s") from None
        except OSError as error:
            raise Broken(error.strerror or str(error) or type(error).__name__) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one request at a time. The on_… methods are the parser's."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answer: asyncio.Future[Answer] | None = None
        self._sent = True  # the whole request
        self._room = asyncio.Event()
        self._room.set()
        self.reusable = False

    async def exchange(self, head: bytes, body: bytes | None) -> Answer:
        assert self._transport is not None, "a connection is handed out when it is made"
        self.reusable = False
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._parser, self._body = httptools.HttpResponseParser(self), []
        self._sent = body is None or len(body) <= _SLICE_BYTES
        if self._sent:
            self._transport.write(head + (body or b""))
        else:
            await self._write_in_slices(head, body or b"")
        return await answer

    async def _write_in_slices(self, head: bytes, body: bytes) -> None:
        """What the socket does not take at once is copied, again and again: so no more is given than it takes."""
        assert self._transport is not None, "a connection is handed out when it is made"
        self._transport.write(head)
        rest = memoryview(body)
        for at in range(0, len(rest), _SLICE_BYTES):
            await self._room.wait()
            if self._answer is None or self._answer.done():  # refused without a look at the body, or closed
                return
            self._transport.write(rest[at : at + _SLICE_BYTES])
        self._sent = True

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._room.set()
        self._fail(str(exc) if exc else "the connection was closed before the answer was complete")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer is None or self._answer.done() or status < 200:  # nobody asked, or only "go on"
            return
        self.reusable = self._parser.should_keep_alive() and self._sent
        self._answer.set_result(Answer(status, b"".join(self._body)))

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(why))


_SLICE_BYTES = 1 << 17


def _lines(headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"{name} holds a line break")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


def _certificates() -> ssl.SSLContext:
    """Those that the rest of the Python world trusts. Reading them takes 0.1 s: once, and only where TLS is spoken."""
    import httpx

    return httpx.create_ssl_context()
