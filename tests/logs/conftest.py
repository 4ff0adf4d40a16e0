"""Logs of one assignment, built from text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.logs import index
from broker.logs.files import LogFiles, Snapshot
from broker.logs.index import Segment

Opener = Callable[..., Snapshot]


@pytest.fixture
def files(tmp_path: Path) -> LogFiles:
    return LogFiles(tmp_path / "logs")


@pytest.fixture
def log_of(files: LogFiles) -> Iterator[Opener]:
    """`log_of(b"…")`, or `log_of((1, b"out"), (2, b"err"))` with an index: a snapshot of a new job's log."""
    with ExitStack() as stack:
        jobs = iter(range(1, 1000))

        def opener(*pieces: bytes | tuple[int, bytes]) -> Snapshot:
            job, end = next(jobs), 0
            for at, piece in enumerate(pieces):
                if isinstance(piece, tuple):
                    stream, piece = piece
                    row = index.row(Segment(end, len(piece), stream, 1.5))
                    files.append(job, 1, "index", at * len(row), row)
                end = files.append(job, 1, "log", end, piece).size
            return stack.enter_context(files.opened(job, 1))

        yield opener
