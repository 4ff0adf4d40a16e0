"""MCP over a private unix socket, framed as on stdio: one JSON-RPC message a line, one session a connection.

`jobd-mcp` is a byte pipe to it. Who can open the socket is its owner; the file's mode says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from contextlib import suppress
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

LONGEST_LINE = 8 << 20
_EDGE = 4096
_CHUNK = 65536
# Only where nothing can be nested: at the very beginning, or before the very last brace.
_ID_FIRST = re.compile(rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*,')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.)*")\s*\}\s*\Z')

_log = logging.getLogger(__name__)


class McpSocket:
    """Serves any number of connections with one server; a client that does not read holds up only itself."""

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        self._listener = await asyncio.start_unix_server(self._connected, sock=listening, limit=_CHUNK)

    async def close(self) -> None:
        """Take no more connections and end those there are; their requests are cancelled, their jobs are not."""
        if self._listener is not None:
            self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            outgoing = _Outgoing(writer)
            incoming = _Incoming(reader, outgoing)
            async with stdio_server(incoming, outgoing) as (received, sent):  # type: ignore[arg-type]  # duck-typed
                await self._server.run(received, sent, self._server.create_initialization_options())
        except Exception:
            # Most often the client went away in the middle of an answer. Nobody is there to be told.
            _log.debug("an MCP connection ended badly", exc_info=True)
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()


class _Outgoing:
    """The writing half, as the SDK's stdio transport expects a text file."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode())

    async def flush(self) -> None:
        await self._writer.drain()


class _Incoming:
    """The reading half: whole lines. One that is too long is answered with an error and skipped."""

    def __init__(self, reader: asyncio.StreamReader, outgoing: _Outgoing) -> None:
        self._reader = reader
        self._outgoing = outgoing
        self._buffer = bytearray()

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> str:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LONGEST_LINE:
                await self._skip()
                searched = 0
                continue
            await self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.decode("utf-8", "replace")

    async def _more(self) -> None:
        data = await self._reader.read(_CHUNK)
        if not data:
            raise StopAsyncIteration
        self._buffer += data

    async def _skip(self) -> None:
        """Read on to the end of the line, keeping only its edges: one of them tells which request it was."""
        head = bytes(self._buffer[:_EDGE])
        while (end := self._buffer.find(b"\n")) < 0:
            del self._buffer[:-_EDGE]
            await self._more()
        tail = bytes(self._buffer[max(0, end - _EDGE) : end])
        del self._buffer[: end + 1]
        found = _ID_FIRST.search(head) or _ID_LAST.search(tail)
        message = f"the message is longer than {LONGEST_LINE} bytes; send less at once"
        error = {"code": -32600, "message": message, "data": {"code": "payload_too_large", "retryable": False}}
        id_ = json.loads(found[1]) if found else None
        await self._outgoing.write(json.dumps({"jsonrpc": "2.0", "id": id_, "error": error}) + "\n")
        await self._outgoing.flush()
