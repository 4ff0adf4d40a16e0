"""`up`, `down`, `broker`, `worker`: the programs of this machine, in the background and in the foreground."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import click

from jobd_mcp import local
from jobd_mcp.cli import starting
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.live_line import telling
from jobd_mcp.cli.operation_command import JSON_FLAG
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import as_object

# A secret on a command line is shown to everybody by ps.
_NOT_ON_A_COMMAND_LINE = frozenset({"token"})
_MODULES: Mapping[str, str] = {"broker": "jobd_mcp.daemon", "worker": "worker"}


def up_command() -> click.Command:
    def call(as_json: bool) -> None:
        before = local.find(local.here(os.environ))
        found = starting.start(os.environ)
        at = local.here(os.environ)
        started = before is None or before.pid != found.pid
        if as_json:
            answer = {"started": started, "pid": found.pid, "version": found.version, "url": at.url}
            click.echo(json.dumps(answer))
            return
        word = "is up" if before is None else f"took over from version {before.version}" if started else "runs already"
        click.echo(f"the broker {word}: process {found.pid}, version {found.version}, {at.url}")

    return click.Command(
        "up",
        callback=call,
        params=[_json_flag()],
        help="Start this user's broker and one worker in the background. A repeat changes nothing and exits 0.",
        short_help="Start the broker and one worker in the background.",
    )


def down_command() -> click.Command:
    def call(keep_jobs: bool, stop_jobs: bool, as_json: bool) -> None:
        if keep_jobs and stop_jobs:
            raise Failure("--keep-jobs and --stop-jobs exclude each other")
        jobs: Literal["refuse", "keep", "stop"] = "keep" if keep_jobs else "stop" if stop_jobs else "refuse"
        with telling(_running):
            stopped = local.down(os.environ, jobs)
        if as_json:
            click.echo(json.dumps({"stopped": stopped}))
        else:
            click.echo("the broker is down" if stopped else "no broker was running")

    return click.Command(
        "down",
        callback=call,
        params=[
            click.Option(
                ["--keep-jobs"], is_flag=True, help="Leave running jobs to their shims; job up takes them up again."
            ),
            click.Option(["--stop-jobs"], is_flag=True, help="Stop running jobs first."),
            _json_flag(),
        ],
        help="Stop this user's broker and its worker. Refuses, and lists them, if jobs are running.",
        short_help="Stop the broker and its worker.",
    )


def _running() -> str:
    counts = as_object(as_object(connect(os.environ).call(by_name()["job_list"], {"limit": 1}).json()).get("counts"))
    told = [f"{counts[state]} {state}" for state in ("running", "assigned") if counts.get(state)]
    return f"stopping; {', '.join(told) or 'no job runs'}"


def broker_command() -> click.Command:
    from broker.wire.settings import BrokerSettings

    def call(**values: object) -> None:
        _become("broker", {**os.environ, **_settings(values)})

    return click.Command(
        "broker",
        callback=call,
        params=_settings_options(BrokerSettings),
        help=(
            "Run a broker in the foreground, without a worker: for service managers and containers. Every option is a "
            "setting, and can stand in the environment or in jobd.toml as well."
        ),
        short_help="Run a broker in the foreground.",
    )


def worker_command() -> click.Command:
    from broker.wire.settings import WorkerSettings

    def call(join: str | None, token_file: Path | None, **values: object) -> None:
        environ = {**os.environ, **_settings(values)}
        if join is not None:
            environ["JOBD_URL"] = join
        if token_file is not None:
            environ["JOBD_TOKEN"] = _token_in(token_file)
        _become("worker", environ)

    return click.Command(
        "worker",
        callback=call,
        params=[
            click.Option(
                ["--join"], metavar="URL", help="The broker to work for. Default: JOBD_URL, else this user's own."
            ),
            click.Option(
                ["--token-file"], type=click.Path(path_type=Path), help="File with the token. Default: JOBD_TOKEN."
            ),
            *_settings_options(WorkerSettings, without={"url"}),
        ],
        help=(
            "Run a worker in the foreground: for service managers, containers and other machines. Jobs outlive it: the "
            "next worker on the same state directory takes them up again."
        ),
        short_help="Run a worker in the foreground.",
    )


def demo_command() -> click.Command:
    def call(directory: Path | None) -> None:
        import tempfile

        from jobd_mcp.demo import DemoFailed, main

        with tempfile.TemporaryDirectory(prefix="jobd-demo-") as scratch:
            try:
                main(directory or Path(scratch) / "demo")
            except DemoFailed as failure:
                raise Failure(f"the demonstration failed: {failure}") from None

    return click.Command(
        "demo",
        callback=call,
        params=[
            click.Option(
                ["--directory"],
                type=click.Path(path_type=Path),
                help="Keep everything there meanwhile; it must not exist. Default: a temporary one.",
            )
        ],
        help=(
            "Show the main job on this machine: a broker, two workers and an agent's client; then the machine of one "
            "worker dies, and the other one finishes its job. Ends by itself and leaves nothing behind."
        ),
        short_help="Show what it does: a machine dies, its job goes on.",
    )


def _settings_options(model: type, without: set[str] | None = None) -> list[click.Parameter]:
    """One option for each setting: `--lease-s 5` is JOBD_LEASE_S=5. Parsed where every setting is parsed."""
    from broker.wire.settings import Settings

    assert issubclass(model, Settings)
    left_out = _NOT_ON_A_COMMAND_LINE | (without or set())
    return [
        click.Option([f"--{name.replace('_', '-')}", name], metavar="VALUE", default=None, help=field.description)
        for name, field in model.model_fields.items()
        if name not in left_out
    ]


def _settings(values: Mapping[str, object]) -> dict[str, str]:
    return {f"JOBD_{name.upper()}": str(value) for name, value in values.items() if value is not None}


def _token_in(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{file} can't be read as a token: {error}") from None
    if not token:
        raise Failure(f"{file} is empty", hint="job token create --scope worker makes a token")
    return token


def _become(part: Literal["broker", "worker"], environ: Mapping[str, str]) -> None:
    """Replace this process: signals and exit codes are the program's own. `-I`: no module of the user's shadows ours."""
    sys.stdout.flush()
    arguments = [sys.executable, "-I", "-m", _MODULES[part], "jobd", part]
    os.execve(sys.executable, arguments, dict(environ))


def _json_flag() -> click.Option:
    return click.Option(["--json", JSON_FLAG], is_flag=True, help="Print the outcome as JSON.")
