"""`io.modelcontextprotocol/tasks`: a `job_wait` that the client may put aside and fetch later.

A client that knows tasks gets an id at once, asks how the wait stands, and hears the end; all others get the bounded
wait. What is waited for is kept by the broker, so the answer is there after this server, this connection and the client
have come and gone. A job that failed is a task that was completed: the wait has its answer. To cancel a task ends the
watch and never the job.

Source: SEP-2663, "Tasks", of the Model Context Protocol. The SDK (2.3) has the hooks and no tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams

from jobd_mcp import results
from jobd_mcp.arguments import BadArguments, understood
from jobd_mcp.calls import Answer, Caller, Unreachable
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_object
from jobd_mcp.waiting import LIMIT, IdentityOf

IDENTIFIER = "io.modelcontextprotocol/tasks"
VERSIONS = frozenset({"2026-07-28"})
WAIT = "job_wait"
HEADER_MISMATCH = -32020
_NAME_HEADER = "mcp-name"


class TaskParams(RequestParams):
    """Which task is meant."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers to questions of a task. Ours ask none."""

    input_responses: dict[str, Any] | None = None


class JobTasks(Extension):
    """`operations`: those of the broker by name, also the ones that are no tools."""

    identifier = IDENTIFIER

    def __init__(
        self, operations: Mapping[str, Operation], caller: Caller, identity_of: IdentityOf, poll_ms: int
    ) -> None:
        self._operations, self._caller, self._identity_of = operations, caller, identity_of
        self._poll_ms = poll_ms

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self.get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self.update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self.cancel, VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """A wait of a client that knows tasks becomes one, unless it is over already, wrong, or only a look."""
        if params.name != WAIT or not _knows_tasks(ctx):
            return await call_next(ctx)
        operation = self._operations[WAIT]
        try:
            meant = understood(operation, params.arguments or {})
            if meant.get(LIMIT) == 0:
                return await call_next(ctx)
            what = {name: value for name, value in meant.items() if name != LIMIT}
            answer = await self._asked(ctx, "watch_create", what)
        except (BadArguments, Unreachable):
            return await call_next(ctx)  # its answer says what is wrong
        if answer.status >= 300:
            return await call_next(ctx)
        watch = as_object(json.loads(answer.body))
        if watch.get("state") == "completed":
            return self._result(watch)
        return {"resultType": "task", **self._task(watch)}

    async def get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        return {"resultType": "complete", **self._task(await self._watch(ctx, "watch_get", params))}

    async def update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        await self._watch(ctx, "watch_get", params)
        return {"resultType": "complete"}

    async def cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        await self._watch(ctx, "watch_cancel", params)
        return {"resultType": "complete"}

    async def _watch(self, ctx: ServerRequestContext[Any, Any], name: str, params: TaskParams) -> Schema:
        """The broker's word on a task. Raises MCPError: another name in the header, no such task, no broker."""
        require_client_extension(ctx, self.identifier)
        headers = getattr(ctx.request, "headers", None)  # a local pipe has none
        if headers is not None and headers.get(_NAME_HEADER, params.task_id) != params.task_id:
            raise MCPError(HEADER_MISMATCH, "the header Mcp-Name names another task than the request")
        try:
            answer = await self._asked(ctx, name, {"watch": params.task_id})
        except Unreachable as error:
            raise MCPError(INTERNAL_ERROR, f"{error}; ask again in a moment") from None
        said = as_object(json.loads(answer.body or b"{}"))
        if answer.status >= 300:
            unknown = answer.status < 500
            raise MCPError(INVALID_PARAMS if unknown else INTERNAL_ERROR, f"{said.get('detail')}. {said.get('hint')}")
        return said

    async def _asked(self, ctx: ServerRequestContext[Any, Any], name: str, arguments: Mapping[str, Json]) -> Answer:
        return await self._caller.request(self._operations[name].request(arguments), self._identity_of(ctx.request))

    def _task(self, watch: Schema) -> Schema:
        kept_s = watch["kept_s"]
        assert isinstance(kept_s, int | float)
        task: Schema = {
            "taskId": watch["watch"],
            "status": watch["state"],
            "statusMessage": watch["message"],
            "createdAt": watch["created_at"],
            "lastUpdatedAt": watch["updated_at"],
            "ttlMs": int(kept_s * 1000),
            "pollIntervalMs": self._poll_ms,
        }
        if watch["state"] == "completed":
            task["result"] = self._result(watch).model_dump(mode="json", by_alias=True, exclude_none=True)
        return task

    def _result(self, watch: Schema) -> CallToolResult:
        """What the bounded wait would have answered."""
        return results.result(self._operations[WAIT], Answer(200, {}, json.dumps(watch["waited"]).encode()))


def _knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    declared = ctx.session.client_capabilities
    extensions = declared.extensions if declared is not None else None
    return ctx.protocol_version in VERSIONS and IDENTIFIER in (extensions or {})
