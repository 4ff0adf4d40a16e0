"""`job backup` and `job restore`: of the database on this machine, with its broker or without."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

_AGAIN = "Nothing is changed unless all of it can be done."


def backup_command() -> click.Command:
    def call(file: Path, as_json: bool) -> None:
        _become("backup", file, ["--json"] if as_json else [])

    return click.Command(
        "backup",
        callback=call,
        params=[_file(), _json_flag()],
        help=(
            "Copy this machine's database to FILE, as it stands in one moment; jobs and broker go on meanwhile. It has "
            "all but output. FILE must not exist, and only you can read it."
        ),
        short_help="Copy the database, while jobs run.",
    )


def restore_command() -> click.Command:
    def call(file: Path, force: bool, as_json: bool) -> None:
        _become("restore", file, [*(["--force"] if force else []), *(["--json"] if as_json else [])])

    return click.Command(
        "restore",
        callback=call,
        params=[
            _file(),
            click.Option(
                ["--force"], is_flag=True, help="Put it in the place of a database that exists, and keep that."
            ),
            _json_flag(),
        ],
        help=(
            "Put a backup in the place of this machine's database. The broker must be down. What was there is kept; ids "
            f"go on above all that were ever given. {_AGAIN}"
        ),
        short_help="Put a backup in the database's place.",
    )


def _file() -> click.Argument:
    return click.Argument(["file"], type=click.Path(path_type=Path, dir_okay=False))


def _json_flag() -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, help="Print the outcome as JSON.")


def _become(what: str, file: Path, flags: list[str]) -> None:
    """Replace this process, as with `job broker`: its exit code is ours."""
    sys.stdout.flush()
    arguments = [sys.executable, "-I", "-m", "broker.backup", "jobd", what, str(file.absolute()), *flags]
    os.execve(sys.executable, arguments, dict(os.environ))
