"""From any older schema to the present one, once, whole, and by one program only."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from broker.store import migrate
from broker.store.contract import StoreUnusable
from broker.store.migrate import Migration

META = migrate.load()[0]
STARTER = """
import asyncio, sys
from pathlib import Path
from broker.store.sqlite import open_sqlite

async def main():
    store = await open_sqlite(Path(sys.argv[1]), clock_ms=lambda: 1)
    print((await store.read(lambda tx: tx.one("get_meta", key="schema")))["value"], flush=True)
    sys.stdin.read()
    await store.close()

asyncio.run(main())
"""


@contextlib.contextmanager
def database(path: Path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_missing_steps_are_applied_in_order_and_only_once(tmp_path: Path) -> None:
    steps = [
        META,
        Migration(1, "0001_a.sql", "CREATE TABLE a (x);\nINSERT INTO a VALUES (1);"),
        Migration(2, "0002_b.sql", "UPDATE a SET x = x + 1;"),
    ]
    with database(tmp_path / "d") as connection:
        assert migrate.migrate(connection, steps[:2]) == 1
        assert migrate.migrate(connection, steps) == 2
        assert migrate.migrate(connection, steps) == 2
        assert connection.execute("SELECT x FROM a").fetchall() == [(2,)]


def test_a_step_that_fails_leaves_what_was_there_before(tmp_path: Path) -> None:
    broken = [META, Migration(1, "0001_a.sql", "CREATE TABLE a (x);\nINSERT INTO nowhere VALUES (1);")]
    with database(tmp_path / "d") as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate.migrate(connection, broken)
        assert not connection.in_transaction
        assert tables(connection) == set()
        assert migrate.migrate(connection, broken[:1]) == 0


def test_a_trigger_is_one_statement_and_comments_are_none(tmp_path: Path) -> None:
    text = "CREATE TABLE a (x); -- first;\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n  UPDATE a SET x = 2;\n  UPDATE a SET x = x + 5;\nEND;\nINSERT INTO a VALUES (1);\n-- the end;\n"
    with database(tmp_path / "d") as connection:
        migrate.migrate(connection, [META, Migration(1, "0001_a.sql", text)])
        assert connection.execute("SELECT x FROM a").fetchall() == [(7,)]


def test_a_step_cut_off_in_mid_statement_is_refused(tmp_path: Path) -> None:
    with database(tmp_path / "d") as connection:
        with pytest.raises(StoreUnusable, match="middle of a statement"):
            migrate.migrate(connection, [META, Migration(1, "0001_a.sql", "CREATE TABLE a (x);\nCREATE TABLE b (")])
        assert tables(connection) == set()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    with database(tmp_path / "d") as connection:
        migrate.migrate(connection, [META, Migration(1, "0001_a.sql", "CREATE TABLE a (x);")])
        with pytest.raises(StoreUnusable, match=r"schema 1 and this program knows 0.*newer version"):
            migrate.migrate(connection, [META])
        assert tables(connection) == {"meta", "a"}


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with database(tmp_path / "d") as connection:
        connection.execute("CREATE TABLE theirs (x)")
        with pytest.raises(StoreUnusable, match="other program"):
            migrate.migrate(connection, [META])
        assert tables(connection) == {"theirs"}


def test_a_gap_in_the_numbers_is_refused(tmp_path: Path) -> None:
    for name in ("0000_a.sql", "0002_c.sql"):
        (tmp_path / name).write_text("")
    with pytest.raises(StoreUnusable, match="0001"):
        migrate.load(tmp_path)


def test_four_programs_that_start_at_once_agree_on_one_schema(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path / "jobd.db")]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = []
    for process in started:
        assert process.stdout is not None
        said.append(process.stdout.readline().strip())
    for process in started:
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert said == [str(len(migrate.load()) - 1)] * 4
