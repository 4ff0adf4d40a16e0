"""Whatever the broker, or something between us and it, answers: a tool result to act on, never a crash."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from jobd_mcp import results
from jobd_mcp.calls import Answer, Remote, Unreachable
from jobd_mcp.operations import Operation, Request, operations
from support.waiting import eventually

DOCUMENT = {
    "paths": {
        "/v1/jobs": {
            "get": {"operationId": "job_list", "responses": {}, "x-jobd": {"tool": True, "read_only": True}},
            "post": {"operationId": "job_submit", "responses": {}, "x-jobd": {"tool": True}},
        }
    }
}
LIST, SUBMIT = operations(DOCUMENT)
PAGE = b"<html><title>502 Bad Gateway</title><pre>Traceback (most recent call last): secret</pre></html>"


def text_of(operation: Operation, status: int, body: bytes) -> str:
    result = results.result(operation, Answer(status, {}, body))
    assert result.is_error
    assert result.structured_content is None
    return result.content[0].text


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, "no"), (401, "no"), (403, "no"), (404, "no"), (409, "no"), (413, "no"), (422, "no"), (429, "yes"), (500, "no"), (502, "yes"), (503, "yes"), (301, "no")],
)  # fmt: skip
def test_a_page_of_something_else_is_named_by_its_status_alone(status: int, retryable: str) -> None:
    text = text_of(LIST, status, PAGE)
    assert text.startswith(f"http_{status}: ")
    assert f"retryable: {retryable}" in text
    assert "secret" not in text
    assert "Traceback" not in text


@pytest.mark.trial("B62")
def test_a_problem_document_is_told_whole() -> None:
    problem = {
        "code": "invalid_spec", "detail": "two things are wrong", "hint": "look", "retryable": False,
        "errors": [{"field": "cpus", "message": "too many"}, {"field": "name", "message": "too long"}],
    }  # fmt: skip
    assert text_of(SUBMIT, 422, json.dumps(problem).encode()).splitlines() == [
        "invalid_spec: two things are wrong", "field: cpus: too many", "field: name: too long", "hint: look", "retryable: no",
    ]  # fmt: skip


def test_a_list_of_validation_errors_still_names_the_fields() -> None:
    body = {"detail": [{"loc": ["body", "command"], "msg": "is wrong", "input": "secret"}]}
    text = text_of(SUBMIT, 422, json.dumps(body).encode())
    assert "field: body.command: is wrong" in text
    assert "secret" not in text


@pytest.mark.parametrize("body", [b"", b'{"jobs": [', b"[]", b"null", PAGE, b"\xff"])
@pytest.mark.trial("B62")
def test_an_answer_that_is_cut_or_no_object_is_an_error_and_says_whether_to_repeat(body: bytes) -> None:
    assert "does no harm" in text_of(LIST, 200, body)
    assert "look with job_list before you call job_submit again" in text_of(SUBMIT, 200, body)


def test_an_error_of_any_length_is_cut() -> None:
    problem = {"code": "invalid_spec", "detail": "x" * 1_000_000, "hint": "y" * 1_000_000}
    assert len(text_of(SUBMIT, 422, json.dumps(problem).encode())) < 5000


@pytest.mark.trial("B62")
async def test_nobody_there_is_said_without_the_token() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        caller = Remote(url, "secret-token")
        with pytest.raises(Unreachable) as unreachable:
            await caller.request(Request("GET", "/v1/jobs"), None)
        await caller.aclose()
    assert url in str(unreachable.value)
    assert "secret" not in str(unreachable.value)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
async def test_a_broken_connection_is_unreachable(answer: bytes) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        caller = Remote(f"http://127.0.0.1:{listening.getsockname()[1]}", None)
        with pytest.raises(Unreachable):
            await caller.request(Request("GET", "/v1/jobs"), None)
        await caller.aclose()
        await eventually(lambda: not thread.is_alive())


def test_nulls_are_left_out_but_for_those_that_a_job_wrote() -> None:
    body = {
        "id": 1,
        "name": None,
        "result": {"best": None, "all": [None, {"x": None}]},
        "jobs": [{"result": {"a": None}, "b": None}],
    }
    told = results.result(LIST, Answer(200, {}, json.dumps(body).encode())).structured_content
    assert told == {"id": 1, "result": body["result"], "jobs": [{"result": {"a": None}}]}
