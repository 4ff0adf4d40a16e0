"""`job token …`. What `create` makes is shown once."""

from __future__ import annotations

import os
import secrets

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.operation_command import JSON_FLAG, Shape, json_flag, operation_command, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name

SHAPES = {
    "list": Shape("token_list", rendering.tokens),
    "revoke": Shape("token_revoke", rendering.tokens, bare="name"),
}


def token_group() -> click.Group:
    group = click.Group("token", help="Tokens for other machines and programs. Needs the scope operator.")
    for name, shape in SHAPES.items():
        group.add_command(operation_command(name, shape))
    group.add_command(create_command())
    return group


def create_command() -> click.Command:
    operation = by_name()["token_create"]

    def call(**values: object) -> None:
        arguments = arguments_of(operation, values)
        scopes = values.get("scopes")
        if "name" not in arguments and isinstance(scopes, tuple):
            arguments["name"] = "-".join([*map(str, scopes), secrets.token_hex(3)])
        answer = connect(os.environ).call(operation, arguments)
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.token_made(answer.json()))

    options = options_of(operation, without=["name"])
    for option in options:
        if option.name == "scopes":
            option.opts.insert(0, "--scope")
    return click.Command(
        "create",
        callback=call,
        params=[click.Argument(["name"], required=False), *options, json_flag()],
        help=f"{operation.description} Without NAME it is named after its scopes.",
    )
