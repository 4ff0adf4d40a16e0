"""What a job may write as its result, its progress and the names of its files, and what is made of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.wire.jobs import LONGEST_MESSAGE, Progress, clean
from broker.wire.outcomes import (
    MOST_DEPTH,
    MOST_RESULT_BYTES,
    BadResult,
    artifact_name,
    progress_of,
    result_text,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé\n\"'{"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
)


@given(JSON)
def test_all_that_json_can_say_is_kept_as_it_was_said(value: object) -> None:
    assert json.loads(result_text(json.dumps(value, indent=1).encode())) == value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"loss": 0.1', "not valid JSON"),
        (b"loss=0.1", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid"),
        (b"NaN", "NaN is no number in JSON"),
        (b"[1, Infinity]", "Infinity is no number in JSON"),
        (b"1e999", "not valid JSON"),
        (b'"\\ud800"', "not valid UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper"),
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), "nested deeper"),
        (b'"' + b"x" * MOST_RESULT_BYTES + b'"', "larger than 256 KiB"),
        (b"9" * 10_000, "not valid JSON"),
    ],
)
def test_what_is_no_result_is_refused_with_its_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadResult, match=why):
        result_text(data)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0.42 epoch 3", Progress(fraction=0.42, message="epoch 3")),
        ("1", Progress(fraction=1)),
        ("  .5  ", Progress(fraction=0.5)),
        ("7 days", Progress(fraction=1, message="days")),
        ("-3", Progress(fraction=0)),
        ("nan lost", None),
        ("inf", None),
        ("", None),
        ("epoch 3", None),
        ("0.5 \x1b[31mred\x07 \u202eback\x00", Progress(fraction=0.5, message="[31mred back")),
        ("0.5 " + "x" * 5000, Progress(fraction=0.5, message="x" * LONGEST_MESSAGE)),
    ],
)
def test_a_line_of_progress_is_taken_by_its_number_and_cleaned(line: str, said: Progress | None) -> None:
    assert progress_of(line) == said


def test_a_broker_believes_no_worker_that_a_message_is_clean() -> None:
    said = Progress.model_validate({"fraction": 0.5, "message": "a\x1b[2Jb" + "x" * 5000})
    assert said.message is not None
    assert said.message.isprintable()
    assert len(said.message) == LONGEST_MESSAGE
    with pytest.raises(ValidationError):
        Progress.model_validate({"fraction": float("nan")})


@given(st.text())
def test_whatever_a_line_says_its_progress_can_be_shown(line: str) -> None:
    said = progress_of(f"0.5 {line}")
    assert said is not None
    assert (said.message or "x").isprintable()
    assert clean(line, 10) == clean(clean(line, 10), 10)


@pytest.mark.parametrize(
    "name",
    [
        "", "/etc/passwd", "..", "a/../b", "a/./b", "a//b", "a/", "../x", "a\\b", "a\nb", "\udcff", "x" * 256, "a/" * 300 + "b",
    ],
)  # fmt: skip
def test_a_name_that_could_lead_elsewhere_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="a name"):
        artifact_name(name)


@pytest.mark.parametrize("name", ["a", "models/best.pt", "..a", "a b", "é/ü", "...", "-rf"])
def test_a_path_below_the_directory_is_a_name(name: str) -> None:
    assert artifact_name(name) == name
