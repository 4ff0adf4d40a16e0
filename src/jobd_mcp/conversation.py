"""What must be remembered of an MCP conversation so that it survives the death of the server behind it. Pure.

In the older protocol era a client says `initialize` once; a new server must hear it again before anything else,
and the client must not hear the answer twice. Whatever was in flight is answered with an error that tells whether
a repeat is safe, because nobody else will ever answer it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from jobd_mcp.schemas import Json, Schema, as_list, as_object

REPLAY_ID = "jobd-replay-"
UNAVAILABLE = -32000  # JSON-RPC: implementation-defined server error


@dataclass(frozen=True)
class _Request:
    id: Json
    method: str
    tool: str | None
    line: bytes


class Conversation:
    """Told every whole line that passes, in both directions; a line is one JSON-RPC message."""

    def __init__(self) -> None:
        self._in_flight: dict[str, _Request] = {}
        self._initialize: _Request | None = None
        self._initialize_answered = False
        self._initialized: bytes | None = None
        self._replays = 0
        self._awaited_replay: str | None = None
        self._harmless: dict[str, bool] = {}  # tool → whether a repeat does no harm, once a list has passed

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def ready(self) -> bool:
        """Whether the server has heard all that it must before the client's next message."""
        return self._awaited_replay is None

    @property
    def opening_owed(self) -> bool:
        """The client waits for the answer to its `initialize`, and only a new server can give it."""
        return self._initialize is not None and not self._initialize_answered

    def said(self, line: bytes) -> None:
        """The client's line is on its way to the server."""
        request = parsed_request(line)
        if request is not None:
            if request.method == "initialize":
                self._initialize, self._initialize_answered, self._initialized = request, False, None
            self._in_flight[_key(request.id)] = request
            return
        message = _message(line)
        if message.get("method") == "notifications/initialized":
            self._initialized = line
        elif message.get("method") == "notifications/cancelled":
            self._in_flight.pop(_key(as_object(message.get("params")).get("requestId")), None)

    def heard(self, line: bytes) -> bool:
        """The server's line has come; False if the client must not see it."""
        message = _message(line)
        if "method" in message or "id" not in message:
            return True
        if self._awaited_replay is not None and message["id"] == self._awaited_replay:
            self._awaited_replay = None
            return False
        request = self._in_flight.pop(_key(message["id"]), None)
        if request is not None and request.method == "initialize":
            self._initialize_answered = "result" in message
            if not self._initialize_answered:
                self._initialize = None
        elif request is not None and request.method == "tools/list":
            self._learn(message)
        return True

    def broken(self) -> list[bytes]:
        """The server is gone: the answers that the client gets instead. A lost `initialize` is asked again."""
        self._awaited_replay = None
        lost = [request for request in self._in_flight.values() if request.method != "initialize"]
        self._in_flight.clear()
        return [self._lost(request) for request in lost]

    def opening(self) -> list[bytes]:
        """What a new server must be told first. Until it has answered, `ready` is false."""
        if self._initialize is None:
            return []
        if not self._initialize_answered:
            self._in_flight[_key(self._initialize.id)] = self._initialize
            return [self._initialize.line]
        self._replays += 1
        self._awaited_replay = f"{REPLAY_ID}{self._replays}"
        again = {**_message(self._initialize.line), "id": self._awaited_replay}
        return [_line(again), *([self._initialized] if self._initialized else [])]

    def refused(self, line: bytes, why: str) -> bytes | None:
        """The answer to a request that reached no server; None if the line is no request."""
        request = parsed_request(line)
        if request is None:
            return None
        return self._error(request, "unreachable", why, "Nothing was done. Call again in a moment.")

    def _lost(self, request: _Request) -> bytes:
        harmless = self._harmless.get(request.tool or "")
        if harmless or request.tool is None:
            hint = "Call again: a repeat does no harm."
        elif harmless is None:
            hint = f"If {request.tool} only reads, call it again; if it changes something, look with job_list first."
        else:
            hint = f"It may have been done: look with job_list before you call {request.tool} again."
        what = request.tool or request.method
        return self._error(request, "broker_gone", f"the broker went away before it answered {what}; jobs go on.", hint)

    def _error(self, request: _Request, code: str, detail: str, hint: str) -> bytes:
        if request.tool is None:
            data: Schema = {"code": code, "hint": hint, "retryable": True}
            return _line(
                {"jsonrpc": "2.0", "id": request.id, "error": {"code": UNAVAILABLE, "message": detail, "data": data}}
            )
        text = f"{code}: {detail}\nhint: {hint}\nretryable: yes"
        result: Schema = {"content": [{"type": "text", "text": text}], "isError": True}
        if self._initialize is None:
            result["resultType"] = "complete"  # the newer era says what kind of result it is
        return _line({"jsonrpc": "2.0", "id": request.id, "result": result})

    def _learn(self, answer: Schema) -> None:
        for tool in map(as_object, as_list(as_object(answer.get("result")).get("tools"))):
            hints = as_object(tool.get("annotations"))
            self._harmless[str(tool.get("name"))] = (
                hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
            )


def parsed_request(line: bytes) -> _Request | None:
    """The request on this line; None for a notification, a response, or what is no message at all."""
    message = _message(line)
    method = message.get("method")
    if not isinstance(method, str) or message.get("id") is None:
        return None
    tool = as_object(message.get("params")).get("name") if method == "tools/call" else None
    return _Request(message["id"], method, tool if isinstance(tool, str) else None, line)


def _message(line: bytes) -> Schema:
    try:
        return as_object(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def _key(id_: Json) -> str:
    return json.dumps(id_)


def _line(message: Schema) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
