"""The settings as they count now: what the file and the environment say, and over that what was changed at run time.

Everything asks `Broker.settings`, each time anew, so a change counts from the next question on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from broker.core.run_time import Change, over
from broker.wire.settings import BrokerSettings

Reread = Callable[[], BrokerSettings]


class Configuration:
    """`reread`: the file as it is now, or ConfigurationError; None where there is no file to read. One change at a
    time, under `changing`: what is in the tables and what counts here can't part."""

    def __init__(self, file: BrokerSettings, reread: Reread | None = None) -> None:
        self.file, self.reread = file, reread
        self.roots = roots_of(file)
        self.changing = anyio.Lock()
        self._changes: Sequence[Change] = ()
        self._count()

    def take_changes(self, changes: Sequence[Change]) -> None:
        self._changes = changes
        self._count()

    def take_file(self, file: BrokerSettings) -> None:
        self.file = file
        self.roots = roots_of(file)
        self._count()

    def _count(self) -> None:
        projects = over(self.file.projects, self._changes)
        self.settings = self.file.model_copy(update={"projects": projects})


def roots_of(file: BrokerSettings) -> list[tuple[str, str]]:
    """Where each root really is, and whose it is."""
    return [
        (os.path.realpath(Path(root).expanduser()), name)
        for name, table in file.projects.items()
        for root in table.roots or ()
    ]
