"""`submit`, `run` and `wait`: what a shell needs beyond one operation each."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from jobd_mcp.cli import asking, colours, many, rendering
from jobd_mcp.cli.asking import Asked
from jobd_mcp.cli.connection import Answer, Connection, connect
from jobd_mcp.cli.failure import OWN_FAILURE, Failure
from jobd_mcp.cli.live_line import telling
from jobd_mcp.cli.logs import say
from jobd_mcp.cli.operation_command import JSON_FLAG, bare_words, json_flag, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.output import Sink, copy
from jobd_mcp.cli.standing import standing
from jobd_mcp.cli.surface import by_name
from jobd_mcp.cli.waiting import Waiter
from jobd_mcp.schemas import Json, Schema, as_list, as_object

BEHIND_DASHES = "jobd.behind_dashes"


class ProgramCommand(click.Command):
    """A command whose bare words are a program. Keeps apart what stands behind `--`, which click forgets."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, behind = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, None)
        ctx.meta[BEHIND_DASHES] = behind
        return super().parse_args(ctx, before)


def submit_command() -> click.Command:
    operation = by_name()["job_submit"]

    @click.pass_context
    def call(ctx: click.Context, /, **values: object) -> int:
        as_json = values[JSON_FLAG] is True
        asked = _asked(ctx, values)
        connection = connect(os.environ, start=True)
        if not asked.source.alone:
            return _submit_many(asked, connection, values, as_json=as_json)
        spec = _with_snapshot(_spec(asked, connection, values), connection)
        answer = _blamed(asked, lambda: connection.call(operation, spec))
        made = as_object(answer.json())
        if values["wait"] is not True:
            show(answer.body, as_json, lambda: rendering.submitted(made))
            return 0
        waiter = _waiter(connection)
        which: Schema = {"array": made["array"]} if "array" in made else {"job": [made["id"]]}
        return _waited(waiter, which, _wait(waiter, which), as_json)

    return ProgramCommand(
        "submit",
        callback=call,
        params=[
            *program_params(),
            click.Option(["--wait"], is_flag=True, help="Wait for the end, and exit with the job's code."),
            click.Option(["--stdin"], is_flag=True, help="Many jobs, all or none: a specification in JSON a line."),
            click.Option(["--file"], type=click.STRING, help="The same from a file; or TOML, YAML, JSON, a script."),
            json_flag(),
        ],
        help=f"{operation.description}\n\n{PROGRAM_HELP}",
    )


def _submit_many(asked: Asked, connection: Connection, values: dict[str, object], *, as_json: bool) -> int:
    all_of_them = asked.specs(connection, by_name()["worker_list"], os.environ, pass_env=values["no_env"] is not True)
    specs: list[Json] = [_with_snapshot(as_object(spec), connection) for spec in all_of_them]
    key = _one_key(specs)
    asking: Schema = {"jobs": specs} if key is None else {"jobs": specs, "idempotency_key": key}
    answer = _blamed(asked, lambda: connection.call(by_name()["job_submit_many"], asking))
    if values["wait"] is not True:
        made = [as_object(entry) for entry in as_list(as_object(answer.json()).get("jobs"))]
        show(answer.body, as_json, lambda: [line for one in made for line in rendering.submitted(one)])
        return 0
    which: Schema = {"job": many.ids(answer.json())}
    waiter = _waiter(connection)
    return _waited(waiter, which, _wait(waiter, which), as_json)


def _one_key(specs: list[Json]) -> Json:
    """The key that is said for all of them, taken out of each. Raises Failure if they have several."""
    said = [as_object(spec).pop("idempotency_key", None) for spec in specs]
    if any(key != said[0] for key in said):
        raise Failure("jobs that are submitted together have one idempotency_key", hint="say it as --idempotency-key")
    return said[0]


