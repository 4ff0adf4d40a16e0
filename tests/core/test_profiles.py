"""Profiles, rules and roots: which one a job has, and what each field then is. Derived from the models."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from broker.core.effective import FLOOR, Chosen, Effective, Source, effective, given
from broker.core.profiles import MOST_JUDGED, choice, occurs, project_of
from broker.wire import states
from broker.wire.jobs import FLOOR_TABLE, Bundle, Conditions, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Profile, Project, Rule

FIELDS = list(Bundle.model_fields)
_WORDS = [
    member.value
    for kind in vars(states).values()
    if isinstance(kind, type)
    for member in getattr(kind, "__members__", {}).values()
]
_CANDIDATES = [
    0,
    0.0,
    False,
    [],
    {},
    "none",
    1,
    2.5,
    7,
    True,
    ["a"],
    ["b"],
    {"a": 1},
    {"b": 2},
    "linux",
    "macos",
    *_WORDS,
]
"""What a field of any type may be given. Falsy ones first: they are the ones that get lost."""


def values_of(field: str) -> list[Any]:
    found: list[Any] = []
    for candidate in _CANDIDATES:
        try:
            value = getattr(Bundle.model_validate({field: candidate}, strict=type(candidate) is bool), field)
        except ValidationError:
            continue
        if value is not None and value not in found:
            found.append(value)
    return found


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({"command": "true", "project": "p", **fields})


def whole(job: JobSpec, projects: dict[str, Project], profiles: dict[str, Profile], *rules: Rule) -> Effective:
    chosen = choice(job, projects, profiles, rules)
    return effective(job, projects, chosen.profile, suggested=chosen.suggested)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.guarantee("G46")
def test_of_every_field_the_job_counts_before_its_profile_and_that_before_project_and_floor(field: str) -> None:
    values = values_of(field)
    assert len(values) >= 2, f"{field}: give _CANDIDATES two values that it takes"
    layers = ("floor", "project", "profile", "job") if field in Conditions.model_fields else ("profile", "job")
    for said in itertools.product((False, True), repeat=len(layers)):
        named = [name for name, is_said in zip(layers, said, strict=True) if is_said]
        for chosen in itertools.product(values[:2], repeat=len(named)):
            word = {name: {field: value} for name, value in zip(named, chosen, strict=True)}
            projects = {
                FLOOR_TABLE: Project.model_validate(word.get("floor", {})),
                "p": Project.model_validate(word.get("project", {})),
            }
            profiles = {"big": Profile.model_validate(word.get("profile", {}))}

            found = whole(spec(profile="big", **word.get("job", {})), projects, profiles)

            if named:
                assert getattr(found.spec, field) == word[named[-1]][field]
                assert found.sources[field] == ("profile big" if named[-1] == "profile" else named[-1])
            else:
                assert getattr(found.spec, field) == given(FLOOR).get(field, getattr(Bundle(), field))
            assert (found.spec.profile, found.sources["profile"]) == ("big", Source.JOB)


@pytest.mark.parametrize(("field", "other"), list(itertools.permutations(FIELDS, 2)))
@pytest.mark.guarantee("G46")
@pytest.mark.trial("B72")
def test_a_profile_that_sets_one_field_keeps_the_floor_and_the_project_of_every_other(field: str, other: str) -> None:
    project = Project(checkpoint_grace_s=3)
    without = effective(spec(), {"p": project})

    found = whole(spec(profile="one"), {"p": project}, {"one": Profile.model_validate({field: values_of(field)[0]})})

    assert getattr(found.spec, other) == getattr(without.spec, other)
    assert found.sources.get(other) == without.sources.get(other)


@pytest.mark.parametrize(
    ("profiles", "hint"),
    [({"gpu24": Profile()}, "did you mean gpu24?"), ({"x": Profile()}, "there are x"), ({}, "no [profiles.NAME]")],
)
def test_an_unknown_profile_is_refused_with_the_nearest(profiles: dict[str, Profile], hint: str) -> None:
    with pytest.raises(Refused, match="there is no profile gpu42") as refused:
        choice(spec(profile="gpu42"), {}, profiles, [])

    assert (refused.value.code, refused.value.field) == (ProblemCode.INVALID_SPEC, "profile")
    assert hint in (refused.value.hint or "")


def test_a_project_may_have_a_profile_for_its_jobs_and_a_job_may_have_none_of_it() -> None:
    profiles = {"big": Profile(gpus=2), "small": Profile(gpus=1)}
    projects = {FLOOR_TABLE: Project(profile="small"), "p": Project(profile="big")}

    assert choice(spec(), projects, profiles, []).profile == Chosen("big", profiles["big"], Source.PROJECT)
    assert choice(spec(project="q"), projects, profiles, []).profile == Chosen("small", profiles["small"], Source.FLOOR)
    assert choice(spec(profile="small"), projects, profiles, []).profile == Chosen(
        "small", profiles["small"], Source.JOB
    )
    assert choice(spec(profile="none"), projects, profiles, []).profile is None


def test_words_that_contradict_each_other_only_together_are_refused() -> None:
    with pytest.raises(Refused, match=r"vram_gb \(profile big\) is of a GPU, and gpus \(job\) is 0"):
        whole(spec(profile="big", gpus=0), {}, {"big": Profile(vram_gb=24)})


@pytest.mark.guarantee("G46")
def test_a_rule_suggests_and_changes_nothing_unless_it_says_that_it_applies() -> None:
    profiles = {"gpu24": Profile(vram_gb=24)}
    rule = Rule(match=["python * train"], profile="gpu24", name="training")
    job = spec(command="python -u train.py")

    suggested = whole(job, {}, profiles, rule)
    applied = whole(
        job, {}, profiles, Rule(match=["nothing"], profile="gpu24"), rule.model_copy(update={"apply": True})
    )

    assert suggested.suggested == "looks like training: profile gpu24 would fit"
    assert (suggested.spec, suggested.spec.profile) == (effective(job, {}).spec, None)
    assert (applied.spec.vram_gb, applied.sources["vram_gb"]) == (24, "profile gpu24")
    assert (applied.spec.profile, applied.sources["profile"], applied.suggested) == ("gpu24", "rule 2", None)


def test_who_chose_a_profile_hears_of_no_other() -> None:
    profiles = {"gpu24": Profile(vram_gb=24), "x": Profile()}
    rule = Rule(match=["train"], profile="gpu24", apply=True)

    for said in ("x", "none"):
        assert whole(spec(command="train", profile=said), {}, profiles, rule).suggested is None
        assert whole(spec(command="train", profile=said), {}, profiles, rule).spec.vram_gb is None
    quiet = rule.model_copy(update={"apply": False})
    assert whole(spec(command="train"), {"p": Project(profile="gpu24")}, profiles, quiet).suggested is None


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("train.py", "python train.py", True),
        ("train.py", "python trainxpy", False),
        ("train?py", "python trainxpy", True),
        ("python*train", "python -m x.train", True),
        ("train*python", "python train", False),
        ("a*a", "a", False),
        ("*", "", True),
        ("?", "", False),
        ("(a+)+$", "aaaa", False),
        ("ab?d*f", "abxabcdef", True),
    ],
)
def test_a_pattern_is_text_with_stars_and_question_marks_anywhere_in_the_command(
    pattern: str, text: str, found: bool
) -> None:
    assert occurs(pattern, text) is found


def test_no_pattern_holds_up_a_submit() -> None:
    """Each place is tried once per piece: a matcher that goes back would not end in this life."""
    assert not occurs("a*" * 100, "a" * 50 + "b" * (MOST_JUDGED - 50))
    assert not occurs("a?" * 99 + "*b", "a" * MOST_JUDGED)


@pytest.mark.parametrize(
    ("directory", "project"),
    [
        ("/w/vision", "vision"),
        ("/w/vision/a/b", "vision"),
        ("/w/vision/nlp", "nlp"),
        ("/w/vision/nlp/x", "nlp"),
        ("/w/vision2", None),
        ("/w/visio", None),
        ("/w", None),
        ("/", None),
    ],
)
def test_the_longest_root_wins_and_names_are_whole(directory: str, project: str | None) -> None:
    assert project_of(directory, [("/w/vision", "vision"), ("/w/vision/nlp", "nlp")]) == project
