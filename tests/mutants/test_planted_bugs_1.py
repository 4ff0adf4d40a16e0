"""A third of the planted bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.planted_bugs import FILES, assert_caught, part


@pytest.mark.parametrize("patch", part(1), ids=lambda patch: patch.stem)
def test_a_planted_bug_is_caught(patch: Path, tmp_path: Path) -> None:
    assert_caught(patch, tmp_path)


def test_every_planted_bug_is_tried() -> None:
    assert len(list(Path(__file__).parent.glob("test_planted_bugs_*.py"))) == FILES
