"""The contract of a store, on every backend: whole functions, committed in groups, told after the commit."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest

from broker.store.contract import ConstraintFailed, Row, StorageFailed, Tx
from broker.store.sqlite import LARGEST_BATCH, SqliteStore
from broker.store.statements import StatementError
from support.planted_store import AnswersBeforeItsCommit, RollsBackTheWholeGroup
from support.waiting import eventually


def add(word: str, size: int = 1) -> Callable[[Tx], int]:
    return lambda tx: tx.insert("add", word=word, bytes=size)


def words(tx: Tx) -> list[str]:
    return [row["word"] for row in tx.all("words")]


async def test_many_functions_at_once_share_few_commits(store: SqliteStore) -> None:
    ids = await asyncio.gather(*(store.run(add(f"w{n}")) for n in range(1_000)))
    assert ids == sorted(ids)
    assert await store.read(words) == [f"w{n}" for n in range(1_000)]
    assert 1_000 / LARGEST_BATCH <= store.commits <= 1_000 / LARGEST_BATCH + 3


async def fails_among_neighbours(store: SqliteStore) -> None:
    def adds_and_fails(tx: Tx) -> None:
        tx.insert("add", word="lost", bytes=1)
        raise ValueError("on purpose")

    results = await asyncio.gather(
        store.run(add("before")), store.run(adds_and_fails), store.run(add("after")), return_exceptions=True
    )
    assert isinstance(results[1], ValueError)
    assert await store.read(words) == ["before", "after"]


async def test_a_function_that_fails_undoes_its_own_changes_only(store: SqliteStore) -> None:
    await fails_among_neighbours(store)


async def test_an_error_that_takes_its_neighbours_with_it_is_seen(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db", committer=RollsBackTheWholeGroup)
    with pytest.raises((AssertionError, StorageFailed)):
        await fails_among_neighbours(store)


async def test_a_forbidden_row_may_be_caught_and_the_function_goes_on(store: SqliteStore) -> None:
    def twice(tx: Tx) -> str:
        tx.run("add", word="a", bytes=1)
        with pytest.raises(ConstraintFailed, match=r"things\.word"):
            tx.run("add", word="a", bytes=1)
        tx.run("add", word="b", bytes=1)
        return "went on"

    assert await store.run(twice) == "went on"
    assert await store.read(words) == ["a", "b"]


async def test_a_row_that_is_forbidden_at_the_commit_harms_only_its_own_function(store: SqliteStore) -> None:
    results = await asyncio.gather(
        store.run(add("a")),
        store.run(lambda tx: tx.run("add_child", word="orphan", parent=77)),
        store.run(add("b")),
        return_exceptions=True,
    )
    assert isinstance(results[1], ConstraintFailed)
    assert await store.read(words) == ["a", "b"]


@pytest.mark.parametrize("error", [StopIteration("x"), KeyboardInterrupt("x"), SystemExit(3), RecursionError("x")])
async def test_whatever_a_function_raises_the_writer_lives_on(store: SqliteStore, error: BaseException) -> None:
    def fails(tx: Tx) -> None:
        raise error

    asked = asyncio.ensure_future(store.run(fails))
    await asyncio.wait([asked])
    assert isinstance(asked.exception(), RuntimeError)
    assert await store.run(add("next")) == 1


async def test_a_cancelled_waiter_does_not_take_its_transaction_along(store: SqliteStore) -> None:
    tasks = [asyncio.create_task(store.run(add(f"w{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)
    assert await store.run(lambda tx: len(words(tx))) == 50
    assert await store.run(add("next")) == 51


@pytest.mark.trial("B103")
async def test_a_cancelled_reader_leaves_no_transaction_open(store: SqliteStore) -> None:
    for _ in range(20):
        task = asyncio.create_task(store.read(words))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await store.run(add("a"))
    assert [await store.read(words) for _ in range(4)] == [["a"]] * 4


async def listens(store: SqliteStore, database: Path) -> None:
    """Every notice stands for a row that another program can see at that moment, in the order of the rows."""
    told: list[object] = []

    def on_commit(notices: list[object]) -> None:
        with contextlib.closing(sqlite3.connect(database)) as other:
            there = {row[0] for row in other.execute("SELECT id FROM things")}
        assert set(notices) <= there
        told.extend(notices)

    failed: list[BaseException] = []

    def noting(notices: list[object]) -> None:
        try:
            on_commit(notices)
        except AssertionError as error:
            failed.append(error)

    store.listen(noting)

    def adds(word: str) -> Callable[[Tx], int]:
        def fn(tx: Tx) -> int:
            new = tx.insert("add", word=word, bytes=1)
            tx.tell(new)
            if word.endswith("7"):
                raise ValueError("on purpose")
            return new

        return fn

    results = await asyncio.gather(*(store.run(adds(f"w{n}")) for n in range(300)), return_exceptions=True)
    assert not failed
    assert told == [result for result in results if isinstance(result, int)]
    assert len(told) == 270


@pytest.mark.guarantee("G1")
async def test_notices_come_after_the_commit_in_its_order_and_never_of_what_was_undone(
    store: SqliteStore, tmp_path: Path
) -> None:
    await listens(store, tmp_path / "jobd.db")


async def test_a_store_that_tells_before_its_commit_is_seen(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db", committer=AnswersBeforeItsCommit)
    with pytest.raises(AssertionError):
        await listens(store, tmp_path / "jobd.db")


async def test_notices_come_before_the_call_returns(store: SqliteStore) -> None:
    told: list[object] = []
    store.listen(told.extend)

    def fn(tx: Tx) -> None:
        tx.tell("hello")

    await store.run(fn)
    assert told == ["hello"]


async def test_a_listener_that_fails_fails_nobody_else(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    def fails(notices: list[object]) -> None:
        raise ValueError("on purpose")

    store.listen(fails)

    def fn(tx: Tx) -> int:
        tx.tell("hello")
        return tx.insert("add", word="a", bytes=1)

    assert await store.run(fn) == 1
    assert await store.run(add("b")) == 2
    assert "listener" in caplog.text


async def test_a_reader_sees_nothing_that_is_not_committed_and_one_moment_only(store: SqliteStore) -> None:
    counts: set[int] = set()

    def add_ten(tx: Tx) -> None:
        before = len(words(tx))
        for n in range(10):
            tx.insert("add", word=f"{before + n}", bytes=1)

    def twice(tx: Tx) -> tuple[int, int]:
        first = tx.one("count")
        for _ in range(50):
            second = tx.one("count")
        assert first is not None
        assert second is not None
        return first["n"], second["n"]

    async def read_on() -> None:
        while len(counts) < 5:
            first, second = await store.read(twice)
            assert first == second
            counts.add(first)

    async def write_on() -> None:
        while len(counts) < 5:
            await store.run(add_ten)

    await asyncio.wait_for(asyncio.gather(read_on(), read_on(), write_on()), 20)
    assert all(count % 10 == 0 for count in counts)


async def test_a_reader_can_change_nothing(store: SqliteStore) -> None:
    with pytest.raises(StorageFailed, match="readonly"):
        await store.read(add("a"))
    with pytest.raises(TypeError):
        await store.read(lambda tx: tx.tell("x"))
    assert await store.read(words) == []


async def test_what_a_reader_raises_is_raised_as_it_is(store: SqliteStore) -> None:
    def fails(tx: Tx) -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await store.read(fails)
    assert await store.read(words) == []


async def test_answers_of_statements(store: SqliteStore) -> None:
    class Word(StrEnum):
        PLAIN = "plain"

    def fn(tx: Tx) -> tuple[int, int, int, Row | None]:
        first = tx.insert("add_returning", word=Word.PLAIN)
        many = tx.run_many("add", [{"word": "b", "bytes": 1}, {"word": "c", "bytes": 2}])
        assert tx.run_many("add", []) == 0
        renamed = tx.run("rename", word="b", to="x")
        assert tx.run("rename", word="nobody", to="x") == 0
        return first, many, renamed, tx.one("count")

    first, many, renamed, count = await store.run(fn)
    assert (first, many, renamed) == (1, 2, 1)
    assert count is not None
    assert (count["n"], list(count.keys())) == (3, ["n"])
    assert await store.read(words) == ["plain", "x", "c"]
    with pytest.raises(LookupError, match="3 rows"):
        await store.read(lambda tx: tx.one("words"))
    with pytest.raises(StatementError, match="nothing_of_the_kind"):
        await store.read(lambda tx: tx.one("nothing_of_the_kind"))
    with pytest.raises(sqlite3.ProgrammingError):
        await store.run(lambda tx: tx.run("rename", word="x"))


async def test_a_transaction_can_not_be_used_after_its_function(store: SqliteStore) -> None:
    for call in (store.run, store.read):
        tx = await call(lambda tx: tx)
        with pytest.raises(RuntimeError, match="over"):
            tx.all("words")


async def test_every_function_has_its_own_moment(store: SqliteStore) -> None:
    moments = await asyncio.gather(*(store.run(lambda tx: tx.now_ms) for _ in range(10)))
    assert moments == sorted(set(moments))


async def test_close_finishes_what_was_asked_for_and_refuses_the_rest(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    asked = [asyncio.create_task(store.run(add(f"w{n}"))) for n in range(600)]
    await asyncio.sleep(0)
    await store.close()
    assert [await task for task in asked] == list(range(1, 601))
    for call in (store.run, store.read):
        with pytest.raises(StorageFailed, match="closed"):
            await call(words)
    await store.close()
    assert {path.name for path in tmp_path.iterdir()} == {"jobd.db", "jobd.db-ballast"}


async def test_a_writer_that_was_cancelled_answers_whoever_waits(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    asked = [asyncio.create_task(store.run(add(f"w{n}"))) for n in range(600)]
    await asyncio.sleep(0)
    (writer,) = [task for task in asyncio.all_tasks() if task.get_name() == "store writer"]
    writer.cancel()
    done, pending = await asyncio.wait(asked, timeout=10)
    assert not pending
    assert any(isinstance(task.exception(), StorageFailed) for task in done)
    with pytest.raises(StorageFailed):
        await store.run(words)


@pytest.mark.trial("B103")
async def test_the_write_ahead_log_stays_small_and_is_emptied_when_idle(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    wal = tmp_path / "jobd.db-wal"
    for n in range(30):
        await asyncio.gather(*(store.run(add(f"{n}-{m}", 4_000)) for m in range(100)))
    assert wal.stat().st_size < 20 << 20
    await eventually(lambda: wal.stat().st_size == 0, within_s=10)
    assert (tmp_path / "jobd.db").stat().st_size > 12_000_000
