"""The most specific word on each field counts, field by field. Derived from the model: a new field is tested by itself."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from broker.core.effective import FLOOR, Source, effective, given, seconds
from broker.wire import states
from broker.wire.jobs import FLOOR_TABLE, Conditions, JobSpec
from broker.wire.projects import Project

FIELDS = list(Conditions.model_fields)
LAYERS = ("floor", "project", "job")
_WORDS = [
    member.value
    for kind in vars(states).values()
    if isinstance(kind, type)
    for member in getattr(kind, "__members__", {}).values()
]
_CANDIDATES = [0, 0.0, False, [], "none", 1, 2.5, 7, True, ["a"], ["b"], [1], [2], *_WORDS]
"""What a field of any type may be given. Falsy ones first: they are the ones that get lost."""


def values_of(field: str) -> list[Any]:
    """Different values that the model takes for this field."""
    found: list[Any] = []
    for candidate in _CANDIDATES:
        try:
            value = getattr(Conditions.model_validate({field: candidate}, strict=type(candidate) is bool), field)
        except ValidationError:
            continue
        if value is not None and value not in found:
            found.append(value)
    return found


def conditions(field: str, value: Any) -> Conditions:
    return Conditions.model_validate({field: value})


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"command": "true", "project": "p", **fields})


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.guarantee("G25")
def test_of_every_field_the_most_specific_word_counts_whichever_of_them_were_said(field: str) -> None:
    values = values_of(field)
    assert len(values) >= 2, f"{field}: give _CANDIDATES two values that it takes"
    for said in itertools.product((False, True), repeat=3):
        layers = [name for name, is_said in zip(LAYERS, said, strict=True) if is_said]
        for chosen in itertools.product(values[:3], repeat=len(layers)):
            word = dict(zip(layers, chosen, strict=True))
            tables = {FLOOR_TABLE: word.get("floor"), "p": word.get("project")}
            projects = {name: conditions(field, value) for name, value in tables.items() if value is not None}
            own = {field: word["job"]} if "job" in word else {}

            whole = effective(spec(**own), projects)

            shipped = given(FLOOR).get(field)
            expected = [word[layer] for layer in reversed(LAYERS) if layer in word] or [shipped]
            if expected == [None]:
                assert getattr(whole.spec, field) == getattr(Conditions(), field)
                assert whole.sources.get(field) in (Source.DEFAULT, None)
            else:
                assert getattr(whole.spec, field) == expected[0]
                source = layers[-1] if layers else "floor"
                assert whole.sources[field] == source


@pytest.mark.parametrize(("field", "other"), list(itertools.permutations(FIELDS, 2)))
@pytest.mark.guarantee("G25")
@pytest.mark.trial("B72")
def test_a_project_that_sets_one_field_keeps_the_floor_and_the_defaults_of_every_other(field: str, other: str) -> None:
    without = effective(spec(), {})
    whole = effective(spec(), {"p": conditions(field, values_of(field)[0])})
    moved = effective(spec(), {FLOOR_TABLE: conditions(field, values_of(field)[0])})

    for changed in (whole, moved):
        assert getattr(changed.spec, other) == getattr(without.spec, other)
        assert changed.sources.get(other) == without.sources.get(other)


def test_a_null_says_nothing_and_a_falsy_value_does() -> None:
    projects = {"p": Conditions(max_wall_s=5, needs=["big"], preemptible=True, checkpoint_grace_s=3, cpus=9)}

    silent = effective(spec(max_wall_s=None, needs=None), projects).spec
    said = effective(spec(max_wall_s="none", needs=[], preemptible=False, checkpoint_grace_s=0, priority=0), projects)

    assert (silent.max_wall_s, silent.needs) == (5, ["big"])
    got = said.spec
    assert (got.max_wall_s, got.needs, got.preemptible, got.checkpoint_grace_s, got.priority) == (
        "none",
        [],
        False,
        0,
        0,
    )
    assert {said.sources[name] for name in ("max_wall_s", "needs", "preemptible", "priority")} == {Source.JOB}


@pytest.mark.guarantee("G25")
def test_without_any_configuration_a_silent_job_and_an_endless_one_are_limited() -> None:
    whole = effective(spec(), {})

    assert (whole.spec.idle_timeout_s, whole.spec.max_wall_s) == (86_400, 604_800)
    assert (whole.sources["idle_timeout_s"], whole.sources["max_wall_s"]) == (Source.FLOOR, Source.FLOOR)


def test_each_value_has_a_source_and_nothing_else_has() -> None:
    whole = effective(spec(labels={"a": "b"}), {"p": Conditions(checkpoint_grace_s=3)})

    assert set(whole.sources) == set(whole.spec.model_dump(exclude_none=True))
    assert whole.sources["labels"] is Source.JOB
    assert whole.sources["checkpoint_grace_s"] is Source.PROJECT
    assert whole.sources["cpus"] is Source.DEFAULT


def test_what_a_project_has_itself_is_no_default_of_its_jobs() -> None:
    whole = effective(spec(), {"p": Project(priority=70, share=2, cpus=3)})

    assert (whole.spec.priority, whole.sources["priority"]) == (0, Source.DEFAULT)
    assert (whole.spec.cpus, "share" in whole.sources) == (3, False)


def test_another_projects_table_says_nothing() -> None:
    assert effective(spec(), {"q": Conditions(max_wall_s=1)}) == effective(spec(), {})


@pytest.mark.parametrize(("value", "allowed"), [(3, 3), (0.5, 0.5), ("none", None), (None, None)])
def test_a_limit_that_is_off_allows_any_time(value: Any, allowed: float | None) -> None:
    assert seconds(spec(max_wall_s=value).max_wall_s) == allowed


@pytest.mark.parametrize("value", [0, -1, True, "x", "", "nan", float("inf"), 1e12, [1]])
def test_what_is_no_limit_is_refused_and_told_what_is(value: Any) -> None:
    with pytest.raises(ValidationError, match=r'give seconds, above 0 .* or "none": no limit') as refused:
        spec(max_wall_s=value)
    assert refused.value.error_count() == 1
