"""A proxy on loopback that adds a token to each request: for programs that test MCP servers and have no tokens.

It changes nothing else. Host and Origin go through as they came, so the server's own checks are what is tested.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_CREDENTIAL = re.compile(rb"\r\nauthorization:", re.IGNORECASE)


@contextmanager
def bearer_proxy(listen: int, port: int, token: str) -> Iterator[None]:
    """Requests to 127.0.0.1:`listen` go to 127.0.0.1:`port`, with the token if they bring no credential."""
    listening: Future[None] = Future()
    over: Future[asyncio.Event] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        over.set_result(stop)
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await _relay(reader, writer, port, token)
            writer.close()
            connections.discard(task)

        async with await asyncio.start_server(connected, "127.0.0.1", listen) as server:
            listening.set_result(None)
            await stop.wait()
            server.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="bearer proxy")
    thread.start()
    try:
        listening.result(timeout=20)
        yield
    finally:
        loop.call_soon_threadsafe(over.result(timeout=20).set)
        thread.join(timeout=20)
        loop.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, token: str) -> None:
    """One connection of the client is one of ours; answers pass through byte for byte."""
    behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
    answers = asyncio.create_task(_answers(behind_reader, writer))
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            assert not _CHUNKED.search(head), "requests of unknown length are not relayed"
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            if not _CREDENTIAL.search(head):
                line, _, rest = head.partition(b"\r\n")
                head = line + b"\r\nAuthorization: Bearer " + token.encode() + b"\r\n" + rest
            behind_writer.write(head + body)
            await behind_writer.drain()
    finally:
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        behind_writer.close()


async def _answers(behind: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await behind.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
