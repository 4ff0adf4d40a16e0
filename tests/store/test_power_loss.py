"""No acknowledged commit is lost by a power loss at any moment, and the database is sound after each."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.power import Disk, Operation, read
from support.requirements import ROOT, need_compiler, require

HERE = Path(__file__).parent
LOSSES = 150
ROWS = 1200


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    source = HERE / "powerloss" / "recorder.c"
    # The very library that Python's sqlite3 has loaded: a VFS is registered there.
    command = [need_compiler(), "-shared", "-fPIC", "-O1", "-o", library, source, "-pthread", "-l:libsqlite3.so.0"]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    if "sqlite3.h" in built.stderr:
        require("sqlite3.h", found=False, how="apt-get install libsqlite3-dev")
    assert built.returncode == 0, built.stderr
    return library


def recorded(recorder: Path, directory: Path, kind: str) -> list[Operation]:
    record = directory / "record"
    program = [sys.executable, HERE / "powerloss" / "workload.py", recorder, record, directory / "db", HERE / "things"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    subprocess.run([*program, str(ROWS), kind], env=environ, check=True, timeout=60)
    return read(record)


def losses(operations: list[Operation], directory: Path, seed: int) -> Iterator[tuple[int, set[int], set[int]]]:
    """Each loss: at which operation, what had been acknowledged, and what is there afterwards."""
    chance = random.Random(seed)
    first = next(number for number, operation in enumerate(operations) if operation.kind == "m")
    moments = sorted(chance.randrange(first, len(operations)) for _ in range(LOSSES))
    disk, played = Disk(), 0
    for moment in moments:
        for operation in operations[played:moment]:
            disk.play(operation)
        played = moment
        place = directory / f"loss-{moment}"
        place.mkdir(exist_ok=True)
        for path, image in disk.after_power_loss(chance).items():
            (place / Path(path).name).write_bytes(image)
        yield moment, set(disk.marks), found(place / "db")


def found(database: Path) -> set[int]:
    connection = sqlite3.connect(database)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'things'").fetchone() is None:
            return set()
        return {int(row[0]) for row in connection.execute("SELECT word FROM things")}
    finally:
        connection.close()


@pytest.mark.trial("B51")
def test_no_acknowledged_commit_is_lost_by_a_power_loss(recorder: Path, tmp_path: Path, again: int) -> None:
    operations = recorded(recorder, tmp_path, "honest")

    found_after = losses(operations, tmp_path, seed=1 + again)
    lost = {moment: acked - there for moment, acked, there in found_after if acked - there}

    assert len([operation for operation in operations if operation.kind == "m"]) == ROWS
    assert lost == {}


def test_commits_that_are_answered_before_they_are_synced_are_seen_to_be_lost(recorder: Path, tmp_path: Path) -> None:
    operations = recorded(recorder, tmp_path, "planted")

    assert any(acked - there for _, acked, there in losses(operations, tmp_path, seed=1))
