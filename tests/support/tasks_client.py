"""An MCP client that knows tasks, with the official SDK's hooks: a task comes back as it is, and a test asks for it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult, Request, RequestParams, Result, TextContent

IDENTIFIER = "io.modelcontextprotocol/tasks"


class TaskParams(RequestParams):
    task_id: str


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param: ClassVar[str] = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams
    name_param: ClassVar[str] = "taskId"


class Task(Result):
    task_id: str
    status: str
    status_message: str | None = None
    poll_interval_ms: int | None = None
    ttl_ms: int | None = None
    result: dict[str, Any] | None = None


class CreatedTask(Task):
    result_type: Literal["task"] = "task"


class Acknowledged(Result):
    pass


class KnowsTasks(ClientExtension):
    """Keeps the tasks that it was given."""

    identifier = IDENTIFIER

    def __init__(self) -> None:
        self.given: list[CreatedTask] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._keep)]

    async def _keep(self, task: CreatedTask, context: ClaimContext) -> CallToolResult:
        self.given.append(task)
        said = TextContent(type="text", text=f"task {task.task_id}")
        return CallToolResult(content=[said], structured_content={"done": False, "jobs": []})


async def get(client: Client, task: str) -> Task:
    return await client.session.send_request(GetTask(params=TaskParams(task_id=task)), Task)


async def cancel(client: Client, task: str) -> None:
    await client.session.send_request(CancelTask(params=TaskParams(task_id=task)), Acknowledged)
