"""Many jobs in one call: specifications as JSON, one a line, from a file or standard input."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from jobd_mcp.cli.failure import Failure
from jobd_mcp.schemas import Json, Schema, as_list, as_object


@dataclass(frozen=True)
class Lines:
    """Specifications, and the line where each of them stands."""

    name: str
    specs: list[Schema]
    numbers: list[int]

    def blamed(self, failure: Failure) -> Failure:
        """The same refusal, with the line instead of the place in the list."""
        found = re.search(r"\bjobs\.(\d+)", failure.message)
        if found is None or int(found[1]) >= len(self.numbers):
            return failure
        line = f"{self.name}, line {self.numbers[int(found[1])]}"
        message = re.sub(rf"\bjobs\.{found[1]}(\.|: )?", "", failure.message)
        return Failure(f"{line}: {message}", code=failure.code, hint=failure.hint, retryable=failure.retryable)


def read(file: str | None) -> Lines:
    """`file`: its path; None: standard input. Raises Failure for a line that is no specification."""
    name = file or "standard input"
    try:
        text = sys.stdin.read() if file is None else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{name} can't be read: {error}") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise Failure(f"{name} has no jobs", hint='one specification a line: {"command": "make"}')
    return Lines(name, [_spec(name, number, line) for number, line in lines], [number for number, _ in lines])


def _spec(name: str, number: int, line: str) -> Schema:
    try:
        said: Json = json.loads(line)
    except ValueError as error:
        raise Failure(f"{name}, line {number}: not JSON: {error}", hint="nothing was submitted") from None
    if not isinstance(said, dict):
        raise Failure(
            f"{name}, line {number}: not a specification", hint='one object a line: {"command": "make", "gpus": 1}'
        )
    return said


_EXCLUSIVE = ({"command", "argv"}, {"venv", "conda"})


def completed(spec: Schema, common: Schema) -> Schema:
    """What a line leaves out is as for all; of what excludes each other its own word counts."""
    said = [words for words in _EXCLUSIVE if words & spec.keys()]
    return {name: value for name, value in common.items() if not any(name in words for words in said)} | spec


def ids(answer: Json) -> list[Json]:
    """All jobs that were submitted, members of arrays too."""
    found: list[Json] = []
    for made in map(as_object, as_list(as_object(answer).get("jobs"))):
        first, count = made.get("array", made.get("id")), made.get("count", 1)
        if isinstance(first, int) and isinstance(count, int):
            found += range(first, first + count)
    return found
