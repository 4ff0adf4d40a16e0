"""The named statements of `sql/*.sql`. SQL is prose: one name, one sentence on what it is for, one statement.

-- name: get_meta
-- One setting of the installation.
SELECT value FROM meta WHERE key = :key;
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).with_name("sql")

_NAME = re.compile(r"^-- name:\s*(\S+)\s*$")
_LEGAL_NAME = re.compile(r"[a-z][a-z0-9_]*")


class StatementError(Exception):
    """A `.sql` file that can't be read as named statements, or a name that none of them has."""


@dataclass(frozen=True, slots=True)
class Statement:
    name: str
    purpose: str
    sql: str
    source: str


class Statements(Mapping[str, Statement]):
    """Statements by name."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        self._by_name: dict[str, Statement] = {}
        for statement in statements:
            double = self._by_name.setdefault(statement.name, statement)
            if double is not statement:
                raise StatementError(f"{statement.name} stands in {double.source} and in {statement.source}")

    def __getitem__(self, name: str) -> Statement:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def sql(self, name: str) -> str:
        """The text of a statement. Raises StatementError for an unknown name."""
        try:
            return self._by_name[name].sql
        except KeyError:
            raise StatementError(f"no statement is named {name!r}") from None


def load(directory: Path = DIRECTORY) -> Statements:
    """Every statement of every `.sql` file in `directory`."""
    files = sorted(directory.glob("*.sql"))
    return Statements(statement for file in files for statement in parse(file.read_text(encoding="utf-8"), file.name))


def parse(text: str, source: str) -> list[Statement]:
    """The statements of one file. Each needs a legal name, a comment and exactly one statement."""
    blocks: list[tuple[str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := _NAME.match(line):
            blocks.append((match[1], []))
        elif blocks:
            blocks[-1][1].append(line)
        elif line.strip() and not line.startswith("--"):
            raise StatementError(f"{source}:{number}: a statement without a `-- name:` line")
    return [_statement(name, lines, source) for name, lines in blocks]


def _statement(name: str, lines: list[str], source: str) -> Statement:
    where = f"{source}: {name}"
    if not _LEGAL_NAME.fullmatch(name):
        raise StatementError(f"{where}: a name has lower case letters, digits and _")
    comment_ends = next((at for at, line in enumerate(lines) if not line.startswith("--")), len(lines))
    purpose = " ".join(line.removeprefix("--").strip() for line in lines[:comment_ends]).strip()
    sql = "\n".join(lines[comment_ends:]).strip().removesuffix(";").rstrip()
    if not purpose:
        raise StatementError(f"{where}: say in a comment what it is for")
    if not sql:
        raise StatementError(f"{where}: there is no statement")
    return Statement(name, purpose, sql, source)
