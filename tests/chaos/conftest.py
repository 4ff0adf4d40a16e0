"""Whole fleets of real processes, to be hurt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet import Fleet


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """A broker and workers as processes of their own, not started yet. Nothing of them is left after the test."""
    made = Fleet(short_dir)
    yield made
    made.close()
