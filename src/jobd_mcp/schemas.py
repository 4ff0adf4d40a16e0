"""JSON schemas as agents can read them: flat, without references, titles or nulls.

Clients differ in what they follow: some ignore `$ref`, some refuse a combinator at the root, and every
title costs tokens. So what goes out is inlined and small. Pure; standard library only.
"""

from __future__ import annotations

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Schema: TypeAlias = "dict[str, Json]"

DEEPEST = 24
FAR_AWAY = 512  # a bound that far away tells an agent nothing; the broker judges it all the same
_NOISE = frozenset({"title", "discriminator", "examples", "propertyNames", "$schema", "$id"})
_BOUNDS = frozenset(
    {"maxLength", "maxItems", "maxProperties"}
)  # far away from what anybody means; the broker judges them
_LEAST = frozenset({"minimum", "exclusiveMinimum"})  # 0 and 1 go without saying
_COMBINATORS = ("anyOf", "oneOf", "allOf")
_HOLDS_ONE = frozenset({"items", "not", "additionalProperties", "patternProperties"})
_HOLDS_LIST = frozenset({*_COMBINATORS, "prefixItems"})
_COMPONENTS = "#/components/schemas/"


class UnsuitableSchema(ValueError):
    """This schema can't be shown to agents; the message says which and why."""


def as_object(value: Json) -> Schema:
    """`value`, which the OpenAPI format says is an object; an empty one where it is absent."""
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def inlined(document: Schema, schema: Json, *, answer: bool = False, depth: int = 0) -> Schema:
    """`schema` with every reference replaced by what it names, and nulls folded away.

    In an `answer` nulls never appear and fields may be added later: nullable names are not required,
    defaults mean nothing, unknown fields are allowed.
    """
    if depth > DEEPEST:
        raise UnsuitableSchema("a schema that contains itself can't be inlined")
    given = _followed(document, as_object(schema))

    def inner(part: Json) -> Schema:
        return inlined(document, part, answer=answer, depth=depth + 1)

    result: Schema = {}
    for key, value in given.items():
        if key in _NOISE or key in _BOUNDS or (key == "default" and (value is None or value is False or answer)):
            continue  # a switch that is off unless said goes without saying
        if key == "additionalProperties" and value is True:  # as if nothing were said
            continue
        if key == "maximum" and isinstance(value, int | float) and value >= FAR_AWAY:
            continue
        if key in _LEAST and isinstance(value, int | float) and 0 <= value <= 1:
            continue
        if key == "properties":
            result[key] = {name: inner(part) for name, part in as_object(value).items()}
        elif key in _HOLDS_LIST:
            result[key] = [inner(part) for part in as_list(value)]
        elif key == "patternProperties":
            # One value type under any allowed name; the names are checked where the request is parsed.
            [only] = as_object(value).values()
            result["additionalProperties"] = inner(only)
        elif key in _HOLDS_ONE and isinstance(value, dict):
            result[key] = inner(value)
        else:
            # pydantic writes the bounds of whole numbers as 50.0
            result.setdefault(key, int(value) if isinstance(value, float) and value.is_integer() else value)
    return _without_null(_open(document, given, result) if answer else result)


def _open(document: Schema, given: Schema, answer: Schema) -> Schema:
    """An answer's object schema without what nulls and later fields would break."""
    if answer.get("additionalProperties") is False:
        del answer["additionalProperties"]
    properties = as_object(given.get("properties"))
    nullable = {name for name, part in properties.items() if _allows_null(_followed(document, as_object(part)))}
    required: list[Json] = [name for name in as_list(answer.pop("required", None)) if name not in nullable]
    return {**answer, "required": required} if required else answer


def types_of(schema: Schema) -> frozenset[str]:
    """The JSON types that `schema` allows; empty: any."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(part for part in kind if isinstance(part, str))
    found: set[str] = set()
    for key in ("anyOf", "oneOf"):
        for part in as_list(schema.get(key)):
            found |= types_of(as_object(part)) or {"any"}
    if "any" in found:
        return frozenset()
    if not found:
        values = as_list(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        found = {"string" if isinstance(value, str) else "any" for value in values}
    return frozenset() if "any" in found else frozenset(found)


def object_root(schema: Schema, what: str) -> Schema:
    """`schema`, if its root is a plain object; clients refuse anything else there."""
    if schema.get("type") != "object" or any(key in schema for key in _COMBINATORS):
        raise UnsuitableSchema(f"the root of {what} is not a plain object")
    return schema


WRITTEN_BY_A_JOB = "result"


def without_nulls(value: Json) -> Json:
    """`value` with every null member left out, at any depth. Nulls inside lists stay, and those that a job wrote."""
    if isinstance(value, dict):
        return {
            key: member if key == WRITTEN_BY_A_JOB else without_nulls(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [without_nulls(member) for member in value]
    return value


def _followed(document: Schema, schema: Schema) -> Schema:
    """The schema behind `$ref`, with what stands beside the reference laid over it."""
    seen = 0
    while "$ref" in schema:
        reference = schema["$ref"]
        if not isinstance(reference, str) or not reference.startswith(_COMPONENTS) or seen > DEEPEST:
            raise UnsuitableSchema(f"can't follow the reference {reference!r}")
        seen += 1
        known = as_object(as_object(document.get("components")).get("schemas"))
        target = known.get(reference.removeprefix(_COMPONENTS))
        if not isinstance(target, dict):
            raise UnsuitableSchema(f"the reference {reference!r} names nothing")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **beside}
    return schema


def _allows_null(schema: Schema) -> bool:
    options = [as_object(part) for part in as_list(schema.get("anyOf"))]
    kind = schema.get("type")
    return kind == "null" or "null" in as_list(kind) or any(part.get("type") == "null" for part in options)


def _without_null(schema: Schema) -> Schema:
    """`anyOf[X, null]` is X; a single option left is that option."""
    kinds = [kind for kind in as_list(schema.get("type")) if kind != "null"]
    if kinds:
        schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    for key in ("anyOf", "oneOf", "allOf"):
        if key not in schema:
            continue
        options = [as_object(part) for part in as_list(schema[key]) if as_object(part).get("type") != "null"]
        if len(options) == 1:
            schema = {**options[0], **{name: value for name, value in schema.items() if name != key}}
        else:
            schema[key] = list(options)
    return schema
