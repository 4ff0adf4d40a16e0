"""A Messages API on loopback whose model plays a script: a real client can be watched without a model, and always the same.

A turn of the script is a list of tool calls, made one after the other; then the model says that it is done, and the next
turn begins when the client has said something new (a person's words, or that a task has ended).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Call = tuple[str, dict[str, Any]]


@dataclass
class ScriptedModel:
    """`turns`: tool calls by name. `requests`: what the client has sent, in order."""

    turns: Sequence[Sequence[Call]]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the client told it last."""
        return self.requests[-1]["messages"] if self.requests else []

    def results(self) -> dict[str, str]:
        """What the model was told of each call, by its number: `0`, `1`, …"""
        found = {}
        for part in parts(self.messages):
            if part.get("type") == "tool_result":
                found[part["tool_use_id"].removeprefix("call-")] = text_of(part.get("content"))
        return found

    def told(self) -> str:
        """Everything else that the model was told."""
        return "\n".join(part["text"] for part in parts(self.messages) if part.get("type") == "text")

    def next(self, request: dict[str, Any]) -> tuple[int, Call] | None:
        """The next call, if its turn has come and the client has such a tool."""
        made = sum(part.get("type") == "tool_use" for part in parts(request["messages"], of="assistant"))
        calls = [call for turn in self.turns for call in turn]
        ends = [sum(len(turn) for turn in self.turns[: n + 1]) for n in range(len(self.turns))]
        if made >= len(calls) or (made in ends and _is_answer_to_a_call(request["messages"])):
            return None
        names = {tool.get("name") for tool in request.get("tools") or ()}
        return (made, calls[made]) if calls[made][0] in names else None


def parts(messages: Sequence[dict[str, Any]], of: str = "user") -> Iterator[dict[str, Any]]:
    for message in messages:
        if message["role"] == of:
            content = message["content"]
            yield from content if isinstance(content, list) else [{"type": "text", "text": content}]


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content)


def _is_answer_to_a_call(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether the last thing that the client said is what came of a call, and nothing new."""
    last = next((message for message in reversed(messages) if message["role"] == "user"), None)
    content = last["content"] if last is not None else ""
    return isinstance(content, list) and content[-1].get("type") == "tool_result"


@contextmanager
def serving(model: ScriptedModel) -> Iterator[ScriptedModel]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            if self.path.split("?")[0] != "/v1/messages":
                self._send(200, "application/json", json.dumps({"input_tokens": 1}))
                return
            model.requests.append(request)
            self._send(200, "text/event-stream", "".join(_events(request.get("model"), model.next(request))))

        def do_GET(self) -> None:
            self._send(404, "application/json", "{}")

        def _send(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Nothing: what was asked is in `requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _events(name: Any, call: tuple[int, Call] | None) -> Iterator[str]:
    """One answer as the API streams it."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": name, "content": [], "usage": usage}
    yield _event("message_start", message={**message, "stop_reason": None, "stop_sequence": None})
    if call is None:
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "done"}
    else:
        number, (tool, arguments) = call
        block = {"type": "tool_use", "id": f"call-{number}", "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    yield _event("content_block_start", index=0, content_block=block)
    yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    why = "end_turn" if call is None else "tool_use"
    yield _event("message_delta", delta={"stop_reason": why, "stop_sequence": None}, usage={"output_tokens": 1})
    yield _event("message_stop")


def _event(kind: str, **members: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n"
