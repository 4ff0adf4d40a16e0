"""Command-line options derived from an operation's fields, and the arguments they mean.

A field of the OpenAPI document appears here by itself: `max_wall_s` is `--max-wall-s`, its help is its
description. Limits are judged by the broker, in one place; only the kind of a value is looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import click

from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_list, as_object, types_of

_MOST_CHOICES_IN_A_HEAD = 8


class KeyValue(click.ParamType[tuple[str, str]]):
    """`NAME=VALUE`: one member of a mapping."""

    name = "NAME=VALUE"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


class KeyCount(click.ParamType[tuple[str, int]]):
    """`NAME=NUMBER`: one member of a mapping to whole numbers."""

    name = "NAME=NUMBER"

    def convert(
        self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, _, text = value.partition("=")
        if not name or not text.isascii() or not text.isdigit():
            self.fail(f"{value!r} is not NAME=NUMBER", param, ctx)
        return name, int(text)


class KeyValues(click.ParamType[tuple[str, list[str]]]):
    """`NAME=VALUE,VALUE,…`: one member of a mapping to lists. A list in JSON may have commas in its values."""

    name = "NAME=VALUE,…"

    def convert(
        self, value: str | tuple[str, list[str]], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, list[str]]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE,VALUE", param, ctx)
        if text.startswith("["):
            found: list[str] = JsonText().convert(text, param, ctx)  # type: ignore[assignment]  # the broker judges it
            return name, found
        return name, text.split(",")


class JsonText(click.ParamType[Json]):
    """A value that has no simpler spelling."""

    name = "JSON"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Json:
        try:
            parsed: Json = json.loads(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
        return parsed


class NumberOrWord(click.ParamType[float | str]):
    """A number, or one of the words that the broker knows there; it judges both."""

    name = "NUMBER|WORD"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        try:
            return float(value)
        except ValueError:
            return value


def options_of(operation: Operation, without: Collection[str] = ()) -> list[click.Parameter]:
    """One option for each field that is not in `without`."""
    return [option(name, schema) for name, schema in operation.fields.items() if name not in without]


def arguments_of(operation: Operation, values: Mapping[str, object]) -> dict[str, Json]:
    """The operation's arguments out of click's values: what was not given is absent."""
    arguments: dict[str, Json] = {}
    for name, schema in operation.fields.items():
        value = values.get(name)
        if value is None or value == ():
            continue
        if types_of(schema) == {"object"} and isinstance(value, tuple):
            arguments[name] = dict(value)
        else:
            arguments[name] = list(value) if isinstance(value, tuple) else value  # type: ignore[assignment]
    return arguments


def option(name: str, schema: Schema) -> click.Option:
    """The option of one field."""
    flag = "--" + name.replace("_", "-")
    types = types_of(schema)
    help_text = _help(schema)
    if types == {"boolean"}:
        spelled = flag if schema.get("default") is False else f"{flag}/--no-{flag[2:]}"
        return click.Option([spelled, name], is_flag=True, default=None, help=help_text)
    if types == {"array"}:
        kind = _scalar(as_object(schema.get("items")))
        return click.Option([flag, name], multiple=True, type=kind, help=f"{help_text} Repeatable.".strip())
    members = types_of(as_object(schema.get("additionalProperties"))) if types == {"object"} else set()
    if members in ({"string"}, {"integer"}, {"array"}):
        kind = {"string": KeyValue(), "integer": KeyCount(), "array": KeyValues()}[min(members)]
        return click.Option([flag, name], multiple=True, type=kind, help=f"{help_text} Repeatable.".strip())
    choices = _choices(schema)
    if len(choices) > _MOST_CHOICES_IN_A_HEAD:
        help_text = f"{help_text} One of {', '.join(choices)}.".strip()
        return click.Option([flag, name], type=_scalar(schema), default=None, help=help_text, metavar=name.upper())
    return click.Option([flag, name], type=_scalar(schema), default=None, help=help_text)


def _choices(schema: Schema) -> list[str]:
    return [value for value in as_list(schema.get("enum")) if isinstance(value, str)]


def _scalar(schema: Schema) -> click.ParamType[object]:
    choices = _choices(schema)
    if choices:
        return click.Choice(choices)
    types = types_of(schema)
    if types == {"integer"}:
        return click.INT
    if types == {"number"}:
        return click.FLOAT
    if types == {"number", "string"}:
        return NumberOrWord()
    return click.STRING if types <= {"string"} else JsonText()


def _help(schema: Schema) -> str:
    said = str(schema.get("description") or "").rstrip(".")
    default = schema.get("default")
    if default is not None and default is not False:
        shown = default if isinstance(default, str) else json.dumps(default)
        said = f"{said} (default {shown})" if said else f"Default: {shown}"
    return f"{said}." if said else ""
