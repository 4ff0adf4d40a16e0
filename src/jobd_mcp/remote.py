"""`jobd-mcp` for a broker elsewhere: the MCP server runs in this process and calls the broker over HTTP.

It offers exactly what that broker offers, whatever its version: the tools come from its own document.
"""

from __future__ import annotations

import json
import logging
import sys

import anyio
from mcp.server.stdio import stdio_server

from jobd_mcp.calls import Remote, Unreachable
from jobd_mcp.local import LocalError
from jobd_mcp.operations import Request
from jobd_mcp.schemas import Json, Schema, as_object
from jobd_mcp.server import build, lowlevel

DOCUMENT_LIMIT_S = 15.0


def serve(url: str, token: str | None) -> int:
    """Until the client closes stdin. Raises LocalError if that broker can't be used."""
    if not url.startswith(("http://", "https://")):
        raise LocalError(f"JOBD_URL must begin with unix://, http:// or https://; it is {url!r}")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    return anyio.run(_serve, url, token)


async def _serve(url: str, token: str | None) -> int:
    caller = Remote(url.rstrip("/"), token)
    document = await _document(caller, url)
    version = str(as_object(document.get("info")).get("version") or "")
    server = lowlevel(build(document, caller, version=version))
    async with stdio_server() as (from_client, to_client):
        await server.run(from_client, to_client, server.create_initialization_options())
    await caller.aclose()
    return 0


async def _document(caller: Remote, url: str) -> Schema:
    try:
        with anyio.fail_after(DOCUMENT_LIMIT_S):
            answer = await caller.request(Request("GET", "/openapi.json"), None)
    except (Unreachable, TimeoutError) as error:
        raise LocalError(str(error) or f"{url} did not answer within {DOCUMENT_LIMIT_S:g} s") from None
    if answer.status in (401, 403):
        raise LocalError(f"{url} refused our token (status {answer.status}); set JOBD_TOKEN to one of its tokens")
    try:
        value: Json = json.loads(answer.body)
    except ValueError:
        value = None
    document = as_object(value)
    if answer.status != 200 or "paths" not in document:
        raise LocalError(f"{url} is no jobd broker (status {answer.status} for /openapi.json)")
    return document
