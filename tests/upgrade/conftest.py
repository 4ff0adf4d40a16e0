"""An older and a newer release, and a state directory that both of them are used on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support import releases
from support.installation import Installation
from support.processes import kill_all, processes_of
from support.releases import Release
from support.waiting import eventually_sync

OLDER, NEWER = "0.1.0", "0.2.0"

Use = Callable[[Release], Installation]


@pytest.fixture(scope="session")
def shelf() -> Iterator[Path]:
    """Where releases are installed."""
    directory = Path(tempfile.mkdtemp(prefix="jobd-releases-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def older(shelf: Path) -> Release:
    """The first release, from its archive."""
    return releases.install(shelf / "older", OLDER, releases.source_of(releases.FIRST, shelf / "first"))


@pytest.fixture(scope="session")
def newer(shelf: Path) -> Release:
    """This working tree, under a newer version and with a newer schema."""
    release = releases.install(shelf / "newer", NEWER)
    [migrations] = release.directory.glob("lib/python*/site-packages/broker/store/migrations")
    number = len(list(migrations.glob("*.sql")))
    (migrations / f"{number:04d}_future.sql").write_text("CREATE TABLE future (id INTEGER PRIMARY KEY) STRICT;\n")
    return release


@pytest.fixture
def use() -> Iterator[Use]:
    """One state directory, by the commands of whichever release. Nothing of it runs after the test."""
    directory = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    shared = Installation(directory)
    try:
        yield lambda release: replace(shared, program=release.command("job"))
        shared.job("down", "--stop-jobs")
        try:
            eventually_sync(lambda: not processes_of(directory), within_s=15)
        except AssertionError:
            pytest.fail(f"left running: {[process.command for process in processes_of(directory)]}")
    finally:
        kill_all(directory)
        shutil.rmtree(directory, ignore_errors=True)
