"""SQL is prose: every statement is named, explained, sound against the schema, and used."""

from __future__ import annotations

import ast
import contextlib
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import broker
from broker.store import migrate, statements
from broker.store.statements import StatementError, parse

SOURCE = Path(broker.__file__).parent
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
CALLS = {"one", "all", "run", "insert", "run_many"}


class Unbound(dict[str, None]):
    """Any parameter, as NULL."""

    def __missing__(self, key: str) -> None:
        return None


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for file in SOURCE.rglob("*.py"):
        yield file, ast.parse(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Call:
    """A statement that is run. Several names where the call, or a variable just before it, chooses."""

    where: str
    names: set[str]
    parameters: set[str] | None


def calls_on_a_transaction() -> Iterator[Call]:
    for file, tree in trees():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            choices = {
                target.id: strings(node.value)
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="tx"), attr=attr), args=[name, *_]) if (
                        attr in CALLS
                    ):
                        names = choices.get(name.id, set()) if isinstance(name, ast.Name) else strings(name)
                        given = {keyword.arg for keyword in node.keywords if keyword.arg}
                        whole = attr != "run_many" and len(given) == len(node.keywords)
                        yield Call(f"{file.relative_to(SOURCE)}:{node.lineno}", names, given if whole else None)


def strings(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("statement", statements.load().values(), ids=lambda statement: statement.name)
def test_every_statement_is_sound_against_the_schema(statement: statements.Statement) -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate.migrate(connection, migrate.load())
        connection.execute(f"EXPLAIN {statement.sql}", Unbound()).fetchall()


def test_every_name_that_is_used_exists() -> None:
    names = statements.load()
    unknown = [f"{call.where}: {name}" for call in calls_on_a_transaction() for name in call.names if name not in names]
    assert unknown == []


def test_every_call_says_its_name_on_the_spot() -> None:
    assert [call.where for call in calls_on_a_transaction() if not call.names] == []


def test_every_call_gives_what_its_statement_asks_for_and_no_more() -> None:
    names = statements.load()
    wrong = [
        f"{call.where}: {sorted(call.parameters)} for {sorted(asked)}"
        for call in calls_on_a_transaction()
        if call.parameters is not None and call.names <= set(names)
        for asked in [set().union(*(PARAMETER.findall(names[name].sql) for name in call.names))]
        if asked != call.parameters
    ]
    assert wrong == []


def test_every_statement_is_used() -> None:
    used = set().union(*(strings(tree) for _, tree in trees()))
    assert sorted(set(statements.load()) - used) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-- name: a\nSELECT 1;", "say in a comment"),
        ("-- name: a\n-- Why.\n", "no statement"),
        ("-- name: A-b\n-- Why.\nSELECT 1;", "lower case"),
        ("SELECT 1;", "without a `-- name:`"),
    ],
)
def test_a_statement_without_name_reason_or_text_is_refused(text: str, said: str) -> None:
    with pytest.raises(StatementError, match=said):
        parse(text, "file.sql")


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    for file in ("a.sql", "b.sql"):
        (tmp_path / file).write_text("-- name: same\n-- Why.\nSELECT 1;\n")
    with pytest.raises(StatementError, match=r"same stands in a\.sql and in b\.sql"):
        statements.load(tmp_path)


def test_a_statement_keeps_its_comment_and_its_lines() -> None:
    (statement,) = parse(
        "-- About this file.\n\n-- name: a\n-- Why it is\n-- there.\nSELECT 1\nFROM x -- all;\n;\n", "f.sql"
    )
    assert (statement.purpose, statement.sql) == ("Why it is there.", "SELECT 1\nFROM x -- all;")