def preview_command() -> click.Command:
    operation = by_name()["job_preview"]

    @click.pass_context
    def call(ctx: click.Context, /, **values: object) -> int:
        asked = _one(_asked(ctx, values))
        connection = connect(os.environ)
        answer = connection.call(operation, {"spec": _spec(asked, connection, values)})
        found = as_object(answer.json())
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.previewed(found))
        return 0 if found.get("valid") is True else OWN_FAILURE

    return ProgramCommand(
        "preview",
        callback=call,
        params=[*program_params(), json_flag()],
        help=f"{operation.description} Takes what job submit takes; exits with 125 if that would be refused.",
        short_help="What job submit would say: errors, values, workers, when it starts.",
    )


def run_command() -> click.Command:
    @click.pass_context
    def call(ctx: click.Context, /, **values: object) -> int:
        asked = _one(_asked(ctx, values))
        connection = connect(os.environ, start=True)
        spec = _with_snapshot(_spec(asked, connection, values), connection)
        if {"count", "sweep"} & spec.keys():
            raise Failure("job run runs one job", hint="job submit --wait waits for an array")
        made = as_object(_blamed(asked, lambda: connection.call(by_name()["job_submit"], spec)).json())
        if made.get("waiting") and sys.stderr.isatty():
            say(rendering.job_line(made))  # else nothing would be seen, and nobody would know why
        return _followed(connection, made["id"])

    return ProgramCommand(
        "run",
        callback=call,
        params=program_params(),
        help=(
            "Run a program as a job, and behave like it: its output as it comes, its exit code at the end. "
            f"Ctrl-C cancels the job; a second Ctrl-C leaves it to its end.\n\n{PROGRAM_HELP}"
        ),
        short_help="Submit, follow the output, exit with the job's code.",
    )


def wait_command() -> click.Command:
    operation = by_name()["job_wait"]

    def call(**values: object) -> int:
        arguments = arguments_of(operation, values)
        limit = arguments.pop("timeout_s", None)
        waiter = _waiter(connect(os.environ))
        answer = _wait(waiter, arguments, float(limit) if isinstance(limit, int | float) else None)
        return _waited(waiter, arguments, answer, values[JSON_FLAG] is True)

    return click.Command(
        "wait",
        callback=call,
        params=[
            bare_words(operation, "job", required=False),
            *options_of(operation, without=["job", "timeout_s"]),
            click.Option(["--timeout-s"], type=click.FLOAT, help="Give up after so many seconds, with exit code 124."),
            json_flag(),
        ],
        help=(
            "Wait until jobs have ended, as long as it takes. Exits with the job's code; with several jobs the first "
            "that is not zero; 124 when the time is over, here or for the job, 130 for a job that was cancelled or preempted, "
            "125 for a failure of our own."
        ),
    )


PROGRAM_HELP = (
    "The program: `-- CMD ARGS…` runs CMD without a shell; one word is shell text, as 'make | tee log', or a file: a "
    "specification in TOML, YAML or JSON, or a script with #JOBD or #SBATCH lines. The job's "
    "directory is this one if the broker is on this machine. An active venv or conda environment is passed on if the "
    "workers are on this machine. Starts this user's broker if none runs and JOBD_URL names none."
)


def program_params() -> list[click.Parameter]:
    return [
        click.Argument(["words"], nargs=-1, metavar="['SHELL TEXT' | FILE | -- CMD ARGS…]"),
        *options_of(by_name()["job_submit"]),
        click.Option(["--no-env"], is_flag=True, help="Don't pass on the active venv or conda environment."),
        click.Option(["--strict"], is_flag=True, help="Refuse #SBATCH lines that have no equivalent."),
    ]


def _asked(ctx: click.Context, values: dict[str, object]) -> Asked:
    """What the words, the options and a file say; before any broker is asked or started."""
    words, file = values["words"], values.get("file")
    submit = by_name()["job_submit"]
    return asking.read(
        arguments_of(submit, values),
        tuple(str(word) for word in words) if isinstance(words, tuple) else (),
        ctx.meta[BEHIND_DASHES],
        submit,
        os.environ,
        file=file if isinstance(file, str) else None,
        stdin=values.get("stdin") is True,
        strict=values["strict"] is True,
    )


