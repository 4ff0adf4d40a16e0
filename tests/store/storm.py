"""A program that writes without pause and says on stdout what was acknowledged, until it is killed.

storm.py DATABASE DIRECTORY_OF_THE_SCHEMA [honest | planted]
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path

from broker.store import migrate, statements
from broker.store.batch import Committer
from broker.store.sqlite import Schema, open_sqlite
from support.planted_store import AnswersBeforeItsCommit


async def main(database: Path, directory: Path, kind: str) -> None:
    own = migrate.Migration(1, "0001_things.sql", (directory / "things.sql").read_text())
    schema = Schema([migrate.load()[0], own], statements.load(directory / "sql"))
    committer = AnswersBeforeItsCommit if kind == "planted" else Committer
    store = await open_sqlite(database, clock_ms=lambda: int(time.time() * 1000), schema=schema, committer=committer)
    numbers = itertools.count()

    async def add(word: str) -> None:
        await store.run(lambda tx: tx.run("add", word=word, bytes=100))
        os.write(1, f"{word}\n".encode())

    async def client() -> None:
        while True:
            await add(f"{os.getpid()}-{next(numbers)}")

    await asyncio.gather(*(client() for _ in range(16)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
