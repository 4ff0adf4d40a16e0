"""/mcp: who gets in, sessions, and what becomes of a client that drops out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from jobd_mcp.local import here
from jobd_mcp.operations import Request
from jobd_mcp.unix_http import exchange
from support.processes import processes_of
from support.requirements import need_node, need_tool

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip


def call(tool: str, **arguments: object) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def token(broker, name: str, *scopes: str) -> str:
    wish = Request("POST", "/v1/tokens", body=json.dumps({"name": name, "scopes": scopes}).encode())
    status, answer = exchange(here(broker.environ).broker_socket, wish, 10)
    assert status == 201
    return answer["token"]


def post(broker, message: dict, credential: str | None, **headers: str) -> httpx.Response:
    bearer = {"Authorization": f"Bearer {credential}"} if credential else {}
    return httpx.post(
        f"{broker.url}/mcp", json=message, headers={**HEADERS, **bearer, **headers}, timeout=20, trust_env=False
    )


def answered(response: httpx.Response) -> dict:
    """The message in an answer, be it JSON or a stream of events."""
    if "event-stream" not in response.headers["content-type"]:
        return response.json()
    [data] = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return json.loads(data)


def session_of(broker, credential: str) -> dict[str, str]:
    opened = post(broker, INITIALIZE, credential)
    assert opened.status_code == 200, opened.text
    return {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-06-18"}


@pytest.mark.parametrize(
    ("credential", "headers", "status", "code"),
    [
        (None, {}, 401, "unauthenticated"),
        ("wrong", {}, 401, "unauthenticated"),
        ("good", {"Host": "evil.example"}, 421, "forbidden_host"),
        ("good", {"Origin": "http://evil.example"}, 403, "forbidden_origin"),
        (None, {"Host": "evil.example"}, 421, "forbidden_host"),
    ],
)
@pytest.mark.guarantee("G19")
def test_the_endpoint_is_guarded_like_every_route(broker, credential, headers, status, code) -> None:
    refused = post(broker, INITIALIZE, broker.token if credential == "good" else credential, **headers)
    assert (refused.status_code, refused.json()["code"]) == (status, code)


def test_a_token_that_may_not_read_does_not_get_in(broker) -> None:
    refused = post(broker, INITIALIZE, token(broker, "only-worker", "worker"))
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_each_call_is_checked_against_the_scopes_of_its_own_token(broker) -> None:
    reader, operator = token(broker, "reader", "read"), broker.token
    headers = session_of(broker, reader)
    listed = answered(post(broker, call("job_list"), reader, **headers))
    assert listed["result"]["isError"] is False
    refused = answered(post(broker, call("job_submit", command="true"), reader, **headers))
    assert refused["result"]["isError"] is True
    assert "needs the scope submit" in refused["result"]["content"][0]["text"]
    allowed = answered(post(broker, call("job_submit", command="true"), operator, **session_of(broker, operator)))
    assert allowed["result"]["isError"] is False


@pytest.mark.trial("B56")
def test_an_unknown_session_is_told_to_begin_again(broker) -> None:
    gone = post(
        broker, call("job_list"), broker.token, **{"Mcp-Session-Id": "0" * 32, "MCP-Protocol-Version": "2025-06-18"}
    )
    assert gone.status_code == 404


def test_a_body_that_is_too_large_is_refused(broker) -> None:
    refused = post(broker, call("job_submit", command="x" * (3 << 20)), broker.token)
    assert refused.status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 10_000, b'{"jsonrpc":"2.0"}'])
@pytest.mark.guarantee("G22")
def test_garbage_is_a_client_error_and_never_a_500(broker, body: bytes) -> None:
    headers = {**HEADERS, "Authorization": f"Bearer {broker.token}"}
    refused = httpx.post(f"{broker.url}/mcp", content=body, headers=headers, timeout=20, trust_env=False)
    assert 400 <= refused.status_code < 500


@pytest.mark.trial("B61")
def test_a_stream_that_breaks_in_the_middle_loses_no_job_and_frees_the_wait(broker) -> None:
    headers = session_of(broker, broker.token)
    submit = call("job_submit", command="true", idempotency_key="broken-stream")
    job, repeated = [
        answered(post(broker, submit, broker.token, **headers))["result"]["structuredContent"] for _ in range(2)
    ]
    assert repeated == {**job, "repeated": True}
    bearer = {"Authorization": f"Bearer {broker.token}"}
    with (
        httpx.Client(trust_env=False, timeout=0.5) as client,
        pytest.raises(httpx.ReadTimeout),
        client.stream(
            "POST", f"{broker.url}/mcp", json=call("job_wait", job=job["id"]), headers={**HEADERS, **bearer, **headers}
        ) as stream,
    ):
        stream.read()
    again = answered(post(broker, call("job_wait", job=job["id"], timeout_s=0.1), broker.token, **headers))
    assert again["result"]["structuredContent"]["pending"] == [job["id"]]


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    """The inspector's command line, on a Node that can run it."""
    node, package = need_node(), need_tool("@modelcontextprotocol/inspector")
    name = json.loads((package / "package.json").read_text())["bin"]
    path = name if isinstance(name, str) else name["mcp-inspector"]
    return [node, str(package / path), "--cli"]


def inspect(inspector: list[str], target: list[str], *arguments: str, environ: dict[str, str]) -> dict:
    command = (
        [*inspector, *target[:1], *arguments]
        if target[0].startswith("http")
        else [*inspector, *arguments, "--", *target]
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_inspector_finds_nothing_to_complain_about(broker, inspector, way: str, era: str, tmp_path: Path) -> None:
    environ = {**broker.environ, "PATH": f"{Path(inspector[0]).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    options = ["--protocol-era", era]
    if way == "http":
        target = [f"{broker.url}/mcp"]
        options += ["--header", f"Authorization: Bearer {broker.token}"]
    else:
        target = [str(Path(sys.executable).with_name("jobd-mcp"))]
        options += ["-e", f"JOBD_STATE_DIR={broker.state}"]  # it passes on nothing that it is not told to
    listed = inspect(inspector, target, *options, "--method", "tools/list", "--strict", environ=environ)
    assert "job_submit" in {tool["name"] for tool in listed["tools"]}
    called = inspect(
        inspector, target, *options, "--method", "tools/call", "--tool-name", "job_submit", "--tool-arg", "command=true",
        environ=environ,
    )  # fmt: skip
    assert called["structuredContent"]["state"] == "queued"
    assert not processes_of(tmp_path)
