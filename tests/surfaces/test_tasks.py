"""Waits as tasks: an id at once, how it stands, the end; for a client that knows tasks, and the bounded wait for all others."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from jobd_mcp import local
from support import tasks_client
from support.tasks_client import IDENTIFIER, KnowsTasks
from support.waiting import eventually

JOB = {"command": "true"}


async def submitted(client, **fields: object) -> int:
    return (await client.call_tool("job_submit", {**JOB, **fields})).structured_content["id"]


@pytest.mark.guarantee("G42")
@pytest.mark.trial("B58")
async def test_a_wait_is_a_task_at_once_and_its_end_is_fetched(modern) -> None:
    knows = KnowsTasks()
    async with modern(knows) as client:
        job = await submitted(client)
        began = time.monotonic()
        await client.call_tool("job_wait", {"job": job, "timeout_s": 600})
        assert time.monotonic() - began < 10

        [task] = knows.given
        assert (task.status, task.status_message) == ("working", f"job {job} queued")
        assert re.fullmatch(rf"job{job}\.[\w-]{{40,}}", task.task_id)
        assert task.ttl_ms == 7 * 86_400_000
        assert (await tasks_client.get(client, task.task_id)).result is None

        await client.call_tool("job_cancel", {"job": [job]})
        done = await tasks_client.get(client, task.task_id)
        plain = await client.call_tool("job_wait", {"job": job, "timeout_s": 0})

    assert (done.status, done.status_message) == ("completed", f"job {job} cancelled")
    assert done.result is not None
    assert done.result["structuredContent"] == plain.structured_content
    assert done.result["structuredContent"]["jobs"][0]["state"] == "cancelled"
    assert done.result.get("isError", False) is False


async def test_several_jobs_and_arrays_are_told_by_their_states(modern) -> None:
    knows = KnowsTasks()
    async with modern(knows) as client:
        jobs = [await submitted(client) for _ in range(3)]
        array = (await client.call_tool("job_submit", {**JOB, "count": 4})).structured_content["array"]
        await client.call_tool("job_wait", {"job": jobs, "mode": "any"})
        await client.call_tool("job_wait", {"array": array})
        some, whole = knows.given
        await client.call_tool("job_cancel", {"job": [jobs[1], array]})
        first, all_of_it = [await tasks_client.get(client, task.task_id) for task in (some, whole)]

    assert some.task_id.startswith(f"job{jobs[0]}+2.")
    assert some.status_message == "3 jobs: 3 queued"
    assert whole.task_id.startswith(f"array{array}.")
    assert first.status == "completed"
    assert (all_of_it.status, all_of_it.status_message) == ("working", f"array {array}: 1 cancelled, 3 queued")


@pytest.mark.guarantee("G42")
async def test_a_task_that_is_cancelled_ends_the_watch_and_never_the_job(modern) -> None:
    knows = KnowsTasks()
    async with modern(knows) as client:
        job = await submitted(client)
        await client.call_tool("job_wait", {"job": job})
        [task] = knows.given
        for _ in range(2):  # a repeat changes nothing
            await tasks_client.cancel(client, task.task_id)
        after = await tasks_client.get(client, task.task_id)
        assert (await client.call_tool("job_get", {"job": job})).structured_content["state"] == "queued"

    assert (after.status, after.result) == ("cancelled", None)
    assert "the jobs go on" in (after.status_message or "")


async def test_what_is_over_or_wrong_or_only_a_look_is_answered_directly(modern) -> None:
    knows = KnowsTasks()
    async with modern(knows) as client:
        job, ended = await submitted(client), await submitted(client)
        await client.call_tool("job_cancel", {"job": [ended]})
        over = await client.call_tool("job_wait", {"job": ended})
        look = await client.call_tool("job_wait", {"job": job, "timeout_s": 0})
        unknown = await client.call_tool("job_wait", {"job": 999_999})
        wrong = await client.call_tool("job_wait", {"jobs": 1})

    assert over.structured_content["done"] is True
    assert look.structured_content["pending"] == [job]
    assert (unknown.is_error, "unknown_job" in unknown.content[0].text) == (True, True)
    assert (wrong.is_error, "did you mean job" in wrong.content[0].text.lower()) == (True, True)
    assert knows.given == []


async def test_who_does_not_know_tasks_gets_the_bounded_wait(connect) -> None:
    async with connect() as client:
        job = await submitted(client)
        waited = await client.call_tool("job_wait", {"job": job, "timeout_s": 0.2})
        assert waited.structured_content["pending"] == [job]
        with pytest.raises(MCPError) as caught:
            await tasks_client.get(client, f"job{job}.x")
        assert caught.value.error.code in (-32021, -32601)  # not declared; and there is no such method in the older era


@pytest.mark.guarantee("G42")
async def test_nobody_else_can_ask_for_a_task(holder) -> None:
    knows = KnowsTasks()
    async with (
        holder("one", ["submit"], knows) as mine,
        holder("another", ["submit"], KnowsTasks()) as other,
        holder("owner", ["operator"], KnowsTasks()) as owner,
    ):
        await mine.call_tool("job_wait", {"job": await submitted(mine)})
        [task] = knows.given
        for named in (task.task_id, f"{task.task_id[:-1]}-", "job1.x"):
            with pytest.raises(MCPError) as caught:
                await tasks_client.get(other, named)
            assert caught.value.error.code == -32602
        assert (await tasks_client.get(owner, task.task_id)).status == "working"


async def test_a_header_that_names_another_task_is_refused(broker) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {IDENTIFIER: {}}},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "job1.x", "_meta": meta}}
    headers = {
        "Authorization": f"Bearer {broker.token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
    }
    async with httpx2.AsyncClient(trust_env=False) as client:
        codes = []
        for name in ("job1.x", "job2.x"):
            answer = await client.post(f"{broker.url}/mcp", json=body, headers={**headers, "Mcp-Name": name})
            codes.append(json.loads(answer.text.removeprefix("event: message\r\ndata: "))["error"]["code"])

    assert codes == [-32602, -32020]


@pytest.mark.guarantee("G42")
@pytest.mark.trial("B56")
async def test_a_task_outlives_the_broker_that_gave_it(state_dir: Path) -> None:
    environ = {"JOBD_STATE_DIR": str(state_dir), "PATH": os.environ["PATH"], "HOME": str(state_dir)}
    script = StdioServerParameters(command=str(Path(sys.executable).with_name("jobd-mcp")), args=[], env=environ)
    knows = KnowsTasks()
    try:
        async with Client(script, mode="auto", extensions=[knows]) as client:
            flag = state_dir / "go"
            job = await submitted(client, command=f"echo so far; until [ -e {flag} ]; do sleep 0.05; done; exit 3")
            await client.call_tool("job_wait", {"job": job})
            [task] = knows.given

            async def says(*words: str) -> bool:
                try:
                    found = await tasks_client.get(client, task.task_id)
                except MCPError as error:  # what was in flight when the broker died is answered so
                    if not error.error.data["retryable"]:
                        raise
                    return False
                assert found.status == "working"
                return all(word in (found.status_message or "") for word in words)

            await eventually(lambda: says("running for", "last line: so far"), within_s=40)
            os.kill(local.find(local.here(environ)).pid, signal.SIGKILL)
            await eventually(lambda: says("running for", "last line: so far"), within_s=40)
            flag.touch()

            async def over() -> bool:
                found = await tasks_client.get(client, task.task_id)
                if found.status == "working":
                    return False
                [end] = found.result["structuredContent"]["jobs"]
                assert (end["state"], end["exit_code"], end["log_tail"]) == ("failed", 3, "so far")
                return True

            await eventually(over, within_s=40)
    finally:
        local.down(environ, "stop")
