"""The command lines of docs/migrating.md are parsed; tests/e2e/test_cookbook.py runs the recipes beside it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from docs.test_pages import parse
from support.scripts import ROOT


def ours() -> Iterator[str]:
    for line in (ROOT / "docs" / "migrating.md").read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if line.startswith("|") and len(cells) == 2:
            yield from (code.replace("ID", "42") for code in re.findall(r"`(job [^`]+)`", cells[1]))


@pytest.mark.parametrize("line", sorted(set(ours())))
def test_a_command_line_of_ours_is_taken_by_the_real_parser(line: str) -> None:
    try:
        parse(shlex.split(line)[1:])
    except click.UsageError as error:
        pytest.fail(f"{line}: {error.format_message()}")


def test_there_are_command_lines() -> None:
    assert len(set(ours())) > 40
