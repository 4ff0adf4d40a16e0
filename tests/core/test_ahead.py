"""What comes before a job: by priority, by age, and, between projects, in turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.ahead import Before, Crowd, Refusals, before

MINE, OTHER = "mine", "other"
NOBODY = {MINE: 0.0, OTHER: 0.0}


def crowd(project: str, *, higher: int = 0, older: int = 0, younger: int = 0, step: float = 60.0) -> Crowd:
    return Crowd(project, step, higher, older, younger)


def test_what_is_older_or_of_a_higher_priority_comes_before() -> None:
    assert before(MINE, NOBODY, [crowd(MINE, higher=2, older=3)]) == Before(higher=2, older=3)


def test_of_a_project_that_has_used_less_come_those_that_have_their_turn_first() -> None:
    used = {MINE: 600.0, OTHER: 0.0}

    assert before(MINE, used, [crowd(OTHER, younger=50_000)]) == Before(in_turn=10)
    assert before(MINE, used, [crowd(OTHER, younger=4)]) == Before(in_turn=4)


def test_of_a_project_that_has_used_more_none_comes_before_until_the_own_jobs_have_used_as_much() -> None:
    used = {MINE: 0.0, OTHER: 100.0}

    assert before(MINE, used, [crowd(OTHER, older=9)]).jobs == 0
    assert before(MINE, used, [crowd(OTHER, older=9), crowd(MINE, older=4)]) == Before(older=4, in_turn=3)


def test_two_projects_that_have_used_the_same_take_turns_and_the_older_begins() -> None:
    assert before(MINE, NOBODY, [crowd(OTHER, older=1)]) == Before(in_turn=1)
    assert before(MINE, NOBODY, [crowd(OTHER, younger=1)]).jobs == 0
    assert before(MINE, NOBODY, [crowd(OTHER, older=9), crowd(MINE, older=2)]) == Before(older=2, in_turn=3)


def test_what_starts_first_for_its_priority_counts_for_the_turns_after_it() -> None:
    crowds = [crowd(OTHER, higher=5, older=5), crowd(MINE, older=6)]

    assert before(MINE, NOBODY, crowds) == Before(higher=5, older=6, in_turn=2)


@given(
    st.lists(st.tuples(st.sampled_from([MINE, OTHER]), st.integers(0, 6)), max_size=30),
    st.integers(0, 30),
    st.integers(0, 500),
    st.integers(0, 500),
)
def test_it_is_what_giving_one_job_after_the_other_comes_to(
    queue: list[tuple[str, int]], at: int, mine: int, other: int
) -> None:
    """Against the order itself: the head with the best rank is given away, and its project has used more from then on."""
    jobs = [(project, id_, priority) for id_, (project, priority) in enumerate(queue)]
    at = min(at, len(jobs))
    jobs = [*jobs[:at], (MINE, at, 3), *((project, id_ + 1, priority) for project, id_, priority in jobs[at:])]
    used = {MINE: float(mine), OTHER: float(other)}
    given_away = 0
    left, spent = list(jobs), dict(used)
    while (best := min(left, key=lambda job: (-job[2], spent[job[0]], job[1])))[1] != at:
        left.remove(best)
        spent[best[0]] += 60
        given_away += 1

    crowds = [
        Crowd(
            project,
            60.0,
            higher=sum(job[0] == project and job[2] > 3 for job in jobs),
            older=sum(job[0] == project and job[2] == 3 and job[1] < at for job in jobs),
            younger=sum(job[0] == project == OTHER and job[2] == 3 and job[1] > at for job in jobs),
        )
        for project in (MINE, OTHER)
    ]

    assert before(MINE, used, crowds).jobs == given_away


def test_a_place_is_refused_everywhere_when_all_who_could_take_its_jobs_said_no() -> None:
    said = Refusals({"/a": frozenset({"w1", "w2"}), "/b": frozenset({"w1"}), "#7": frozenset({"w2"})})

    assert said.everywhere(1, ["w1", "w2"]) == ["/a"]
    assert said.everywhere(1, ["w1"]) == ["/a", "/b"]
    assert said.everywhere(7, ["w1", "w2"]) == ["/a", "/b"]
    assert said.everywhere(7, ["w2"]) is None
    assert said.everywhere(1, []) is None
