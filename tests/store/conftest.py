"""Stores with a small schema of their own, on every backend there is."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker.store import migrate, statements
from broker.store.batch import Committer
from broker.store.contract import Store
from broker.store.migrate import Migration
from broker.store.sqlite import Limits, Schema, SqliteStore, open_sqlite
from support.requirements import require

HERE = Path(__file__).parent
Opener = Callable[..., Awaitable[SqliteStore]]


@pytest.fixture
def things() -> Schema:
    own = Migration(1, "0001_things.sql", (HERE / "things" / "things.sql").read_text())
    return Schema([migrate.load()[0], own], statements.load(HERE / "things" / "sql"))


@pytest.fixture
async def open_store(things: Schema) -> AsyncIterator[Opener]:
    """Opens SQLite stores and closes them after the test. Its clock ticks 1 ms with each look."""
    ticks = itertools.count(1_000)
    opened: list[SqliteStore] = []

    async def opener(
        path: Path,
        *,
        committer: type[Committer] = Committer,
        schema: Schema = things,
        limits: Limits | None = None,
    ) -> SqliteStore:
        store = await open_sqlite(path, clock_ms=lambda: next(ticks), schema=schema, committer=committer, limits=limits)
        opened.append(store)
        return store

    yield opener
    for store in opened:
        await store.close()


@pytest.fixture(params=["sqlite"])
async def store(request: pytest.FixtureRequest, open_store: Opener, tmp_path: Path) -> Store:
    assert request.param == "sqlite"
    return await open_store(tmp_path / "jobd.db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "jobd-test", place], capture_output=True
    )
    require("a small file system", mounted.returncode == 0, how="run as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
