"""`job schedule …`: jobs by the clock."""

from __future__ import annotations

import os

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.jobs import PROGRAM_HELP, ProgramCommand, program_params, spec_of
from jobd_mcp.cli.operation_command import JSON_FLAG, Shape, json_flag, operation_command, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Schema

SHAPES = {
    "list": Shape("schedule_list", rendering.schedules),
    "show": Shape("schedule_get", rendering.schedule, bare="name"),
    "pause": Shape("schedule_pause", rendering.schedule, bare="name"),
    "resume": Shape("schedule_resume", rendering.schedule, bare="name"),
    "remove": Shape("schedule_remove", rendering.schedules, bare="name"),
}


def schedule_group() -> click.Group:
    group = click.Group("schedule", help="Jobs that are submitted again and again, by the clock.")
    group.add_command(add_command())
    for name, shape in SHAPES.items():
        group.add_command(operation_command(name, shape))
    return group


def add_command() -> click.Command:
    operation = by_name()["schedule_put"]

    @click.pass_context
    def call(ctx: click.Context, /, **values: object) -> None:
        connection = connect(os.environ, start=True)
        when = {name: value for name, value in values.items() if name in WHEN}
        arguments: Schema = {
            **arguments_of(operation, when),
            "name": str(values["schedule"]),
            "job": spec_of(ctx, values, connection),
        }
        answer = connection.call(operation, arguments)
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.schedule(answer.json()))

    return ProgramCommand(
        "add",
        callback=call,
        params=[
            click.Argument(["schedule"], metavar="NAME"),
            *options_of(operation, without=["name", "job"]),
            *program_params(),
            json_flag(),
        ],
        help=(
            "Submit a job again and again; the same NAME again changes it. "
            'As: job schedule add nightly --cron "0 3 * * *" --tz Europe/Berlin -- CMD. '
            f"Takes what job submit takes.\n\n{PROGRAM_HELP}"
        ),
        short_help="Submit a job again and again.",
    )


WHEN = frozenset({"cron", "tz", "missed", "overlap", "paused"})
