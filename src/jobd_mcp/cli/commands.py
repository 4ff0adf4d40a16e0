"""The command tree. Which words a command has is derived from its operation; what is written by hand is how
its answer reads, which values stand as bare words, and the commands that are more than one operation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import click

from jobd_mcp.cli import machines, rendering
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


SHAPES = {
    "list": Shape("job_list", rendering.job_list),
    "status": Shape("job_get", rendering.job, bare="job"),
    "cancel": Shape("job_cancel", rendering.cancelled, bare="job"),
    "workers": Shape("worker_list", machines.workers),
}
TOKEN_SHAPES = {
    "list": Shape("token_list", rendering.tokens),
    "revoke": Shape("token_revoke", rendering.tokens, bare="name"),
}
# Commands of more than one operation, or of none: the module and the function that makes each, imported when used.
WRITTEN = {
    "submit": "jobs:submit_command",
    "run": "jobs:run_command",
    "wait": "jobs:wait_command",
    "logs": "logs:logs_command",
    "events": "events:events_command",
    "top": "top:top_command",
    "up": "machine:up_command",
    "down": "machine:down_command",
    "broker": "machine:broker_command",
    "worker": "machine:worker_command",
    "demo": "machine:demo_command",
    "doctor": "doctor:doctor_command",
    "completion": "completion:completion_command",
}
ORDER = ("submit", "run", "list", "status", "logs", "wait", "cancel", "top", "workers", "events", "token")
_EXPLICIT = {shape.operation for shape in SHAPES.values()} | {"job_submit", "job_wait", "job_logs", "job_events"}


class Commands(click.Group):
    """Commands made when they are asked for: `job list` builds no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        rest = [name for name in (*SHAPES, *_derived(), *WRITTEN) if name not in ORDER]
        return [*ORDER, *rest]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SHAPES:
            return operation_command(cmd_name, SHAPES[cmd_name])
        if cmd_name in WRITTEN:
            module, _, function = WRITTEN[cmd_name].partition(":")
            made: click.Command = getattr(import_module(f"jobd_mcp.cli.{module}"), function)()
            return made
        if cmd_name == "token":
            return token_group()
        operation = _derived().get(cmd_name)
        return (
            operation_command(cmd_name, Shape(operation.name, rendering.job, _only_path(operation)))
            if operation
            else None
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{suggestion}", ctx) from None


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


def token_group() -> click.Group:
    group = click.Group("token", help="Tokens for other machines and programs. Needs the scope operator.")
    for name, shape in TOKEN_SHAPES.items():
        group.add_command(operation_command(name, shape))
    from jobd_mcp.cli.tokens import create_command

    group.add_command(create_command())
    return group


def _derived() -> dict[str, Operation]:
    """Tools that nothing here names: each is a command by itself, `job_retry` as `retry`."""
    named = {op.name.removeprefix("job_").replace("_", "-"): op for op in by_name().values() if op.tool}
    return {name: op for name, op in named.items() if op.name not in _EXPLICIT and name not in (*SHAPES, *WRITTEN)}


def _only_path(operation: Operation) -> str | None:
    return next(iter(operation.in_path)) if len(operation.in_path) == 1 else None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="jobd-mcp", message="jobd-mcp %(version)s")
def job() -> None:
    """Run long work on your own machines and look after it.

    The broker is this user's own (job up), or the one that JOBD_URL names. `submit` and `run` start this
    user's broker and one worker if none runs; every other command only says so.
    """
