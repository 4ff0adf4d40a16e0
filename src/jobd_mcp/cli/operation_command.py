"""The command of one operation, derived from its definition; and the parts that commands written by hand share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import click

from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, types_of

Renderer = Callable[[Json], list[str]]

JSON_FLAG = "as_json"


@dataclass(frozen=True)
class Shape:
    """What is written by hand about a derived command. `bare` is the field whose values stand as bare words."""

    operation: str
    render: Renderer
    bare: str | None = None


def operation_command(name: str, shape: Shape) -> click.Command:
    """The command of one operation: arguments in, answer out."""
    operation = by_name()[shape.operation]

    def call(**values: object) -> None:
        answer = connect(os.environ).call(operation, arguments_of(operation, values))
        show(answer.body, values[JSON_FLAG] is True, lambda: shape.render(answer.json()))

    bare = [bare_words(operation, shape.bare)] if shape.bare else []
    options = options_of(operation, without=[shape.bare] if shape.bare else [])
    return click.Command(
        name,
        callback=call,
        params=[*bare, *options, json_flag()],
        help=operation.description,
    )


def bare_words(operation: Operation, field: str, *, required: bool | None = None) -> click.Argument:
    """`field` as bare words: several where it is a list. Numbers may be ranges, as 50..55."""
    schema = operation.fields[field]
    several = types_of(schema) == {"array"}
    needed = field in operation.required if required is None else required
    kind = JobIds() if several and field == "job" else click.INT if types_of(schema) == {"integer"} else click.STRING
    callback = _flattened if isinstance(kind, JobIds) else None
    return click.Argument([field], type=kind, nargs=-1 if several else 1, required=needed, callback=callback)


class JobIds(click.ParamType[range]):
    """One id, or a block of them as it is shown after submitting an array: 50..55."""

    name = "ID|FIRST..LAST"

    def convert(self, value: str | range, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        first, dots, last = value.partition("..")
        if not first.isdecimal() or not (last if dots else first).isdecimal():
            self.fail(f"{value!r} is no job id; ids are numbers, a block is 50..55", param, ctx)
        block = range(int(first), int(last if dots else first) + 1)
        if not 0 < len(block) <= 10_000:
            self.fail(f"{value!r} is not a block of at most 10,000 ids", param, ctx)
        return block


def _flattened(ctx: click.Context, param: click.Parameter, value: tuple[range, ...]) -> tuple[int, ...]:
    return tuple(id_ for block in value for id_ in block)


def json_flag() -> click.Option:
    return click.Option(["--json", JSON_FLAG], is_flag=True, help="Print the operation's answer unchanged.")


def show(body: bytes, as_json: bool, lines: Callable[[], list[str]]) -> None:
    """The answer for a program, byte for byte, or its lines for people."""
    if as_json:
        sys.stdout.flush()
        sys.stdout.buffer.write(body if body.endswith(b"\n") else body + b"\n")
        return
    for line in lines():
        click.echo(line)
