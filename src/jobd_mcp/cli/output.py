"""A job's output, copied to this terminal or pipe: all of it, or as it comes."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.plain import Plain
from jobd_mcp.cli.server_events import ServerEvent, follow
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Schema

STDERR = "stderr"


@dataclass(frozen=True)
class Piece:
    """Some bytes of one stream of one delivery."""

    attempt: int
    stream: str
    data: bytes


class Sink:
    """Where pieces go: stdout to stdout, stderr to stderr, flushed each time. `exact`: not a byte is changed."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._plain = {False: Plain(colours=sys.stdout.isatty()), True: Plain(colours=sys.stderr.isatty())}

    def write(self, piece: Piece) -> None:
        is_error = piece.stream == STDERR
        self._put(is_error, piece.data if self._exact else self._plain[is_error].feed(piece.data).encode())

    def close(self) -> None:
        """What was held back, as the possible beginning of something, is written too."""
        for is_error, plain in self._plain.items():
            self._put(is_error, plain.feed(b"", final=True).encode())

    def _put(self, is_error: bool, data: bytes) -> None:
        target: BinaryIO = (sys.stderr if is_error else sys.stdout).buffer
        if data:
            target.write(data)
            target.flush()


def copy(connection: Connection, arguments: Schema, sink: Sink, notice: Callable[[str], None]) -> None:
    """Copy the output as it comes until the job has ended and its output is whole, or can't become so."""
    attempt: int | None = None
    for event in follow(connection, by_name()["job_log_stream"], arguments):
        if event.kind == "end":
            if event.data.get("log_complete") is False:
                notice("the end of the output has not arrived")
            continue
        piece = _piece(event)
        if attempt is not None and piece.attempt != attempt:
            notice(f"the job starts again: attempt {piece.attempt}")
        attempt = piece.attempt
        sink.write(piece)
    sink.close()


def _piece(event: ServerEvent) -> Piece:
    attempt, stream, encoded = (event.data.get(name) for name in ("attempt", "stream", "base64"))
    if not isinstance(attempt, int) or not isinstance(encoded, str):
        raise Failure(f"the broker sent an event of kind {event.kind} that this version does not know")
    return Piece(attempt, str(stream), base64.b64decode(encoded))
