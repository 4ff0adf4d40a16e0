"""Tools for agents, derived from the OpenAPI document: exact schemas, and answers in the broker's own words."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.resources import files
from typing import Any

import anyio
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations

from jobd_mcp import confirming, prompts, resources, results, waiting
from jobd_mcp.arguments import BadArguments, understood
from jobd_mcp.calls import Answer, Caller, Unreachable
from jobd_mcp.job_waits import JobWaits
from jobd_mcp.operations import Operation, operations, tools
from jobd_mcp.schemas import Json, Schema
from jobd_mcp.tasks import TasksExtension

NAME = "jobd"
ANSWER_LIMIT_S = 30.0
"""How long the broker may take beyond a wait that was asked for."""
TOOLS_FRESH_MS = 300_000


def build(
    document: Schema,
    caller: Caller,
    *,
    version: str,
    identity_of: waiting.IdentityOf = lambda _request: None,
    pace: waiting.Pace = waiting.USUAL,
) -> MCPServer[dict[str, Any]]:
    """A server with one tool for each operation of the document that is one. It speaks both protocol eras."""
    desk = _Desk(tools(document), caller, identity_of, pace)
    every = {operation.name: operation for operation in operations(document)}
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    server: MCPServer[dict[str, Any]] = MCPServer(
        NAME,
        title="jobd: long work on machines you own",
        version=version,
        instructions=guide(),
        tools=[desk.tool(operation) for operation in desk.operations.values()],
        cache_hints={"tools/list": CacheHint(ttl_ms=TOOLS_FRESH_MS, scope="public")},
        subscriptions=False,
        extensions=[TasksExtension(JobWaits(every, caller, identity_of, pace.poll_ms))],
        log_level="WARNING",
    )
    reader = resources.Reader(every, caller, identity_of)
    resources.offer(server, reader)
    resources.complete(lowlevel(server), reader)
    prompts.offer(server)
    # The SDK installs a handler of its own on the root logger; how this program logs is not its business.
    root.handlers[:] = handlers
    root.setLevel(level)
    return server


def lowlevel(server: MCPServer[dict[str, Any]]) -> Server[Any]:
    """The server as transports of our own need it. The SDK has no public name for it; a test holds on to this one."""
    return server._lowlevel_server


def guide() -> str:
    """What the model is told about the whole: `guide.md`."""
    return files("jobd_mcp").joinpath("guide.md").read_text(encoding="utf-8").strip()


class _AsGiven(FuncMetadata):
    """Hands arguments on as the client sent them: `arguments.understood` reads them, with the exact schema."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        return {"arguments": arguments_to_validate}


class _Desk:
    """Takes tool calls, passes them to the broker and words the answers."""

    def __init__(
        self, operations: list[Operation], caller: Caller, identity_of: waiting.IdentityOf, pace: waiting.Pace
    ) -> None:
        self.operations = {operation.name: operation for operation in operations}
        self._caller = caller
        self._identity_of = identity_of
        self._pace = pace

    def tool(self, operation: Operation) -> Tool:
        async def call(
            arguments: Mapping[str, Json], context: Context[dict[str, Any], Any]
        ) -> CallToolResult | InputRequiredResult:
            return await self._call(operation, arguments, context)

        return Tool(
            fn=call,
            name=operation.name,
            title=operation.title,
            description=operation.description,
            parameters=operation.input_schema,
            fn_metadata=_AsGiven(arg_model=ArgModelBase, output_schema=operation.output_schema),
            is_async=True,
            context_kwarg="context",
            annotations=ToolAnnotations(
                title=operation.title,
                read_only_hint=operation.read_only,
                destructive_hint=operation.destructive,
                idempotent_hint=operation.idempotent,
                open_world_hint=False,
            ),
        )

    async def _call(
        self, operation: Operation, arguments: Mapping[str, Json], context: Context[dict[str, Any], Any]
    ) -> CallToolResult | InputRequiredResult:
        try:
            meant = understood(operation, arguments)
        except BadArguments as error:
            return results.bad_arguments(operation, error).result()
        answer = await self._answered(operation, meant, context)
        if isinstance(answer, results.Refusal):
            return answer.result()
        what = confirming.wanted(operation, answer)
        if what is not None:
            word = await confirming.asked(context, what)
            if isinstance(word, InputRequiredResult):
                return word
            if word == "no":
                return results.declined(operation, what).result()
            if word == "yes":
                return await self._call(operation, {**meant, confirming.FORCE: True}, context)
        return results.result(operation, answer)

    async def _answered(
        self, operation: Operation, meant: Mapping[str, Json], context: Context[dict[str, Any], Any]
    ) -> Answer | results.Refusal:
        """The broker's answer, with progress while it waits on purpose; or why there is none."""
        identity = self._identity_of(context.request_context.request)

        async def ask(name: str, given: Mapping[str, Json]) -> Answer:
            return await self._caller.request(self.operations[name].request(given), identity)

        wait_s = waiting.longest_wait_s(operation, meant)
        limit_s = wait_s + ANSWER_LIMIT_S
        try:
            with anyio.fail_after(limit_s):
                async with AsyncExitStack() as stack:
                    if wait_s and "progress_token" in (context.request_context.meta or {}):
                        telling = waiting.telling(context.report_progress, ask, meant, wait_s, self._pace)
                        await stack.enter_async_context(telling)
                    return await ask(operation.name, meant)
        except TimeoutError:
            return results.too_slow(operation, limit_s)
        except Unreachable as error:
            return results.unreachable(operation, str(error))
