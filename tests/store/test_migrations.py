"""From any older schema to the present one, once, whole, and by one program only."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from broker.store import migrate, statements
from broker.store.contract import StoreUnusable
from broker.store.migrate import Migration
from broker.wire.states import AssignmentState, JobState

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


@pytest.mark.trial("B107")
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


@pytest.mark.trial("B107")
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


@pytest.mark.trial("B107")
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


BEFORE_STOPS = """
INSERT INTO specs (id, json) VALUES (1, '{"command": "true"}');
INSERT INTO shapes (id, key) VALUES (1, '[1,[],null,"default"]');
INSERT INTO jobs (id, state, spec, shape, project, command, priority, cpus, place, policy, grace_s, actor, attempt,
  assignment, created_at, queued_at, started_at, ended_at, cascaded_by, name, array_id, array_index)
VALUES
  (3, 'completed', 1, 1, 'default', 'true', 0, 1, '', 'requeue', 10, 'ann', 1, 5, 1, 1, 2, 3, NULL, 'n', 3, 0),
  (4, 'cancelled', 1, 1, 'default', 'true', 0, 1, '', 'requeue', 10, 'ann', 0, NULL, 1, 1, NULL, 3, 3, NULL, NULL, NULL),
  (5, 'queued', 1, 1, 'default', 'true', 7, 1, '', 'orphan', 10, 'ann', 0, NULL, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL),
  (9, 'queued', 1, 1, 'default', 'true', 0, 1, '', 'requeue', 10, 'ann', 0, NULL, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL);
DELETE FROM jobs WHERE id = 9;
INSERT INTO lines (shape, place, priority, head) VALUES (1, '', 7, 5);
INSERT INTO dependencies (child, parent) VALUES (4, 3), (5, 3);
INSERT INTO assignments (id, job, attempt, worker, worker_name, epoch, state, token, lease_until, answer, cpus, reserved,
  created_at, ended_at, exit_code, dropped)
VALUES (5, 3, 1, 'w', 'w1', 1, 'succeeded', 't', 9, 1, 1, 0, 1, 3, 0, 12);
"""


def _of_today(number: int) -> list[Migration]:
    return migrate.load()[: number + 1]


def test_a_database_of_before_the_limits_keeps_all_it_has_and_takes_the_new_states(tmp_path: Path) -> None:
    with database(tmp_path / "d") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        migrate.migrate(connection, _of_today(5))
        connection.executescript(BEFORE_STOPS)
        tables_before = {
            name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in ("jobs", "assignments")
        }
        names = {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            for name in ("jobs", "assignments")
        }

        migrate.migrate(connection, _of_today(6))

        for name, rows in tables_before.items():
            assert connection.execute(f"SELECT {', '.join(names[name])} FROM {name}").fetchall() == rows
        assert connection.execute("SELECT count(*) FROM dependencies").fetchone() == (2,)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        columns = "spec, shape, project, command, priority, cpus, place, policy, grace_s, actor, created_at, queued_at"
        new = connection.execute(
            f"INSERT INTO jobs (state, {columns}) SELECT 'queued', {columns} FROM jobs WHERE id = 5 RETURNING id"
        ).fetchone()
        assert new == (10,)  # 9 was used once
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("DELETE FROM jobs WHERE id = 3")


def test_a_database_of_before_retention_keeps_its_output_and_knows_which_jobs_have_an_environment(
    tmp_path: Path,
) -> None:
    with database(tmp_path / "d") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        migrate.migrate(connection, _of_today(7))
        connection.executescript(BEFORE_STOPS)
        connection.execute("INSERT INTO specs (id, json) VALUES (2, ?)", ('{"command": "true", "env": {"A": "1"}}',))
        connection.execute("UPDATE jobs SET spec = 2 WHERE id = 3")

        migrate.migrate(connection, _of_today(8))

        kept = connection.execute("SELECT id, logs_kept, env_kept FROM jobs ORDER BY id").fetchall()
        assert kept == [(3, 1, 1), (4, 1, 0), (5, 1, 0)]
        assert connection.execute("SELECT * FROM dependencies").fetchall() == [(4, 3, None), (5, 3, None)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO dependencies (child, parent) VALUES (99, 3)")


def test_a_database_of_before_placement_knows_its_devices_and_reserves_none(tmp_path: Path) -> None:
    with database(tmp_path / "d") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        migrate.migrate(connection, _of_today(8))
        connection.executescript(BEFORE_STOPS)
        columns = "id, name, online, epoch, machine, host, version, slots, tags, supervision, registered_at, last_seen_at, lease_until"
        for name in ("with", "without"):
            values = f"'{name}', '{name}', 1, 1, 'm', 'h', '0', 4, '[]', '[]', 1, 1, 1"
            connection.execute(f"INSERT INTO workers ({columns}) VALUES ({values})")
        facts = '{"gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}'
        connection.execute("INSERT INTO facts VALUES ('with', 1, 1, 1, ?), ('without', 1, 1, 1, '{}')", (facts,))

        migrate.migrate(connection, _of_today(9))

        found = connection.execute("SELECT id, gpus, resources FROM workers ORDER BY id").fetchall()
        assert found == [("with", 2, "{}"), ("without", 0, "{}")]
        assert connection.execute("SELECT given FROM assignments").fetchall() == [(None,)]


@pytest.mark.parametrize("state", JobState)
def test_every_state_of_a_job_can_be_kept_and_ends_with_a_time_or_without(tmp_path: Path, state: JobState) -> None:
    over = state not in (JobState.QUEUED, JobState.ASSIGNED, JobState.RUNNING)
    with database(tmp_path / "d") as connection:
        migrate.migrate(connection, migrate.load())
        connection.executescript(BEFORE_STOPS)
        change = "UPDATE jobs SET state = ?, ended_at = ? WHERE id = 5"
        connection.execute(change, (state.value, 8 if over else None))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(change, (state.value, None if over else 8))


@pytest.mark.parametrize("state", AssignmentState)
def test_every_state_of_an_assignment_can_be_kept(tmp_path: Path, state: AssignmentState) -> None:
    with database(tmp_path / "d") as connection:
        migrate.migrate(connection, migrate.load())
        connection.executescript(BEFORE_STOPS)
        connection.execute("UPDATE assignments SET state = ?", (state.value,))


def test_a_step_that_leaves_a_row_without_its_reference_is_refused_whole(tmp_path: Path) -> None:
    bad = [
        META,
        Migration(1, "0001_a.sql", "CREATE TABLE a (x INTEGER PRIMARY KEY);\nCREATE TABLE b (x REFERENCES a);"),
    ]
    worse = Migration(2, "0002_b.sql", "INSERT INTO b VALUES (7);")
    with database(tmp_path / "d") as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        migrate.migrate(connection, bad)
        with pytest.raises(StoreUnusable, match="a row of b refers to a row of a"):
            migrate.migrate(connection, [*bad, worse])
        assert connection.execute("SELECT * FROM b").fetchall() == []
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


@pytest.mark.parametrize(("name", "index"), [("walls_over", "assignments_walls"), ("schedules_over", "jobs_schedule")])
def test_what_is_looked_for_again_and_again_is_found_by_an_index(tmp_path: Path, name: str, index: str) -> None:
    with database(tmp_path / "d") as connection:
        migrate.migrate(connection, migrate.load())
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statements.load().sql(name)}", {"listened": 1, "limit": 1})
        [step] = [row[3] for row in plan]

    assert step.startswith("SEARCH") and index in step
