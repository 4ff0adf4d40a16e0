"""`job retry`: an ended job once more, as it was or with changes."""

from __future__ import annotations

import os

import click

from jobd_mcp.arguments import BadArguments, understood
from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.operation_command import JSON_FLAG, bare_words, json_flag, show
from jobd_mcp.cli.options import KeyValue, arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema


def retry_command() -> click.Command:
    operation = by_name()["job_retry"]

    def call(**values: object) -> None:
        changed, removed, every = values.pop("set"), values.pop("unset"), values.pop("all") is True
        arguments = arguments_of(operation, values)
        if every and "members" in arguments:
            raise Failure("--all and --members are given", hint="--all is --members all")
        if every:
            arguments["members"] = "all"
        assert isinstance(changed, tuple) and isinstance(removed, tuple), "both can be repeated"
        if changes := _changes(dict(changed), removed):
            arguments["changes"] = changes
        answer = connect(os.environ, start=True).call(operation, arguments)
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.submitted(answer.json()))

    return click.Command(
        "retry",
        callback=call,
        params=[
            bare_words(operation, "job"),
            click.Option(
                ["--set"], type=KeyValue(), multiple=True, help="Change what was asked for, as gpus=2. Repeatable."
            ),
            click.Option(["--unset"], multiple=True, metavar="NAME", help="Leave out what was asked for. Repeatable."),
            click.Option(["--all"], is_flag=True, help="All members of the array, also those that completed."),
            *options_of(operation, without=["job", "changes"]),
            json_flag(),
        ],
        help=f"{operation.description} Lists and objects are given to --set in JSON.",
    )


def _changes(changed: dict[str, str], removed: tuple[str, ...]) -> Schema:
    """With the types that `job submit` has for them. Raises Failure for a name that it does not have."""
    words: dict[str, Json] = dict(changed)
    try:
        said = understood(by_name()["job_submit"], words)
    except BadArguments as error:
        raise Failure(f"--set: {error}") from None
    return {**said, **dict.fromkeys(removed)}