def _one(asked: Asked) -> Asked:
    if not asked.source.alone:
        raise Failure(f"{asked.source.name} is a list of jobs", hint="job submit takes it; here one job is meant")
    return asked


def _spec(asked: Asked, connection: Connection, values: dict[str, object]) -> Schema:
    """The one specification, with its surroundings."""
    (spec,) = asked.specs(connection, by_name()["worker_list"], os.environ, pass_env=values["no_env"] is not True)
    return as_object(spec)


def _blamed(asked: Asked, call: Callable[[], Answer]) -> Answer:
    """A refusal names the file, and the place in it."""
    try:
        return call()
    except Failure as failure:
        raise asked.source.blamed(failure) if asked.source.name else failure from None


def spec_of(ctx: click.Context, values: dict[str, object], connection: Connection) -> Schema:
    """The one specification that the words, the options and the surroundings make."""
    return _spec(_one(_asked(ctx, values)), connection, values)


def _with_snapshot(spec: Schema, connection: Connection) -> Schema:
    """The code that it is to be submitted with; a broker on this machine takes it by itself."""
    if "snapshot" not in spec or connection.on_this_machine:
        return spec
    from jobd_mcp.cli import snapshots

    return snapshots.put(spec, connection)


def _followed(connection: Connection, job: Json) -> int:
    """Copy the job's output until its end; the exit code is the job's."""
    with _cancelling(connection, job):
        copy(connection, {"job": job, "attempt": 1}, Sink(exact=True), say)
    waiter = _waiter(connection)
    which: Schema = {"job": [job]}
    answer = waiter.wait(which).json()
    code = waiter.exit_code(which, answer)
    ended = as_object(as_list(as_object(answer).get("jobs"))[0])
    if not isinstance(ended.get("exit_code"), int) or ended.get("exit_code") != code:
        say(rendering.job_line(ended))  # what its own output can't have told
    return code


ASKED_WITHIN_S = 5.0


@contextmanager
def _cancelling(connection: Connection, job: Json) -> Iterator[None]:
    """Meanwhile Ctrl-C cancels the job, and the output goes on to its end; a second Ctrl-C leaves it.

    The handler runs in the middle of anything, so it touches no buffered stream, and the call has a thread of its own.
    """

    asking = threading.Thread(target=_cancel, args=(connection, job), daemon=True)

    def cancel(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, leave)
        asking.start()

    def leave(number: int, frame: FrameType | None) -> None:
        asking.join(ASKED_WITHIN_S)  # impatience must not undo the cancel itself
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _cancel(connection: Connection, job: Json) -> None:
    os.write(2, f"job: cancelling job {rendering.text(job)}; Ctrl-C again leaves it to its end\n".encode())
    try:
        connection.call(by_name()["job_cancel"], {"job": [job], "reason": "Ctrl-C in job run"})
    except Failure as failure:
        os.write(2, "\n".join([*failure.lines(), ""]).encode())


def _waiter(connection: Connection) -> Waiter:
    known = by_name()
    return Waiter(connection, known["job_wait"], known["job_get"], known["job_list"])


def _wait(waiter: Waiter, arguments: Schema, limit_s: float | None = None) -> Answer:
    """The answer in the end. Meanwhile a terminal is told how the jobs stand, and Ctrl-C leaves them to it."""
    plain = not colours.has_blocks(sys.stderr)
    try:
        with telling(lambda: standing(waiter.connection, arguments, plain=plain)):
            return waiter.wait(arguments, limit_s)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            say("not waiting any longer; nothing was cancelled, job cancel does that")
        raise


def _waited(waiter: Waiter, arguments: Schema, answer: Answer, as_json: bool) -> int:
    show(answer.body, as_json, lambda: _lines(answer.json()))
    return waiter.exit_code(arguments, answer.json())


def _lines(waited: Json) -> list[str]:
    known = as_object(waited)
    lines = [rendering.job_line(as_object(job)) for job in as_list(known.get("jobs"))]
    pending = ", ".join(rendering.text(id_) for id_ in as_list(known.get("pending")))
    return [*lines, f"not ended: {pending}"] if pending else lines
