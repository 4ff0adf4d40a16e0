"""Milliseconds that a tool call takes over the same question by plain HTTP: on the private socket, and at /mcp.

    python benchmarks/tool_call.py [--calls 200] [--runs 3]

`job_get` of one job, one call after the other. Each way is compared with plain HTTP through the same client: lines of
JSON with the raw one, /mcp (a session, answers as events) with httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import httpx
from figures import Table, percentile
from private import Private
from raw_http import Connection
from stdio import INITIALIZE, INITIALIZED

from broker import places

CALL = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "job_get", "arguments": {"job": 1}}}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def timed_ms(calls: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    took_ms = []
    for _ in range(calls):
        began = time.perf_counter()
        await call()
        took_ms.append((time.perf_counter() - began) * 1e3)
    return took_ms


def show(table: Table, row: str, plain_ms: list[float], tool_ms: list[float]) -> None:
    plain, tool = percentile(plain_ms, 0.5), percentile(tool_ms, 0.5)
    table.add(row, plain_p50_ms=plain, tool_p50_ms=tool, more_ms=tool - plain, tool_p99_ms=percentile(tool_ms, 0.99))


async def by_socket(own: Private, calls: int, table: Table) -> None:
    reader, writer = await asyncio.open_unix_connection(str(places.sockets(own.state, {})[1]), limit=4 << 20)

    async def said(message: object, *, answered: bool = True) -> None:
        writer.write(json.dumps(message).encode() + b"\n")
        if answered:
            answer = json.loads(await reader.readline())
            assert not answer["result"].get("isError"), answer

    await said(INITIALIZE)
    await said(INITIALIZED, answered=False)
    async with Connection(own.socket) as connection:
        plain_ms = await timed_ms(calls, lambda: connection.call("GET", "/v1/jobs/1"))
    show(table, "private socket", plain_ms, await timed_ms(calls, lambda: said(CALL)))
    writer.close()


async def by_http(own: Private, calls: int, table: Table) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(own.socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://jobd", headers=ACCEPT, timeout=30) as client:

        async def plain() -> None:
            (await client.get("/v1/jobs/1")).raise_for_status()

        async def said(message: object) -> httpx.Response:
            return (await client.post("/mcp", json=message)).raise_for_status()

        opened = await said(INITIALIZE)
        client.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        client.headers["MCP-Protocol-Version"] = "2025-06-18"
        await said(INITIALIZED)
        assert '"isError":true' not in (await said(CALL)).text
        show(table, "/mcp", await timed_ms(calls, plain), await timed_ms(calls, lambda: said(CALL)))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("tool call: job_get through MCP and by plain HTTP")
    for _ in range(arguments.runs):
        async with Private() as own:
            async with Connection(own.socket) as connection:
                await connection.call("POST", "/v1/jobs", {"argv": ["/bin/true"]})
            await by_socket(own, arguments.calls, table)
            await by_http(own, arguments.calls, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
