"""`job adopt`: a process that runs already becomes a job."""

from __future__ import annotations

import os
from pathlib import Path

import click

from broker.places import machine_identity
from broker.wire.adoptions import SAID
from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.operation_command import JSON_FLAG, bare_words, json_flag, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Schema

_LONGEST_NAME = 200
_HELP = (
    "Make PID, which runs already, a job: its end, its limits from now on, and its output where that goes to a file. "
    "PID is of this machine; or of another, with --worker. What it takes is reserved; cancelling the job stops it and all below it. "
    "It is never run again, whatever becomes of it."
)


def adopt_command() -> click.Command:
    operation, submit = by_name()["job_adopt"], by_name()["job_submit"]

    def call(**values: object) -> None:
        pid, worker = values["pid"], values["worker"]
        assert isinstance(pid, int), "click has made it one"
        spec = {name: value for name, value in arguments_of(submit, values).items() if name in SAID}
        said: Schema = {"pid": pid, **({"worker": worker} if isinstance(worker, str) else {})}
        start = _start_of(pid)
        if start is not None:
            said |= {"start": f"{machine_identity()}:{start}"}
            spec = {"name": _name_of(pid), **spec}
        elif worker is None:
            raise Failure(f"there is no process {pid} here", hint="--worker names the one whose machine has it")
        answer = connect(os.environ, start=True).call(operation, {**said, "spec": spec})
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.submitted(answer.json()))

    return click.Command(
        "adopt",
        callback=call,
        params=[
            bare_words(operation, "pid"),
            *options_of(operation, without=["pid", "spec", "start"]),
            *options_of(submit, without=set(submit.fields) - SAID),
            json_flag(),
        ],
        help=_HELP,
        short_help="Make a process that runs already a job.",
    )


def _start_of(pid: int) -> int | None:
    """What tells it from a later process with its id; None: it is not here, or this system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19])


def _name_of(pid: int) -> str:
    """What it was started as, so that it is known in a list."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ").split()
    except OSError:
        words = []
    return " ".join(words)[:_LONGEST_NAME] or f"process {pid}"
