"""A build of the same stack with the tools that the official suite asks for: our extension for tasks and our gate of
`/mcp`, over tools that answer as the suite describes them. Questions to the client are the SDK's own.

Run as a program it serves on the port that it is given: `python conformance_server.py PORT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import uvicorn
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context as ToolContext
from mcp.server.mcpserver import MCPServer, require_client_extension
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    GetPromptResult,
    InputRequiredResult,
    ListRootsRequest,
    PromptMessage,
    SamplingMessage,
    TextContent,
)
from starlette.applications import Starlette
from starlette.routing import Route

from jobd_mcp.schemas import Schema
from jobd_mcp.serve import security
from jobd_mcp.server import lowlevel
from jobd_mcp.tasks import IDENTIFIER, Context, TasksExtension, created, knows_tasks

Work = Callable[["Run", dict[str, Any]], Awaitable[CallToolResult]]


def text(said: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=said)], is_error=is_error)


def question(message: str, name: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def message(said: str, most: int) -> CreateMessageRequest:
    content = TextContent(type="text", text=said)
    params = CreateMessageRequestParams(messages=[SamplingMessage(role="user", content=content)], max_tokens=most)
    return CreateMessageRequest(params=params)


def now() -> str:
    return datetime.now(UTC).isoformat()


# ---- tasks


@dataclass
class Run:
    """One call that became a task."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    status: str = "working"
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    asks: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    more: Schema = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None

    def becomes(self, status: str, **more: Any) -> None:
        self.status, self.more, self.updated_at = status, more, now()

    async def ask(self, *questions: ElicitRequest) -> dict[str, Any]:
        self.asks = {
            f"q-{secrets.token_hex(4)}": one.model_dump(mode="json", by_alias=True, exclude_none=True)
            for one in questions
        }
        self.becomes("input_required")
        while self.asks:
            self.answered.clear()
            await self.answered.wait()
        self.becomes("working")
        return self.answers

    def shown(self) -> Schema:
        task: Schema = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created_at,
            "lastUpdatedAt": self.updated_at,
            "ttlMs": 3_600_000,
            "pollIntervalMs": 500,
            **self.more,
        }
        return task | {"inputRequests": self.asks} if self.status == "input_required" else task


async def slow_compute(_run: Run, given: dict[str, Any]) -> CallToolResult:
    await asyncio.sleep(given.get("seconds", 1))
    return text(f"computed {given.get('label', '')}")


async def failing_job(_run: Run, _given: dict[str, Any]) -> CallToolResult:
    await asyncio.sleep(0.3)
    return text("it failed", is_error=True)


async def protocol_error_job(_run: Run, _given: dict[str, Any]) -> CallToolResult:
    raise MCPError(INTERNAL_ERROR, "it broke")


async def confirm_delete(run: Run, _given: dict[str, Any]) -> CallToolResult:
    return text(f"deleted: {await run.ask(question('Sure?', 'confirm', 'boolean'))}")


async def multi_input(run: Run, _given: dict[str, Any]) -> CallToolResult:
    return text(f"got {await run.ask(question('One?', 'one'), question('Two?', 'two'))}")


async def greet_later(_run: Run, given: dict[str, Any]) -> CallToolResult:
    return text(f"Hello, {given['user_name']}!")


WORK: Mapping[str, Work] = {
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
    "multi_input": multi_input,
    "test_tool_with_task": greet_later,
}
ONLY_AS_TASKS = {"failing_job", "test_tool_with_task"}


