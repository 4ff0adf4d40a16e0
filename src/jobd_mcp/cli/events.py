"""`job events`: what happened, and with -f what happens."""

from __future__ import annotations

import json
import os

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.operation_command import JSON_FLAG, json_flag, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.server_events import follow
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Schema


def events_command() -> click.Command:
    operation = by_name()["job_events"]

    def call(**values: object) -> None:
        connection = connect(os.environ)
        arguments = arguments_of(operation, values)
        as_json = values[JSON_FLAG] is True
        if values["follow"] is not True:
            if not (arguments.keys() - {"limit"}):
                arguments["last"] = arguments.get("limit", operation.fields["limit"].get("default"))
            answer = connection.call(operation, arguments)
            show(answer.body, as_json, lambda: rendering.events(answer.json()))
            return
        stream = by_name()["event_stream"]
        for event in follow(connection, stream, {name: arguments[name] for name in stream.fields if name in arguments}):
            if event.kind == "pruned":
                click.echo(rendering.pruned_to(event.data.get("to")), err=True)
            elif _wanted(event.data, arguments):
                click.echo(json.dumps(event.data) if as_json else rendering.event_line(event.data))

    return click.Command(
        "events",
        callback=call,
        params=[
            click.Option(
                ["-f", "--follow"],
                is_flag=True,
                help="Events as they happen, from now on; all of them with --since 0. With --json one object a line.",
            ),
            *options_of(operation),
            json_flag(),
        ],
        help=(
            f"{operation.description} Without options the last ones; --since 0 begins with the first. Times are this "
            "machine's; --json has the exact ones."
        ),
        short_help="What happened and why, in order.",
    )


def _wanted(event: Schema, arguments: Schema) -> bool:
    """The stream knows fewer filters than the list."""
    return all(
        event.get(name) == arguments[name] for name in ("type", "project", "worker", "actor") if name in arguments
    )
