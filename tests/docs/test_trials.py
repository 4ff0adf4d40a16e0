"""Each trial of docs/trials.md has tests that carry its id, or a reason; and each id that a test carries is there."""

from __future__ import annotations

import re
from pathlib import Path

from support.scripts import ROOT, script

TRIAL = re.compile(r"^\*\*(?P<id>B\d+)\. (?P<text>(?:.+\n)+)", re.MULTILINE)
REASON = "*Without a test:*"
MOST_WITH_A_REASON = 8


def trials() -> dict[str, str]:
    """Id → what the page says of it."""
    page = (ROOT / "docs" / "trials.md").read_text().partition("## The tests")[0]
    found = [(match["id"], match["text"]) for match in TRIAL.finditer(page)]
    assert len(found) == len(dict(found)) > 40, "each trial stands there once"
    return dict(found)


def test_every_trial_has_a_test_or_a_reason_and_never_both() -> None:
    marked = script("generate").trials_of(ROOT)
    for id_, text in trials().items():
        assert (id_ in marked) != (REASON in text), f"{id_}: a test, or a reason"


def test_every_marked_id_is_a_trial_of_the_page() -> None:
    assert script("generate").trials_of(ROOT).keys() <= trials().keys()


def test_few_trials_have_no_test_and_those_that_need_postgresql_say_so() -> None:
    reasons = [text.partition(REASON)[2] for text in trials().values() if REASON in text]
    assert len([reason for reason in reasons if "PostgreSQL" not in reason]) <= MOST_WITH_A_REASON


def test_a_trial_that_lost_its_tests_is_seen(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_things.py").write_text(
        'import pytest\n\n@pytest.mark.trial("B04")\ndef test_one(): ...\n'
    )
    assert script("generate").trials_of(tmp_path) == {"B04": ["tests/test_things.py::test_one"]}
    without = [id_ for id_, text in trials().items() if REASON not in text and id_ != "B04"]
    assert set(without).isdisjoint(script("generate").trials_of(tmp_path))
