"""Whole installations, by the real commands."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.installation import Installation
from support.processes import kill_all, processes_of
from support.waiting import eventually_sync


@pytest.fixture
def installation() -> Iterator[Installation]:
    """One that nobody else uses; nothing is running yet."""
    yield from _installed()


@pytest.fixture(scope="module")
def up() -> Iterator[Installation]:
    """One that a module's tests share; broker and worker are up."""
    for made in _installed():
        _bring_up(made)
        yield made


def _bring_up(made: Installation) -> None:
    made.good("up")
    eventually_sync(lambda: b"online" in made.good("workers").out)


def _installed() -> Iterator[Installation]:
    directory = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    try:
        yield Installation(directory)
        Installation(directory).job("down", "--stop-jobs")
        try:
            eventually_sync(lambda: not processes_of(directory), within_s=5)
        except AssertionError:
            left = [process.command for process in processes_of(directory)]
            pytest.fail(f"left running: {left}")
    finally:
        kill_all(directory)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """A broker and workers as processes of their own, not started yet. Nothing of them is left after the test."""
    made = Fleet(short_dir)
    yield made
    made.close()


@pytest.fixture
async def fleet_with_worker(fleet: Fleet) -> Fleet:
    """A broker and one worker of four slots."""
    await fleet.start_broker()
    await fleet.start_worker("w1")
    return fleet
