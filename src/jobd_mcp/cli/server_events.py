"""Server-sent events, read as they come and resumed after a cut: nothing is lost, nothing comes twice."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.failure import Failure
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_object

SILENCE_S = 30.0  # the broker gives a sign of life more often than that
PATIENCE_S = 60.0  # how long a broker may be away before a follower gives up
_PAUSE_S = 0.2


@dataclass(frozen=True)
class ServerEvent:
    """One event. `id` is where to resume after it."""

    kind: str
    data: Schema
    id: str | None


def follow(connection: Connection, operation: Operation, arguments: Mapping[str, Json]) -> Iterator[ServerEvent]:
    """Events until the stream's own end, over restarts of the broker. Raises Failure if it stays away, or refuses."""
    last_id: str | None = None
    cut_at: float | None = None
    while True:
        try:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
            with connection.open(operation.request(arguments), timeout_s=SILENCE_S, headers=headers) as response:
                for event in _events(response):
                    cut_at = None
                    last_id = event.id or last_id
                    yield event
                    if event.kind == "end":
                        return
        except Failure as failure:
            if failure.code is not None and not failure.retryable:
                raise
            cut_at = cut_at if cut_at is not None else time.monotonic()
            if time.monotonic() - cut_at > PATIENCE_S:
                raise
        time.sleep(_PAUSE_S)


def _events(response: http.client.HTTPResponse) -> Iterator[ServerEvent]:
    """The whole events of one response; one that is cut in the middle is dropped."""
    kind = "message"
    data: list[str] = []
    id_: str | None = None
    for raw in response:
        line = raw.decode("utf-8").rstrip("\r\n")
        if not line:
            if data:
                yield ServerEvent(kind, as_object(json.loads("\n".join(data))), id_)
            kind, data, id_ = "message", [], None
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            id_ = value
