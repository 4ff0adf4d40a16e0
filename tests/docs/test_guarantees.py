"""Each promise of docs/guarantees.md has tests that carry its id, and each id that a test carries is a promise there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.scripts import ROOT, script

PROMISE = re.compile(r"^\*\*(G\d+)\. ", re.MULTILINE)
LISTED = re.compile(r"^- `(?P<test>[\w/.]+::\w+)`$", re.MULTILINE)


def page() -> str:
    return (ROOT / "docs" / "guarantees.md").read_text()


def test_every_promise_has_a_test_and_every_marked_id_is_a_promise() -> None:
    promised = PROMISE.findall(page())
    assert promised == [f"G{number}" for number in range(1, len(promised) + 1)]
    assert script("generate").guaranteed_by(ROOT).keys() == set(promised)


def test_the_page_lists_exactly_the_tests_that_are_marked() -> None:
    marked = {
        test.removeprefix("tests/") for tests in script("generate").guaranteed_by(ROOT).values() for test in tests
    }
    assert set(LISTED.findall(page())) == marked
    for test in marked:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()


def test_marks_are_found_on_every_kind_of_test(tmp_path: Path) -> None:
    room = tmp_path / "tests" / "room"
    room.mkdir(parents=True)
    (room / "test_things.py").write_text(
        "import pytest\n\n"
        '@pytest.mark.guarantee("G1", "G3")\ndef test_one(): ...\n\n'
        '@pytest.mark.parametrize("n", [1])\n@pytest.mark.guarantee("G1")\nasync def test_two(n): ...\n\n'
        "def test_three(): ...\n"
    )
    found = script("generate").guaranteed_by(tmp_path)
    assert found == {
        "G1": ["tests/room/test_things.py::test_one", "tests/room/test_things.py::test_two"],
        "G3": ["tests/room/test_things.py::test_one"],
    }


def test_an_id_that_is_computed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_things.py").write_text(
        "import pytest\n\nG = 'G1'\n\n@pytest.mark.guarantee(G)\ndef test_one(): ...\n"
    )
    with pytest.raises(TypeError, match="test_one"):
        script("generate").guaranteed_by(tmp_path)
