"""`job lease`: devices of this machine for a command that is no job."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from pathlib import Path

import click

from broker.places import machine_identity
from jobd_mcp import local
from jobd_mcp.cli.connection import Connection, connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.jobs import BEHIND_DASHES
from jobd_mcp.cli.leasing import Holding, exports, leaving, run, why_over
from jobd_mcp.cli.logs import say
from jobd_mcp.cli.operation_command import JSON_FLAG, Shape, json_flag, operation_command, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_object

WORKER_COMES_S = 15.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_HELP = (
    "Run COMMAND here once this machine has the devices, memory and slots for it, queued fairly with jobs: "
    "`job lease --vram-gb 10 -- pytest`. It sees the devices in CUDA_VISIBLE_DEVICES. The lease is renewed while it lives, "
    "and given back when it ends; exits with its code. If the lease is lost, COMMAND gets TERM, then KILL, and 125 is the "
    'code. Without COMMAND: prints export lines, as for `eval "$(job lease --vram-gb 10 --ttl 20m --pid $$)"`; then '
    "renew it yourself (job lease renew ID), and release it (job lease release ID)."
)


class Duration(click.ParamType[float]):
    """Seconds, or a number with s, m, h or d: 90s, 20m, 2h."""

    name = "DURATION"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", value.strip())
        if match is None:
            self.fail(f"{value!r} is no duration: 90s, 20m, 2h, or seconds", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class LeaseCommand(click.Group):
    """Bare words name one of its commands; a program stands behind `--`, which click forgets."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, behind = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, None)
        if behind == []:
            raise click.UsageError("nothing stands behind --", ctx)
        ctx.meta[BEHIND_DASHES] = behind
        return super().parse_args(ctx, before)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"{args[0]!r} is none of {', '.join(self.commands)}; a program stands behind --", ctx)


def lease_command() -> click.Command:
    operation = by_name()["lease_request"]

    @click.pass_context
    def call(ctx: click.Context, /, **values: object) -> int | None:
        if ctx.invoked_subcommand is not None:
            return None
        asked = arguments_of(operation, values)
        pid, behind = values["pid"], ctx.meta[BEHIND_DASHES]
        if behind and pid is not None:
            raise Failure("--pid is for a lease without a command", hint="with one, its own memory counts")
        if behind and values[JSON_FLAG] is True:
            raise Failure("--json is for a lease without a command", hint="with one, stdout is the command's")
        grace = asked.get("grace_s")
        ttl_s = values["ttl"]
        assert isinstance(ttl_s, float), "click has made it one"
        said: Schema = {**asked, "ttl_s": ttl_s, "machine": machine_identity()}
        if behind:
            said |= {"what": shlex.join(behind)[:4000], **_lessee(os.getpid())}
            return _with_command(said, behind, grace if isinstance(grace, int | float) else None)
        said |= _lessee(pid) if isinstance(pid, int) else {}
        return _for_a_shell(said, as_json=values[JSON_FLAG] is True)

    group = LeaseCommand(
        "lease",
        callback=call,
        params=[
            *options_of(operation, without=["machine", "lessee", "what", "ttl_s"]),
            click.Option(
                ["--ttl"], type=Duration(), default="20m", show_default=True, help="Ends when not renewed for so long."
            ),
            click.Option(["--pid"], type=click.INT, help="Without COMMAND: the process whose memory is the lease's."),
            json_flag(),
        ],
        invoke_without_command=True,
        help=_HELP,
        short_help="Run a command that is no job on devices of this machine.",
        subcommand_metavar="[-- COMMAND ARGS… | renew ID | release ID]",
    )
    group.add_command(operation_command("renew", Shape("lease_renew", _lines, bare="job")))
    group.add_command(operation_command("release", Shape("lease_release", _lines, bare="job")))
    return group


def _with_command(said: Schema, words: list[str], grace_s: float | None) -> int:
    with leaving():
        holding = _requested(said)
        try:
            lease = holding.granted()
            say(_granted(lease))
            return run(holding, words, os.environ, grace_s)
        finally:
            holding.close()


def _for_a_shell(said: Schema, *, as_json: bool) -> int:
    with leaving():
        holding = _requested(said)
        kept = False
        try:
            holding.granted()
            holding.renew()  # what follows has the whole time
            show(json.dumps(holding.lease).encode(), as_json, lambda: exports(holding.lease))
            say(_granted(holding.lease) + f", ends in {holding.lease.get('ttl_s'):g} s unless renewed")
            kept = True
        finally:
            holding.stay() if kept else holding.close()
    return 0


def _requested(said: Schema) -> Holding:
    started = local.setting(os.environ, "url") is None and local.find(local.here(os.environ)) is None
    connection = connect(os.environ, start=True)
    holding = Holding(connection, _first_answer(connection, said, WORKER_COMES_S if started else 0.0))
    holding.keep()
    return holding


def _first_answer(connection: Connection, said: Schema, patience_s: float) -> Schema:
    """A broker that was only just started has its worker in a moment."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return as_object(connection.call(by_name()["lease_request"], said).json())
        except Failure as failure:
            if failure.code != "unknown_worker" or time.monotonic() > until:
                raise
        time.sleep(0.2)


def _lessee(pid: int) -> Schema:
    """Who this process is; nothing where the system does not say when it started. Raises Failure for one that is not there."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        if pid == os.getpid():
            return {}
        raise Failure(f"there is no process {pid} here") from None
    return {"lessee": {"pid": pid, "start": int(fields[19])}}


def _granted(lease: Schema) -> str:
    return f"lease {lease['job']} on {lease.get('worker')}: {', '.join(map(str, _devices(lease))) or 'no device'}"


def _devices(lease: Schema) -> list[Json]:
    found = lease.get("gpus")
    return found if isinstance(found, list) else []


def _lines(answer: Json) -> list[str]:
    lease = as_object(answer)
    if lease.get("state") in ("waiting", "granted"):
        return [f"lease {lease['job']} is {lease['state']}, and ends in {lease.get('expires_in_s')} s unless renewed"]
    return [f"lease {lease['job']} is {lease['state']}: {why_over(lease)}"]
