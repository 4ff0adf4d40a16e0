"""A broker and workers as processes of their own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.processes import kill_all


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """A broker that no other test uses; no worker yet."""
    yield from _fleet()


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """A broker and a worker of four slots that the tests of a module share: starting them takes longer than most."""
    for made in _fleet():
        asyncio.run(_with_worker(made))
        yield made


async def _with_worker(made: Fleet) -> None:
    await made.start_worker()


def _fleet() -> Iterator[Fleet]:
    directory = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    made = Fleet(directory)
    try:
        asyncio.run(made.start_broker())
        yield made
    finally:
        made.close()
        kill_all(directory)
        shutil.rmtree(directory, ignore_errors=True)
