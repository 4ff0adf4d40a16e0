"""`job artifacts`: the files that a job left, listed or fetched."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import Connection, connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.operation_command import JSON_FLAG, bare_words, json_flag, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_list, as_object

PIECE_BYTES = 1 << 20


def artifacts_command() -> click.Command:
    operation = by_name()["job_artifacts"]

    def call(**values: object) -> None:
        connection = connect(os.environ)
        into = values.pop("fetch")
        arguments = arguments_of(operation, values)
        answer = connection.call(operation, arguments)
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.artifacts(answer.json()))
        if isinstance(into, Path):
            _fetch_all(connection, as_object(answer.json()), into)

    return click.Command(
        "artifacts",
        callback=call,
        params=[
            bare_words(operation, "job"),
            click.Option(
                ["--fetch"],
                type=click.Path(path_type=Path, file_okay=False),
                metavar="DIR",
                help="Copy them into this directory. What is there under their names is replaced.",
            ),
            *options_of(operation, without=["job"]),
            json_flag(),
        ],
        help=(
            "The files that a job left in JOBD_ARTIFACTS_DIR. They come after its end: the last line says whether all are "
            "here. Each that is fetched is verified by its checksum before it gets its name."
        ),
        short_help="The files that a job left.",
    )


def _fetch_all(connection: Connection, listed: Schema, into: Path) -> None:
    for entry in map(as_object, as_list(listed.get("artifacts"))):
        place = _place(into, str(entry.get("name")))
        arguments: Schema = {"job": listed.get("job"), "attempt": listed.get("attempt"), "name": entry.get("name")}
        try:
            _fetch(connection, arguments, entry.get("sha256"), place)
        except OSError as error:
            raise Failure(f"{place} can't be written: {error.strerror or error}") from None
        print(f"job: fetched {rendering.text(str(place))}", file=sys.stderr, flush=True)


def _place(into: Path, name: str) -> Path:
    """Where a file goes. A broker that can't be trusted writes nothing outside of the directory."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise Failure(f"an artifact is called {rendering.text(name)!r}, which is no path below {into}")
    return into.joinpath(*parts)


def _fetch(connection: Connection, arguments: Schema, sha256: Json, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.part")
    digest = hashlib.sha256()
    try:
        with connection.open(by_name()["job_artifact"].request(arguments)) as response, draft.open("wb") as file:
            while piece := response.read(PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise Failure(
                f"{rendering.text(place.name)} does not match its checksum", hint="fetch again", retryable=True
            )
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)
