"""A program that writes through the real store while every operation on its files is recorded.

workload.py LIBRARY RECORD DATABASE DIRECTORY_OF_THE_SCHEMA HOW_MANY [honest | planted]

`planted`: commits are answered without having been synced (synchronous=NORMAL).
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import sys
import time
from pathlib import Path

from broker.store import connection, migrate, statements
from broker.store.sqlite import Schema, open_sqlite

CLIENTS = 8
ROW_BYTES = 3000


async def main(recorder: ctypes.CDLL, database: Path, directory: Path, how_many: int) -> None:
    own = migrate.Migration(1, "0001_things.sql", (directory / "things.sql").read_text())
    schema = Schema([migrate.load()[0], own], statements.load(directory / "sql"))
    store = await open_sqlite(database, clock_ms=lambda: int(time.time() * 1000), schema=schema)
    numbers = itertools.count(1)

    async def client() -> None:
        while (number := next(numbers)) <= how_many:
            await store.run(lambda tx: tx.run("add", word=str(number), bytes=ROW_BYTES))
            recorder.recorder_mark(ctypes.c_int64(number))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    recorder.recorder_stop()


if __name__ == "__main__":
    library, record, database, directory, how_many, kind = sys.argv[1:]
    loaded = ctypes.CDLL(library)
    assert loaded.recorder_start(record.encode()) == 0
    if kind == "planted":
        connection._ALL = connection._ALL.replace("synchronous = FULL", "synchronous = NORMAL")
    asyncio.run(main(loaded, Path(database), Path(directory), int(how_many)))
