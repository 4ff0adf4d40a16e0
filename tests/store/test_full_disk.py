"""A full disk: who is refused, who still gets through, and that nobody has to restart anything."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.store.contract import StorageFailed, StorageFull, Tx
from broker.store.sqlite import SqliteStore
from support.planted_store import ForgetsThatSqliteGaveUp, HasNoReserve


def add(word: str, size: int = 1) -> Callable[[Tx], int]:
    return lambda tx: tx.insert("add", word=word, bytes=size)


def words(tx: Tx) -> list[str]:
    return [row["word"] for row in tx.all("words")]


def fill(disk: Path) -> Path:
    """Leave no room at all."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


async def one_is_too_large(store: SqliteStore) -> None:
    asked = [
        store.run(add("a")),
        store.run(add("big", 20_000_000)),
        store.run(add("b"), admits=True),
        store.run(add("c")),
    ]
    results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
    assert [type(result) for result in results] == [int, StorageFull, int, int]
    assert await store.read(words) == ["a", "b", "c"]
    await store.run(add("next"), admits=True)


@pytest.mark.guarantee("G18")
async def test_an_oversized_write_in_a_group_harms_only_itself(open_store, small_disk: Path) -> None:
    store = await open_store(small_disk / "jobd.db")
    await one_is_too_large(store)
    assert (small_disk / "jobd.db-ballast").exists()


async def test_the_same_without_a_file_system_of_its_own(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    await store.run(lambda tx: tx.all("limit_pages"))
    await one_is_too_large(store)


async def test_a_store_that_forgets_that_sqlite_gave_up_is_seen(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db", committer=ForgetsThatSqliteGaveUp)
    await store.run(lambda tx: tx.all("limit_pages"))
    with pytest.raises(AssertionError):
        await one_is_too_large(store)


async def test_a_function_that_swallows_a_full_disk_keeps_nothing_of_its_own(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    await store.run(lambda tx: tx.all("limit_pages"))

    def swallows(tx: Tx) -> str:
        tx.insert("add", word="first", bytes=1)
        with pytest.raises(StorageFull):
            tx.insert("add", word="big", bytes=20_000_000)
        with pytest.raises(StorageFull):
            tx.insert("add", word="outside any transaction", bytes=1)
        return "all is well"

    with pytest.raises(StorageFull):
        await store.run(swallows)
    assert await store.read(words) == []


async def work_ends_on_a_full_disk(store: SqliteStore, disk: Path) -> None:
    await asyncio.gather(*(store.run(add(f"running {n}", 1000)) for n in range(40)))
    filler = fill(disk)
    for n in range(40):
        await store.run(lambda tx, n=n: tx.run("rename", word=f"running {n}", to=f"done {n}"))
    with pytest.raises(StorageFull, match="no new work"):
        await store.run(add("new"), admits=True)
    assert set(await store.read(words)) == {f"done {n}" for n in range(40)}
    assert not (disk / "jobd.db-ballast").exists()
    filler.unlink()
    await store.run(add("new"), admits=True)
    assert (disk / "jobd.db-ballast").stat().st_size >= 256 * 1024


@pytest.mark.guarantee("G18")
async def test_work_ends_on_a_full_disk_and_new_work_is_taken_once_there_is_room(open_store, small_disk: Path) -> None:
    await work_ends_on_a_full_disk(await open_store(small_disk / "jobd.db"), small_disk)


async def test_a_store_without_its_reserve_is_seen(open_store, small_disk: Path) -> None:
    store = await open_store(small_disk / "jobd.db", committer=HasNoReserve)
    with pytest.raises((StorageFull, StorageFailed)):
        await work_ends_on_a_full_disk(store, small_disk)


@contextlib.contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """Every write beyond `size` fails: to SQLite an error of the disk, and none of room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_fails_at_the_commit_fails_these_callers_and_not_the_next(open_store, tmp_path: Path) -> None:
    store = await open_store(tmp_path / "jobd.db")
    await store.run(add("before"))
    told: list[object] = []
    store.listen(told.extend)

    def adds_and_tells(tx: Tx) -> None:
        tx.insert("add", word=f"lost {len(words(tx))}", bytes=1)
        tx.tell("lost")

    with files_no_longer_than((tmp_path / "jobd.db-wal").stat().st_size):
        results = await asyncio.gather(*(store.run(adds_and_tells) for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {StorageFailed}
    assert told == []
    assert await store.run(add("after")) == 2
    assert await store.read(words) == ["before", "after"]


async def test_a_disk_that_was_full_at_the_start_can_still_be_opened_and_read(open_store, small_disk: Path) -> None:
    store = await open_store(small_disk / "jobd.db")
    await store.run(add("a"))
    await store.close()
    filler = fill(small_disk)
    again = await open_store(small_disk / "jobd.db")
    assert await again.read(words) == ["a"]
    await again.run(lambda tx: tx.run("rename", word="a", to="b"))
    filler.unlink()
    assert await again.run(add("c")) == 2
