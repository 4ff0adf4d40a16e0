"""What a crash of the broker's machine may do to its log files: ends that were never synced are gone."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

_SIZES = {"log": "final_size", "idx": "final_index_size"}


def tear(state: Path, chance: random.Random, most: int = 4) -> int:
    """Cut up to `most` files short that the dead broker of `state` cannot have called durable; how many it were.

    A file is synced, and called durable, when it has reached the size that its holder declared with its end.
    """
    declared = _declared(state)
    loose = []
    for file in sorted((state / "logs").glob("*/*/*.*")):
        job, attempt, part = int(file.parent.name), int(file.stem), file.suffix.removeprefix(".")
        final = declared.get((job, attempt), {}).get(part)
        size = file.stat().st_size
        if size and (final is None or size < final):
            loose.append((file, size))
    chosen = chance.sample(loose, min(most, len(loose)))
    for file, size in chosen:
        os.truncate(file, chance.randrange(size))
    return len(chosen)


def _declared(state: Path) -> dict[tuple[int, int], dict[str, int | None]]:
    """Read from a copy: opening the database itself would recover it, which is for the next broker to do."""
    with tempfile.TemporaryDirectory() as copy:
        for file in state.glob("jobd.sqlite3*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, copy)
        with closing(sqlite3.connect(f"{copy}/jobd.sqlite3")) as connection:
            rows = connection.execute("SELECT job, attempt, final_size, final_index_size FROM assignments").fetchall()
    return {(job, attempt): {"log": size, "idx": index_size} for job, attempt, size, index_size in rows}