class Runs:
    """Tasks in memory: these tools are no jobs."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    async def begun(self, params: CallToolRequestParams, context: Context, call_next: CallNext) -> HandlerResult | None:
        if params.name not in WORK:
            return None
        if not knows_tasks(context):
            if params.name in ONLY_AS_TASKS:
                require_client_extension(context, IDENTIFIER)
            return None
        given = dict(params.arguments or {})
        if params.name == "test_tool_with_task":
            name = _content(params.input_responses, "user_name")
            if name is None:
                return InputRequiredResult(input_requests={"user_name": question("Your name?", "name")})
            given["user_name"] = name["name"]
        run = Run()
        self._runs[run.id] = run
        run.work = asyncio.create_task(self._done(run, WORK[params.name], given))
        return created(run.shown())

    async def _done(self, run: Run, work: Work, given: dict[str, Any]) -> None:
        try:
            result = await work(run, given)
            run.becomes("completed", result=result.model_dump(mode="json", by_alias=True, exclude_none=True))
        except asyncio.CancelledError:
            run.becomes("cancelled")
        except MCPError as error:
            run.becomes("failed", error={"code": error.error.code, "message": error.error.message})

    async def look(self, task: str, context: Context) -> Schema:
        return self._run(task).shown()

    async def answer(self, task: str, responses: Mapping[str, Any], context: Context) -> None:
        run = self._run(task)
        for key in run.asks.keys() & responses.keys():
            del run.asks[key]
            run.answers[key] = responses[key]
        run.updated_at = now()
        run.answered.set()

    async def cancel(self, task: str, context: Context) -> None:
        work = self._run(task).work
        if work is not None and not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    def _run(self, task: str) -> Run:
        try:
            return self._runs[task]
        except KeyError:
            raise MCPError(INVALID_PARAMS, f"there is no task {task}") from None


def _content(responses: Any, key: str) -> dict[str, Any] | None:
    """What the client has filled in, if it has."""
    found = (responses or {}).get(key)
    content = getattr(found, "content", None)
    return content if isinstance(content, dict) else None


# ---- the server


server: MCPServer[Any] = MCPServer("fixtures", version="1", extensions=[TasksExtension(Runs())], log_level="WARNING")


@server.tool(structured_output=False)
def greet(name: str) -> str:
    return f"Hello, {name}!"


@server.tool(name="slow_compute", structured_output=False)
async def slow(seconds: float = 1, label: str = "") -> str:
    await asyncio.sleep(seconds)
    return f"computed {label}"


def _plain() -> str:
    return "done without a task"


for name in WORK.keys() - {"slow_compute"}:
    server.add_tool(_plain, name=name, structured_output=False)


@server.tool(name="test_input_required_result_elicitation", structured_output=False)
async def elicitation(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    given = _content(context.input_responses, "user_name")
    if given is None:
        return InputRequiredResult(input_requests={"user_name": question("What is your name?", "name")})
    return text(f"Hello, {given['name']}!")


@server.tool(name="test_input_required_result_sampling", structured_output=False)
async def sampling(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    found = (context.input_responses or {}).get("capital_question")
    if found is None:
        asked = message("What is the capital of France?", 100)
        return InputRequiredResult(input_requests={"capital_question": asked})
    return text(f"the client says: {found}")


@server.tool(name="test_input_required_result_list_roots", structured_output=False)
async def list_roots(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    found = (context.input_responses or {}).get("client_roots")
    if found is None:
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return text(f"the client has {found}")


@server.tool(name="test_input_required_result_request_state", structured_output=False)
async def request_state(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    if context.request_state != "asked" or _content(context.input_responses, "confirm") is None:
        asked = question("Please confirm", "ok", "boolean")
        return InputRequiredResult(input_requests={"confirm": asked}, request_state="asked")
    return text("state-ok")


@server.tool(name="test_input_required_result_multiple_inputs", structured_output=False)
async def multiple_inputs(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    asked = {
        "user_name": question("What is your name?", "name"),
        "greeting": message("Generate a greeting", 50),
        "client_roots": ListRootsRequest(),
    }
    given = context.input_responses or {}
    if not asked.keys() <= given.keys() or context.request_state != "all":
        return InputRequiredResult(input_requests=asked, request_state="all")
    return text(f"got {sorted(given)}")


@server.tool(name="test_input_required_result_multi_round", structured_output=False)
async def multi_round(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    if context.request_state == "second" and (given := _content(context.input_responses, "step2")) is not None:
        return text(f"in {given['color']}")
    if context.request_state == "first" and _content(context.input_responses, "step1") is not None:
        asked = question("Step 2: What is your favorite color?", "color")
        return InputRequiredResult(input_requests={"step2": asked}, request_state="second")
    asked = question("Step 1: What is your name?", "name")
    return InputRequiredResult(input_requests={"step1": asked}, request_state="first")


@server.tool(name="test_input_required_result_tampered_state", structured_output=False)
async def tampered_state(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    if context.request_state is None:
        asked = question("Please confirm", "ok", "boolean")
        return InputRequiredResult(input_requests={"confirm": asked}, request_state="sealed")
    return text("state-ok")


@server.tool(name="test_input_required_result_capabilities", structured_output=False)
async def capabilities(context: ToolContext[Any, Any]) -> CallToolResult | InputRequiredResult:
    declared = context.client_capabilities
    asks: dict[str, Any] = {}
    if declared is not None and declared.sampling is not None:
        asks["words"] = message("Say something", 50)
    if declared is not None and declared.elicitation is not None:
        asks["name"] = question("What is your name?", "name")
    if not asks or asks.keys() <= (context.input_responses or {}).keys():
        return text("nothing to ask")
    return InputRequiredResult(input_requests=asks)


@server.prompt(name="test_input_required_result_prompt")
async def prompt(context: ToolContext[Any, Any]) -> GetPromptResult | InputRequiredResult:
    given = _content(context.input_responses, "user_context")
    if given is None:
        asked = question("What context should the prompt use?", "context")
        return InputRequiredResult(input_requests={"user_context": asked})
    said = TextContent(type="text", text=f"In the context of {given['context']}")
    return GetPromptResult(messages=[PromptMessage(role="user", content=said)])


def main(port: int) -> None:
    sessions = StreamableHTTPSessionManager(lowlevel(server), security_settings=security((), ()))

    @contextlib.asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        async with sessions.run():
            yield

    app = Starlette(routes=[Route("/mcp", endpoint=StreamableHTTPASGIApp(sessions))], lifespan=life)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
