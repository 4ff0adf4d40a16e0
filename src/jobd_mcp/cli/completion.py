"""`job completion SHELL`: the script that a shell reads to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jobd_mcp.cli.commands import job
from jobd_mcp.cli.failure import Failure

VARIABLE = "_JOB_COMPLETE"
_WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/job.fish"}


def completion_command() -> click.Command:
    def call(shell: str) -> None:
        made = get_completion_class(shell)
        if made is None:
            raise Failure(f"no completion for {shell}")
        click.echo(made(job, {}, "job", VARIABLE).source())

    lines = "\n\n".join(
        f'{shell}: add `eval "$(job completion {shell})"` to {where}' for shell, where in _WHERE.items()
    )
    return click.Command(
        "completion",
        callback=call,
        params=[click.Argument(["shell"], type=click.Choice(sorted(_WHERE)))],
        help=f"Print the completion script of a shell.\n\n{lines}",
        short_help="Print the completion script of a shell.",
    )
