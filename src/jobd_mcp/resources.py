"""What can be attached to a conversation by its address: `job://42`, `job://42/log`, `worker://NAME`; with completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.types import Annotations, CompleteRequestParams, CompleteResult, Completion

from jobd_mcp.calls import Answer, Caller, Unreachable
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_list, as_object, without_nulls
from jobd_mcp.waiting import IdentityOf

JOB, LOG, WORKER = "job://{job}", "job://{job}/log", "worker://{worker}"
LOG_LINES = 400
MOST_COMPLETIONS = 100


@dataclass(frozen=True)
class Reader:
    """Asks the broker as whoever asks us."""

    operations: Mapping[str, Operation]
    caller: Caller
    identity_of: IdentityOf

    async def answer(self, name: str, arguments: Mapping[str, Json], request: object | None) -> Answer:
        """What the broker says. Raises ResourceNotFoundError, or ResourceError with the broker's words."""
        try:
            answer = await self.caller.request(self.operations[name].request(arguments), self.identity_of(request))
        except Unreachable as error:
            raise ResourceError(f"{error}; try again in a moment") from None
        if answer.status < 300:
            return answer
        problem = as_object(answer.json())
        words = f"{problem.get('code', f'http_{answer.status}')}: {problem.get('detail', 'refused')}"
        raise (ResourceNotFoundError if answer.status == 404 else ResourceError)(words)

    async def object(self, name: str, arguments: Mapping[str, Json], request: object | None) -> Schema:
        return as_object(without_nulls((await self.answer(name, arguments, request)).json()))


def offer(server: MCPServer[Any], reader: Reader) -> None:
    """Add the templates to a server."""

    @server.resource(JOB, title="A job", description="Everything about one job.", mime_type="application/json")
    async def job(job: str, context: Context[Any, Any]) -> str:
        return _json(await reader.object("job_get", {"job": _id(job), "detail": "full"}, _request(context)))

    @server.resource(
        LOG,
        title="A job's output",
        description=f"Its last {LOG_LINES} lines, as data.",
        mime_type="text/plain",
        annotations=Annotations(audience=["user", "assistant"], priority=0.5),
    )
    async def log(job: str, context: Context[Any, Any]) -> str:
        answer = await reader.answer("job_logs", {"job": _id(job), "tail": LOG_LINES}, _request(context))
        return answer.body.decode("utf-8", "replace")

    @server.resource(WORKER, title="A worker", description="One machine, as it is now.", mime_type="application/json")
    async def worker(worker: str, context: Context[Any, Any]) -> str:
        found = (await reader.object("worker_list", {}, _request(context))).get("workers")
        named = [one for one in map(as_object, as_list(found)) if one.get("name") == worker]
        if not named:
            raise ResourceNotFoundError(f"unknown_worker: there is no worker {worker}")
        return _json(named[0])


def complete(server: Server[Any], reader: Reader) -> None:
    """Answer `completion/complete` for the arguments of templates and prompts, by their names: jobs and workers."""

    async def handler(context: ServerRequestContext[Any, Any], params: CompleteRequestParams) -> CompleteResult:
        known = await _known(reader, params.argument.name, context.request)
        found = [value for value in known if value.startswith(params.argument.value)]
        return CompleteResult(
            completion=Completion(
                values=found[:MOST_COMPLETIONS], total=len(found), has_more=len(found) > MOST_COMPLETIONS
            )
        )

    server.add_request_handler("completion/complete", CompleteRequestParams, handler)


async def _known(reader: Reader, argument: str, request: object | None) -> list[str]:
    """The newest jobs, or all workers."""
    try:
        if argument == "job":
            found = await reader.object("job_list", {"limit": MOST_COMPLETIONS}, request)
            return [str(as_object(one).get("id")) for one in as_list(found.get("jobs"))]
        if argument == "worker":
            found = await reader.object("worker_list", {}, request)
            return sorted(str(as_object(one).get("name")) for one in as_list(found.get("workers")))
    except ResourceError:
        pass  # nothing is known now
    return []


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ResourceNotFoundError(f"a job is named by its number, and {text!r} is none")
    return int(text)


def _request(context: Context[Any, Any]) -> object | None:
    return context.request_context.request


def _json(value: Schema) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
