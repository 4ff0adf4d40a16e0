"""`job logs`: all of a job's output, a view of it, or what comes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import Connection, connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.operation_command import JSON_FLAG, bare_words, json_flag
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.output import Piece, Sink, copy
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Schema, as_object

_VIEWS = frozenset({"tail", "head", "grep", "context", "cursor", "stream"})
_FOLLOWED_VIEWS = frozenset({"tail", "cursor"})


def logs_command() -> click.Command:
    operation = by_name()["job_logs"]

    def call(**values: object) -> None:
        connection = connect(os.environ)
        arguments = arguments_of(operation, values)
        views = _VIEWS & arguments.keys()
        exact = arguments.get("raw") is True
        if exact and (views - {"cursor"}):
            raise Failure("--raw is all bytes, or those from --cursor on", hint="leave out --raw, or the view")
        if values["follow"] is True:
            if views - _FOLLOWED_VIEWS:
                raise Failure("-f goes with --tail and --cursor only", hint="pipe it: job logs -f 42 | grep ...")
            _follow(connection, arguments, exact)
        elif views or values[JSON_FLAG] is True:
            _write(connection.call(operation, arguments).body)
        else:
            _everything(connection, arguments, Sink(exact=exact))

    return click.Command(
        "logs",
        callback=call,
        params=[
            bare_words(operation, "job"),
            click.Option(["-f", "--follow"], is_flag=True, help="Go on as output comes, until the job has ended."),
            *options_of(operation, without=["job"]),
            json_flag(),
        ],
        help=(
            "A job's whole output, or with one of the options a view of it as agents get it. Control sequences that "
            "could harm a terminal are left out; --raw gives the exact bytes."
        ),
        short_help="A job's output.",
    )


def say(text: str) -> None:
    """A word of our own beside a job's output: always on stderr, and marked."""
    sys.stdout.flush()
    print(f"job: {text}", file=sys.stderr, flush=True)


def _everything(connection: Connection, arguments: Schema, sink: Sink) -> None:
    if "attempt" not in arguments:
        job = as_object(connection.call(by_name()["job_get"], {"job": arguments["job"]}).json())
        if "attempt" not in job:
            say(f"job {arguments['job']} is {job.get('state')} and has no output yet")
            return
        arguments = {**arguments, "attempt": job["attempt"]}
    for data in _pages(connection, arguments):
        sink.write(Piece(0, "stdout", data))
    sink.close()


def _pages(connection: Connection, arguments: Schema) -> Iterator[bytes]:
    """The exact bytes up to where they ended when this was called."""
    cursor, end = 0, None
    while end is None or cursor < end:
        answer = connection.call(by_name()["job_logs"], {**arguments, "raw": True, "cursor": cursor})
        end = _offset(answer.headers, "size") if end is None else end
        if not answer.body:
            return
        yield answer.body[: end - cursor]
        cursor += len(answer.body)


def _follow(connection: Connection, arguments: Schema, exact: bool) -> None:
    wanted: Schema = {name: arguments[name] for name in ("job", "attempt", "cursor") if name in arguments}
    if "tail" in arguments:
        answer = connection.call(by_name()["job_logs"], {**wanted, "tail": arguments["tail"]})
        wanted["cursor"] = _offset(answer.headers, "start")
        wanted.setdefault("attempt", _offset(answer.headers, "attempt") or None)
    if sys.stderr.isatty():
        _say_why_nothing_comes(connection, arguments)
    copy(connection, wanted, Sink(exact=exact), say)
    if sys.stderr.isatty():
        say(rendering.job_line(as_object(connection.call(by_name()["job_get"], {"job": arguments["job"]}).json())))


def _say_why_nothing_comes(connection: Connection, arguments: Schema) -> None:
    job = as_object(connection.call(by_name()["job_get"], {"job": arguments["job"]}).json())
    if job.get("state") == "queued":
        say(f"{rendering.job_line(job)}; its output is shown as it comes")


def _offset(headers: Mapping[str, str], name: str) -> int:
    text = next((value for key, value in headers.items() if key.lower() == f"x-jobd-{name}"), "0")
    return int(text)


def _write(body: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
