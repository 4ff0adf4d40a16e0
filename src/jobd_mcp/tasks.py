"""`io.modelcontextprotocol/tasks`: a call that the client may put aside and fetch later.

A client that knows tasks gets an id at once, asks how it stands, and fetches the result; all others get the plain call.
Here is the protocol's part; `job_waits` says what is a task here.

Source: SEP-2663, "Tasks", of the Model Context Protocol. The SDK (2.3) has the hooks and no tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolRequestParams, RequestParams

from jobd_mcp.schemas import Json, Schema

IDENTIFIER = "io.modelcontextprotocol/tasks"
VERSIONS = frozenset({"2026-07-28"})
HEADER_MISMATCH = -32020
_NAME_HEADER = "mcp-name"

Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """Which task is meant."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers to questions that a task has asked, by their keys."""

    input_responses: dict[str, Any] | None = None


class Tasks(Protocol):
    """What may become a task, and how tasks stand. A task is an object of the protocol: `taskId`, `status`, …"""

    async def begun(self, params: CallToolRequestParams, context: Context, call_next: CallNext) -> HandlerResult | None:
        """A new task for this call, kept before it is told; None: the call is none and is answered as always."""

    async def look(self, task: str, context: Context) -> Schema:
        """How it stands now. Raises MCPError for one that there is not."""

    async def answer(self, task: str, responses: Mapping[str, Json], context: Context) -> None:
        """Answers to its questions. Raises likewise."""

    async def cancel(self, task: str, context: Context) -> None:
        """Nobody waits for it any more. Raises likewise."""


class TasksExtension(Extension):
    """The methods of the extension, and the calls that it takes before their tools do."""

    identifier = IDENTIFIER

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        found = await self._tasks.begun(params, ctx, call_next)
        return found if found is not None else await call_next(ctx)

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        return {"resultType": "complete", **await self._tasks.look(_named(ctx, params), ctx)}

    async def _update(self, ctx: Context, params: UpdateParams) -> HandlerResult:
        await self._tasks.answer(_named(ctx, params), params.input_responses or {}, ctx)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        await self._tasks.cancel(_named(ctx, params), ctx)
        return {"resultType": "complete"}


def created(task: Schema) -> HandlerResult:
    """The answer to a call that has become this task."""
    return {"resultType": "task", **task}


def knows_tasks(ctx: Context) -> bool:
    """Whether the client of this call has declared them, in an era that has them."""
    declared = ctx.session.client_capabilities
    extensions = declared.extensions if declared is not None else None
    return ctx.protocol_version in VERSIONS and IDENTIFIER in (extensions or {})


def _named(ctx: Context, params: TaskParams) -> str:
    """The task that is meant. Raises MCPError: the client did not declare tasks, or its header names another one."""
    require_client_extension(ctx, IDENTIFIER)
    headers = getattr(ctx.request, "headers", None)  # a local pipe has none
    if headers is not None and headers.get(_NAME_HEADER) != params.task_id:
        raise MCPError(HEADER_MISMATCH, "the header Mcp-Name does not name the task of the request")
    return params.task_id
