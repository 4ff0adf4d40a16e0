"""What a pipe remembers, so that a client survives the death of its broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd_mcp.conversation import Conversation
from jobd_mcp.pipe import Lines


def line(**message: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


INITIALIZE = line(id=0, method="initialize", params={"protocolVersion": "2025-06-18"})
INITIALIZED = line(method="notifications/initialized")


def call(id_: object, tool: str) -> bytes:
    return line(id=id_, method="tools/call", params={"name": tool, "arguments": {}})


def greeted() -> Conversation:
    conversation = Conversation()
    conversation.said(INITIALIZE)
    assert conversation.heard(line(id=0, result={"serverInfo": {}}))
    conversation.said(INITIALIZED)
    return conversation


def with_tools_listed(conversation: Conversation) -> Conversation:
    conversation.said(line(id="l", method="tools/list"))
    tools = [
        {"name": "job_wait", "annotations": {"readOnlyHint": True}},
        {"name": "job_cancel", "annotations": {"readOnlyHint": False, "idempotentHint": True}},
        {"name": "job_submit", "annotations": {"readOnlyHint": False}},
    ]
    assert conversation.heard(line(id="l", result={"tools": tools}))
    return conversation


def test_a_new_server_hears_the_greeting_again_and_the_client_does_not() -> None:
    conversation = greeted()
    assert conversation.broken() == []
    replayed, initialized = conversation.opening()
    message = json.loads(replayed)
    assert message["method"] == "initialize"
    assert message["params"] == {"protocolVersion": "2025-06-18"}
    assert message["id"] != 0
    assert initialized == INITIALIZED
    assert not conversation.ready
    assert not conversation.heard(line(id=message["id"], result={}))
    assert conversation.ready
    assert conversation.heard(line(id=0, result={}))


def test_each_replay_has_an_id_of_its_own() -> None:
    conversation = greeted()
    first = json.loads(conversation.opening()[0])["id"]
    conversation.broken()
    second = json.loads(conversation.opening()[0])["id"]
    assert first != second
    assert conversation.heard(line(id=first, result={}))
    assert not conversation.ready


def test_a_greeting_that_got_no_answer_is_sent_as_it_was() -> None:
    conversation = Conversation()
    conversation.said(INITIALIZE)
    assert conversation.broken() == []
    assert conversation.opening_owed
    assert conversation.opening() == [INITIALIZE]
    assert conversation.ready
    assert conversation.heard(line(id=0, result={}))
    assert not conversation.opening_owed


def test_a_client_that_never_greets_needs_no_replay() -> None:
    conversation = Conversation()
    conversation.said(line(id=1, method="server/discover"))
    conversation.heard(line(id=1, result={}))
    assert conversation.opening() == []
    assert conversation.ready


def test_what_was_in_flight_is_answered_once_each() -> None:
    conversation = greeted()
    for message in (call(1, "job_wait"), call("two", "job_submit"), line(id=3, method="tools/list")):
        conversation.said(message)
    conversation.heard(line(id=1, result={}))
    answers = [json.loads(answer) for answer in conversation.broken()]
    assert [answer["id"] for answer in answers] == ["two", 3]
    assert conversation.broken() == []
    assert conversation.in_flight == 0


def test_a_lost_tool_call_is_a_tool_error_and_any_other_request_a_protocol_error() -> None:
    conversation = greeted()
    conversation.said(call(1, "job_wait"))
    conversation.said(line(id=2, method="ping"))
    tool, ping = (json.loads(answer) for answer in conversation.broken())
    assert tool["result"]["isError"] is True
    assert "retryable: yes" in tool["result"]["content"][0]["text"]
    assert "error" not in tool
    assert ping["error"]["data"]["retryable"] is True


@pytest.mark.parametrize(
    ("tool", "told"),
    [("job_wait", "does no harm"), ("job_cancel", "does no harm"), ("job_submit", "look with job_list before")],
)
def test_the_error_says_whether_a_repeat_is_safe(tool: str, told: str) -> None:
    conversation = with_tools_listed(greeted())
    conversation.said(call(1, tool))
    [answer] = conversation.broken()
    assert told in json.loads(answer)["result"]["content"][0]["text"]


def test_without_a_list_the_error_leaves_it_to_the_reader() -> None:
    conversation = greeted()
    conversation.said(call(1, "job_submit"))
    [answer] = conversation.broken()
    assert "if it changes something, look with job_list first" in json.loads(answer)["result"]["content"][0]["text"]


def test_the_newer_era_is_told_what_kind_of_result_it_is() -> None:
    conversation = Conversation()
    conversation.said(call(1, "job_wait"))
    assert json.loads(conversation.broken()[0])["result"]["resultType"] == "complete"
    conversation = greeted()
    conversation.said(call(1, "job_wait"))
    assert "resultType" not in json.loads(conversation.broken()[0])["result"]


def test_a_cancelled_request_is_answered_by_nobody() -> None:
    conversation = greeted()
    conversation.said(call(7, "job_wait"))
    conversation.said(line(method="notifications/cancelled", params={"requestId": 7}))
    assert conversation.broken() == []


def test_the_number_one_and_the_text_one_are_two_ids() -> None:
    conversation = greeted()
    conversation.said(call(1, "job_wait"))
    conversation.said(call("1", "job_wait"))
    conversation.heard(line(id="1", result={}))
    assert [json.loads(answer)["id"] for answer in conversation.broken()] == [1]


@pytest.mark.parametrize(
    "noise", [b"\n", b"[]\n", b"nonsense\n", b"[" * 100_000 + b"\n", b"\xff\xfe\n", b'{"id":null}\n']
)
def test_what_is_no_message_is_passed_on_and_remembered_as_nothing(noise: bytes) -> None:
    conversation = greeted()
    conversation.said(noise)
    assert conversation.heard(noise)
    assert conversation.broken() == []
    assert conversation.refused(noise, "why") is None


def test_only_requests_are_refused() -> None:
    conversation = Conversation()
    refused = conversation.refused(call(4, "job_list"), "no broker")
    assert refused is not None
    text = json.loads(refused)["result"]["content"][0]["text"]
    assert "no broker" in text
    assert "Nothing was done" in text
    assert conversation.refused(INITIALIZED, "no broker") is None


@given(st.lists(st.binary(min_size=1).filter(lambda part: b"\n" not in part and part.strip())), st.data())
def test_lines_come_out_whole_however_the_bytes_come_in(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(part + b"\n" for part in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = Lines()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == [part + b"\n" for part in lines]


def test_half_a_line_of_a_dead_server_never_comes_out() -> None:
    lines = Lines()
    assert lines.feed(b'{"a":1}\n{"b":') == [b'{"a":1}\n']
    lines.forget()
    assert lines.feed(b'{"c":3}\n') == [b'{"c":3}\n']
