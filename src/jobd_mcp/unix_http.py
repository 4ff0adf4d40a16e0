"""One HTTP request over a private unix socket. Standard library only, and little of it: `jobd-mcp` starts in
less time than it takes to import an HTTP client."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from jobd_mcp.operations import Request
from jobd_mcp.schemas import Json

MOST_BYTES = 32 << 20


class BadAnswer(OSError):
    """What answered does not speak HTTP as the broker does."""


def exchange(path: Path, request: Request, timeout_s: float) -> tuple[int, Json]:
    """Status and JSON body. Raises OSError (also BadAnswer, TimeoutError) when no whole answer came in time."""
    deadline = time.monotonic() + timeout_s
    body = request.body or b""
    head = (
        f"{request.method} {request.target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    received = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(head.encode("ascii") + body)
        while len(received) < MOST_BYTES:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(65536)
            if not part:
                return _parsed(bytes(received))
            received += part
    raise BadAnswer(f"{path}: the answer is larger than {MOST_BYTES} bytes")


def _parsed(answer: bytes) -> tuple[int, Json]:
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise BadAnswer("not an HTTP answer")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n"))
    }
    if len(body) != int(headers.get(b"content-length", b"-1")):
        raise BadAnswer("the HTTP answer is cut, or of unknown length")
    try:
        value: Json = json.loads(body) if body else None
    except ValueError:
        raise BadAnswer("the answer is no JSON") from None
    return int(words[1]), value
