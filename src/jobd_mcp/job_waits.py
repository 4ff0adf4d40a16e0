"""A `job_wait` as a task. What is waited for is kept by the broker, so the answer is there after this server, this
connection and the client have come and gone. A job that failed is a task that was completed: the wait has its answer. To
cancel the task ends the watch and never the job."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, CallToolRequestParams, CallToolResult

from jobd_mcp import results
from jobd_mcp.arguments import BadArguments, understood
from jobd_mcp.calls import Answer, Caller, Unreachable
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_object
from jobd_mcp.tasks import Context, created, knows_tasks
from jobd_mcp.waiting import LIMIT, IdentityOf

WAIT = "job_wait"


class JobWaits:
    """`operations`: those of the broker by name, also the ones that are no tools."""

    def __init__(
        self, operations: Mapping[str, Operation], caller: Caller, identity_of: IdentityOf, poll_ms: int
    ) -> None:
        self._operations, self._caller, self._identity_of = operations, caller, identity_of
        self._poll_ms = poll_ms

    async def begun(self, params: CallToolRequestParams, context: Context, call_next: CallNext) -> HandlerResult | None:  # noqa: ARG002
        """A wait, unless it is over already, wrong, or only a look."""
        if params.name != WAIT or not knows_tasks(context):
            return None
        try:
            meant = understood(self._operations[WAIT], params.arguments or {})
            if meant.get(LIMIT) == 0:
                return None
            what = {name: value for name, value in meant.items() if name != LIMIT}
            answer = await self._asked("watch_create", what, context)
        except (BadArguments, Unreachable):
            return None  # the plain call says what is wrong
        if answer.status >= 300:
            return None
        watch = as_object(answer.json())
        return self._result(watch) if watch.get("state") == "completed" else created(self._task(watch))

    async def look(self, task: str, context: Context) -> Schema:
        return self._task(await self._watch("watch_get", task, context))

    async def answer(self, task: str, responses: Mapping[str, Json], context: Context) -> None:  # noqa: ARG002
        """Ours ask nothing."""
        await self._watch("watch_get", task, context)

    async def cancel(self, task: str, context: Context) -> None:
        await self._watch("watch_cancel", task, context)

    async def _watch(self, name: str, task: str, context: Context) -> Schema:
        try:
            answer = await self._asked(name, {"watch": task}, context)
        except Unreachable as error:
            raise MCPError(INTERNAL_ERROR, f"{error}; ask again in a moment") from None
        said = as_object(answer.json())
        if answer.status >= 300:
            code = INVALID_PARAMS if answer.status < 500 else INTERNAL_ERROR
            raise MCPError(code, f"{said.get('detail')}. {said.get('hint')}")
        return said

    async def _asked(self, name: str, arguments: Mapping[str, Json], context: Context) -> Answer:
        return await self._caller.request(self._operations[name].request(arguments), self._identity_of(context.request))

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
