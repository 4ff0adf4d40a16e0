"""The command tree. Which words a command has is derived from its operation; what is written by hand is how
its answer reads, which values stand as bare words, and the commands that are more than one operation."""

from __future__ import annotations

from importlib import import_module

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.operation_command import Shape, operation_command
from jobd_mcp.cli.surface import by_name
from jobd_mcp.operations import Operation

SHAPES = {
    "list": Shape("job_list", rendering.job_list),
    "status": Shape("job_get", rendering.job, bare="job"),
    "explain": Shape("job_explain", rendering.explained, bare="job"),
    "cancel": Shape("job_cancel", rendering.cancelled, bare="job"),
    "preempt": Shape("job_preempt", rendering.stopped, bare="job"),
    "update": Shape("job_update", rendering.updated, bare="job"),
    "stats": Shape("job_stats", rendering.stats, bare="job"),
}
# Commands of more than one operation, or of none: the module and the function that makes each, imported when used.
WRITTEN = {
    "submit": "jobs:submit_command",
    "run": "jobs:run_command",
    "preview": "jobs:preview_command",
    "wait": "jobs:wait_command",
    "retry": "retry:retry_command",
    "graph": "graph:graph_command",
    "adopt": "adopt:adopt_command",
    "lease": "lease:lease_command",
    "logs": "logs:logs_command",
    "artifacts": "artifacts:artifacts_command",
    "events": "events:events_command",
    "top": "top:top_command",
    "workers": "workers:workers_group",
    "up": "machine:up_command",
    "down": "machine:down_command",
    "broker": "machine:broker_command",
    "worker": "machine:worker_command",
    "backup": "backup:backup_command",
    "restore": "backup:restore_command",
    "demo": "machine:demo_command",
    "doctor": "doctor:doctor_command",
    "projects": "projects:projects_group",
    "reload": "projects:reload_command",
    "token": "tokens:token_group",
    "schedule": "schedules:schedule_group",
    "completion": "completion:completion_command",
}
ORDER = (
    "submit",
    "run",
    "list",
    "status",
    "logs",
    "artifacts",
    "wait",
    "explain",
    "preview",
    "stats",
    "cancel",
    "preempt",
    "update",
    "retry",
    "graph",
    "adopt",
    "lease",
    "top",
    "workers",
    "projects",
    "events",
    "schedule",
    "token",
)
_EXPLICIT = {shape.operation for shape in SHAPES.values()} | {
    "job_submit",
    "job_adopt",
    "job_preview",
    "job_wait",
    "job_retry",
    "job_logs",
    "job_events",
    "worker_list",
    "worker_update",
}


class Commands(click.Group):
    """Commands made when they are asked for: `job list` builds no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        rest = [name for name in (*SHAPES, *_derived(), *WRITTEN) if name not in ORDER]
        return [*ORDER, *rest]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SHAPES:
            return operation_command(cmd_name, SHAPES[cmd_name])
        if cmd_name in WRITTEN:
            module, _, function = WRITTEN[cmd_name].partition(":")
            made: click.Command = getattr(import_module(f"jobd_mcp.cli.{module}"), function)()
            return made
        operation = _derived().get(cmd_name)
        return (
            operation_command(cmd_name, Shape(operation.name, rendering.job, _only_path(operation)))
            if operation
            else None
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{suggestion}", ctx) from None


def _derived() -> dict[str, Operation]:
    """Tools that nothing here names: each is a command by itself, `job_retry` as `retry`."""
    named = {op.name.removeprefix("job_").replace("_", "-"): op for op in by_name().values() if op.tool}
    return {name: op for name, op in named.items() if op.name not in _EXPLICIT and name not in (*SHAPES, *WRITTEN)}


def _only_path(operation: Operation) -> str | None:
    return next(iter(operation.in_path)) if len(operation.in_path) == 1 else None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="jobd-mcp", message="jobd-mcp %(version)s")
def job() -> None:
    """Run long work on your own machines and look after it.

    The broker is this user's own (job up), or the one that JOBD_URL names. `submit` and `run` start this
    user's broker and one worker if none runs; every other command only says so.
    """
