"""Processes that were started by hand, for a job to become: each is reaped as its shell would."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from worker.process.identity import stat_fields


class Adoptee:
    """One of them. Nothing of it is left after `close`."""

    def __init__(self, script: str, directory: Path, *, output: Path | None = None) -> None:
        with output.open("ab") if output is not None else contextlib.nullcontext(subprocess.DEVNULL) as out:
            self.process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        threading.Thread(target=self.process.wait, daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def start(self) -> int:
        fields = stat_fields(self.pid)
        assert fields is not None, "it is there"
        return int(fields[19])

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def adoptees() -> Iterator[list[Adoptee]]:
    """Those that are put into the list are closed."""
    made: list[Adoptee] = []
    try:
        yield made
    finally:
        close(made)


def close(made: Sequence[Adoptee]) -> None:
    for one in made:
        one.close()
