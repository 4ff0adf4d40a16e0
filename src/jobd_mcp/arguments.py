"""What a caller's arguments mean. Sloppy clients send "3", "true", '["a"]' and '{}' where the schema says
number, boolean, list and object, and true or 3 where it says text; those are understood, there and only there.
Everything else stays as it came and is judged by the broker. Pure; standard library only.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_list, as_object, types_of

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Misfit:
    """One argument that can't be what it was given as."""

    field: str
    message: str


class BadArguments(ValueError):
    """The call can't be made as it was given. `misfits` names each field and what is wrong with it."""

    def __init__(self, misfits: list[Misfit]) -> None:
        super().__init__("; ".join(f"{misfit.field}: {misfit.message}" for misfit in misfits))
        self.misfits = misfits


def understood(operation: Operation, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments with their meant types, nulls left out. Raises BadArguments for every misfit at once."""
    fields = operation.fields
    misfits: list[Misfit] = []
    result: dict[str, Json] = {}
    for name, value in arguments.items():
        if name not in fields:
            misfits.append(Misfit(name, f"{operation.name} has no such argument{_suggestion(name, list(fields))}"))
        elif value is not None:
            try:
                result[name] = _meant(fields[name], value)
            except _Unfit as error:
                misfits.append(Misfit(name, str(error)))
    misfits.extend(
        Misfit(name, "is required")
        for name in sorted(operation.required - result.keys() - {misfit.field for misfit in misfits})
    )
    if misfits:
        raise BadArguments(misfits)
    return result


class _Unfit(ValueError):
    """This value can't be of the type that the schema wants."""


def _meant(schema: Schema, value: Json) -> Json:
    """`value` as `schema` means it. A text stays a text wherever a text is allowed."""
    types = types_of(schema)
    if isinstance(value, str) and types and "string" not in types:
        value = _read(types, value)
    if types == {"string"} and isinstance(value, bool | int | float):
        return json.dumps(value)  # command=true, env A=1: clients that parse what they were typed
    if types == {"integer"}:
        return _integer(value)
    if types == {"number"} and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _Unfit(f"expected a number, got {_shown(value)}")
    if types == {"boolean"} and not isinstance(value, bool):
        raise _Unfit(f"expected true or false, got {_shown(value)}")
    if types == {"array"}:
        items = as_object(schema.get("items"))
        return [_meant(items, member) for member in (value if isinstance(value, list) else [value])]
    if types == {"object"}:
        if not isinstance(value, dict):
            raise _Unfit(f"expected an object, got {_shown(value)}")
        return {name: _meant(_member(schema, name), member) for name, member in value.items()}
    return value


def _read(types: frozenset[str], text: str) -> Json:
    """A text where no text is allowed: what it spells, or else the text itself."""
    if "array" in types and not text.lstrip().startswith("["):
        return [text]
    if "boolean" in types and text.strip().lower() in _BOOLEANS:
        return _BOOLEANS[text.strip().lower()]
    try:
        spelled: Json = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return [text] if "array" in types else text
    return spelled


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


def _integer(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Unfit(f"expected a whole number, got {_shown(value)}")
    return value


def _member(schema: Schema, name: str) -> Schema:
    properties = as_object(schema.get("properties"))
    return as_object(properties.get(name, schema.get("additionalProperties")))


def _shown(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + "…"


def _suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; it takes {', '.join(known)}" if known else "; it takes none"


def choices(schema: Schema) -> list[str]:
    """The closed set of texts that `schema` allows; empty where it is open."""
    if "enum" in schema:
        return [value for value in as_list(schema["enum"]) if isinstance(value, str)]
    return [value for part in as_list(schema.get("anyOf")) for value in choices(as_object(part))]
