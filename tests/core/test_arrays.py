"""What the members of an array are, and how they stand as a whole."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import arrays
from broker.core.graph import Standing
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import DependencyPolicy, JobState


def spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": "true", **fields})


def refused(**fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        arrays.members(spec(**fields))
    assert caught.value.code is ProblemCode.INVALID_SPEC
    return caught.value


def test_only_known_placeholders_are_replaced_in_every_text() -> None:
    asked = spec(
        command='echo {i} {lr} ${i} ${lr} {other} \'{"i": 1}\' {a,b} {1..5} {{i}} $(awk "{print}")',
        cwd="/data/{i}",
        name="run-{lr}",
        env={"LR": "{lr}", "BRACES": "{}"},
        labels={"lr": "{lr}"},
        sweep={"lr": [0.1, "{i}"]},
    )

    first = arrays.member(asked, 0, {"lr": 0.1})
    assert first.command == 'echo 0 0.1 ${i} ${lr} {other} \'{"i": 1}\' {a,b} {1..5} {0} $(awk "{print}")'
    assert (first.cwd, first.name) == ("/data/0", "run-0.1")
    assert (first.env, first.labels) == ({"LR": "0.1", "BRACES": "{}"}, {"lr": "0.1"})
    assert arrays.member(asked, 1, {"lr": "{i}"}).name == "run-{i}", "what was put in is not looked at again"
    assert not arrays.is_array(first)


def test_argv_keeps_its_words_whatever_a_value_contains() -> None:
    asked = JobSpec(argv=["run", "--x={x}", "{x}"], sweep={"x": ["a b", "$(rm)"]})

    assert arrays.member(asked, 1, {"x": "$(rm)"}).argv == ["run", "--x=$(rm)", "$(rm)"]


@pytest.mark.parametrize(("value", "word"), [(1, "1"), (0.5, "0.5"), (True, "true"), (False, "false"), ("1e3", "1e3")])
def test_a_value_is_put_in_as_it_was_said(value: bool | float | str, word: str) -> None:
    assert arrays.word(value) == word


def test_a_grid_has_every_combination_and_the_last_axis_turns_fastest() -> None:
    members = arrays.members(spec(sweep={"a": [1, 2], "b": ["x", "y"]}))

    assert members == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


def test_zip_takes_the_first_values_then_the_second_ones() -> None:
    members = arrays.members(spec(sweep={"a": [1, 2], "b": ["x", "y"]}, sweep_mode="zip"))

    assert members == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@given(st.integers(1, 30), st.integers(0, 5), st.integers(1, 6), st.integers(1, 6))
def test_what_is_drawn_is_of_the_grid_and_never_twice_and_the_same_with_the_same_seed(
    count: int, seed: int, a: int, b: int
) -> None:
    asked = {"sweep": {"a": list(range(a)), "b": list(range(b))}, "sweep_mode": "random", "sweep_seed": seed}
    count = min(count, a * b)

    drawn = [(one["a"], one["b"]) for one in arrays.members(spec(**asked, count=count))]

    assert len(set(drawn)) == len(drawn) == count
    assert set(drawn) <= {(x, y) for x in range(a) for y in range(b)}
    assert drawn == [(one["a"], one["b"]) for one in arrays.members(spec(**asked, count=count))]


def test_another_seed_draws_others() -> None:
    asked = {"sweep": {"a": list(range(1000))}, "sweep_mode": "random", "count": 5}

    assert arrays.members(spec(**asked, sweep_seed=1)) != arrays.members(spec(**asked, sweep_seed=2))


def test_a_sweep_of_more_than_there_are_ids_for_draws_some_at_once() -> None:
    huge = {name: list(range(1000)) for name in "abcdefgh"}

    assert len(arrays.members(spec(sweep=huge, sweep_mode="random", count=3))) == 3
    assert refused(sweep=huge).field == "sweep"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_parallel": 2}, "max_parallel"),
        ({"max_failures": 2}, "max_failures"),
        ({"depends_on_each": [1]}, "depends_on_each"),
        ({"sweep_mode": "zip"}, "sweep_mode"),
        ({"sweep_seed": 1, "count": 3}, "sweep_seed"),
        ({"sweep": {"i": [1]}}, "sweep.i"),
        ({"sweep": {"a": [1, 2], "b": [1]}, "sweep_mode": "zip"}, "sweep"),
        ({"sweep": {"a": [1, 2]}, "count": 2}, "count"),
        ({"sweep": {"a": [1, 2]}, "sweep_seed": 2}, "sweep_seed"),
        ({"sweep": {"a": [1, 2]}, "sweep_mode": "random"}, "count"),
        ({"sweep": {"a": [1, 2]}, "sweep_mode": "random", "count": 3}, "count"),
        ({"sweep": {"a": list(range(101)), "b": list(range(100))}}, "sweep"),
    ],
)
def test_what_makes_no_array_is_refused_and_the_field_named(fields: dict[str, object], field: str) -> None:
    said = refused(**fields)
    assert said.field == field
    assert said.hint


def test_a_member_that_could_be_no_job_is_named_with_its_field() -> None:
    asked = spec(name="n" * 195 + "{x}", sweep={"x": ["short", "far too long"]})

    with pytest.raises(Refused) as caught:
        arrays.admitted(asked, 1, {"x": "far too long"})
    assert caught.value.field == "name"
    assert caught.value.detail.startswith("member 1: name: ")


def test_an_axis_that_stands_nowhere_is_told() -> None:
    assert arrays.unused_axes(spec(command="a {x} ${y}", sweep={"x": [1], "y": [1]})) == ["y"]


COUNTS = st.dictionaries(st.sampled_from(JobState), st.integers(1, 3), min_size=1).map(Counter)


@given(COUNTS)
def test_one_word_for_all_members(counts: Counter[JobState]) -> None:
    live = {state for state in counts if state in arrays.NOT_ENDED}
    word = arrays.aggregate(counts)
    assert (word in arrays.NOT_ENDED) == bool(live)
    assert (word is JobState.COMPLETED) == (set(counts) == {JobState.COMPLETED})
    if not live:
        assert word in counts


@given(COUNTS, st.sampled_from(DependencyPolicy))
def test_whoever_waits_for_an_array_that_has_ended_waits_no_longer(
    counts: Counter[JobState], policy: DependencyPolicy
) -> None:
    live = any(counts[state] for state in arrays.NOT_ENDED)
    standing = arrays.standing(policy, counts)
    if not live:
        assert standing is not Standing.OPEN
    if policy is DependencyPolicy.ANY_EXIT:
        assert standing is (Standing.OPEN if live else Standing.MET)
    if standing is Standing.MET:
        assert not live, "all of its members, not the first ones"


def test_success_is_lost_with_the_first_member_and_failure_is_known_with_the_last() -> None:
    some = Counter({JobState.RUNNING: 1, JobState.FAILED: 1})
    over = Counter({JobState.COMPLETED: 1, JobState.FAILED: 1})
    good = Counter({JobState.COMPLETED: 2})

    found = [[arrays.standing(policy, counts).value for counts in (some, over, good)] for policy in DependencyPolicy]
    assert dict(zip((policy.value for policy in DependencyPolicy), found, strict=True)) == {
        "success": ["never", "never", "met"],
        "any_exit": ["open", "met", "met"],
        "failure": ["open", "met", "never"],
    }
