"""The process that `searching` starts for one grep: `main` reads a request from stdin and prints the view to stdout."""

from __future__ import annotations

import pickle
import re
import resource
import sys
import time
from dataclasses import dataclass

from broker.logs import reading
from broker.logs.index import Stream

LIMIT_S = 5.0
LONGEST_PATTERN = 1000
STUCK_S = 2.0  # more than LIMIT_S: one single line took that long


class BadPattern(Exception):
    """The pattern is no regular expression, or it takes for ever on this output. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """What `reading.grep` is asked for. An answer after LIMIT_S covers what was searched by then."""

    pattern: str
    context: int = 0
    cursor: int = 0
    most: int = 100
    ignore_case: bool = False
    stream: Stream | None = None
    complete: bool = False
    limit_s: float = LIMIT_S


def compiled(request: Request) -> re.Pattern[str]:
    if len(request.pattern) > LONGEST_PATTERN:
        raise BadPattern(f"the pattern is longer than {LONGEST_PATTERN} characters")
    try:
        return re.compile(request.pattern, re.IGNORECASE if request.ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern(
            f"not a regular expression of Python: {error}; put a backslash before a sign that is meant as such"
        ) from None


def main() -> None:
    snapshot, request = pickle.load(sys.stdin.buffer)  # noqa: S301 (written by `searching`)
    resource.setrlimit(resource.RLIMIT_CPU, (int(request.limit_s + STUCK_S) + 1,) * 2)
    ends_at = time.monotonic() + request.limit_s
    view = reading.grep(
        snapshot,
        compiled(request),
        context=request.context,
        cursor=request.cursor,
        most=request.most,
        stream=request.stream,
        complete=request.complete,
        enough=lambda: time.monotonic() > ends_at,
    )
    sys.stdout.buffer.write(pickle.dumps(view))
