"""Specifications from a file or standard input: TOML, YAML or JSON of one job or of many, or JSON one a line."""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path

from jobd_mcp.cli.failure import Failure
from jobd_mcp.schemas import Json, Schema, as_list, as_object

SUFFIXES = (".toml", ".yaml", ".yml", ".json", ".jsonl", ".ndjson")
MANY = "jobs"
_NOTHING_DONE = "nothing was submitted"


@dataclass(frozen=True)
class Specs:
    """Specifications, and where each of them stands. `alone`: the file is of one job, and not of a list of one."""

    name: str
    specs: list[Schema]
    places: list[str]
    alone: bool = False

    def blamed(self, failure: Failure) -> Failure:
        """The same refusal, with the place in the file instead of the place in the list."""
        found = re.search(r"\bjobs\.(\d+)", failure.message)
        if found is None or int(found[1]) >= len(self.places):
            return self._named(failure, self.name, failure.message) if self.alone else failure
        message = re.sub(rf"\bjobs\.{found[1]}(\.|: )?", "", failure.message)
        return self._named(failure, f"{self.name}, {self.places[int(found[1])]}", message)

    @staticmethod
    def _named(failure: Failure, where: str, message: str) -> Failure:
        return Failure(f"{where}: {message}", code=failure.code, hint=failure.hint, retryable=failure.retryable)


def read(file: str | None) -> Specs:
    """`file`: its path, its kind told by its name; None: standard input, JSON one a line. Raises Failure for what is no
    specification, with the line or the job that is to blame."""
    name = file or "standard input"
    try:
        text = sys.stdin.read() if file is None else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{name} can't be read: {error}") from None
    match Path(file).suffix if file is not None else "":
        case ".toml":
            return _of_toml(name, text)
        case ".yaml" | ".yml":
            return _of_yaml(name, text)
        case ".json" if (whole := _whole_json(name, text)) is not None:
            return _specs(name, whole, {})
        case _:
            return _of_lines(name, text)


def _of_lines(name: str, text: str) -> Specs:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise Failure(f"{name} has no jobs", hint='one specification a line: {"command": "make"}')
    return Specs(name, [_line(name, number, line) for number, line in lines], [f"line {number}" for number, _ in lines])


def _line(name: str, number: int, line: str) -> Schema:
    try:
        said: Json = json.loads(line, object_pairs_hook=_once, parse_constant=_no_number)
    except ValueError as error:
        raise Failure(f"{name}, line {number}: not JSON: {error}", hint=_NOTHING_DONE) from None
    if not isinstance(said, dict):
        raise Failure(
            f"{name}, line {number}: not a specification", hint='one object a line: {"command": "make", "gpus": 1}'
        )
    return said


def _whole_json(name: str, text: str) -> Json:
    """None: it is one a line."""
    try:
        found: Json = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and error.lineno > 1 and text.splitlines()[0].rstrip().endswith("}"):
            return None
        raise Failure(f"{name}, line {error.lineno}: not JSON: {error.msg}", hint=_NOTHING_DONE) from None
    except (ValueError, RecursionError) as error:
        raise Failure(f"{name}: not JSON: {error}", hint=_NOTHING_DONE) from None
    if found is None:
        raise Failure(f"{name} has no jobs", hint=f'{{"command": "make"}}, or a list under "{MANY}"')
    return found


def _once(pairs: Sequence[tuple[str, Json]]) -> Schema:
    made: Schema = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"{key} is given twice")
        made[key] = value
    return made


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _of_toml(name: str, text: str) -> Specs:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"{name}: not TOML: {error}", hint=_NOTHING_DONE) from None
    except RecursionError:
        raise Failure(f"{name}: not TOML that can be read: nested too deep", hint=_NOTHING_DONE) from None
    heads = [number for number, line in enumerate(text.splitlines(), 1) if re.match(rf"\s*\[\[\s*{MANY}\s*\]\]", line)]
    count = len(data[MANY]) if isinstance(data.get(MANY), list) else 0
    lines: dict[tuple[str | int, ...], int] = {}
    if len(heads) == count:  # else they stand in another way, or in a text
        lines.update({(MANY, at): line for at, line in enumerate(heads)})
    return _specs(name, _plain(name, data, ""), lines)


def _plain(name: str, value: object, where: str) -> Json:
    """TOML's values as JSON's: instants are text, as in every other format."""
    if isinstance(value, dict):
        return {key: _plain(name, one, f"{where}.{key}" if where else key) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(name, one, f"{where}.{at}") for at, one in enumerate(value)]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise Failure(f"{name}: {where}: {value} is no number here", hint=_NOTHING_DONE)
    assert isinstance(value, str | int | float | bool)
    return value


def _of_yaml(name: str, text: str) -> Specs:
    from jobd_mcp.cli import yaml_text

    try:
        data, lines = yaml_text.parse(text)
    except yaml_text.NotPlain as wrong:
        raise Failure(f"{name}, line {wrong.line}: {wrong}", hint=_NOTHING_DONE) from None
    return _specs(name, data, lines)


def _specs(name: str, data: Json, lines: Mapping[tuple[str | int, ...], int]) -> Specs:
    """One job, or many under `jobs`; what stands beside that is for all of them."""
    shape = f"one job (command = …), or a list of them under {MANY}"
    if not isinstance(data, dict) or not data:
        raise Failure(f"{name} has no jobs" if not data else f"{name}: not a specification", hint=shape)
    if MANY not in data:
        return Specs(name, [data], ["job 1"], alone=True)
    members = data[MANY]
    if not isinstance(members, list) or not members:
        raise Failure(f"{name}: {MANY} is not a list of jobs", hint=shape)
    common = {key: value for key, value in data.items() if key != MANY}
    places = [_place(at, lines) for at in range(len(members))]
    for one, place in zip(members, places, strict=True):
        if not isinstance(one, dict):
            raise Failure(f"{name}, {place}: not a specification", hint=shape)
    return Specs(name, [completed(as_object(one), common) for one in members], places)


def _place(at: int, lines: Mapping[tuple[str | int, ...], int]) -> str:
    line = lines.get((MANY, at))
    return f"job {at + 1}" if line is None else f"job {at + 1} (line {line})"


_EXCLUSIVE = ({"command", "argv"}, {"venv", "conda"})
_BY_NAME = frozenset({"env", "labels", "resources"})


def completed(spec: Schema, common: Schema) -> Schema:
    """What `spec` leaves out is as for all; of what excludes each other its own word counts, and of what is said by name
    each name by itself."""
    said = [words for words in _EXCLUSIVE if words & spec.keys()]
    left = {name: value for name, value in common.items() if not any(name in words for words in said)}
    both = {
        name: {**as_object(left[name]), **as_object(spec[name])}
        for name in _BY_NAME & left.keys() & spec.keys()
        if isinstance(left[name], dict) and isinstance(spec[name], dict)
    }
    return {**left, **spec, **both}


def ids(answer: Json) -> list[Json]:
    """All jobs that were submitted, members of arrays too."""
    found: list[Json] = []
    for made in map(as_object, as_list(as_object(answer).get("jobs"))):
        first, count = made.get("array", made.get("id")), made.get("count", 1)
        if isinstance(first, int) and isinstance(count, int):
            found += range(first, first + count)
    return found
