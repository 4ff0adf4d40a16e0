"""Whose turn it is: usage that decays, and ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.order import AHEAD_S, DAY_MS, Terms, Used, priority_of, rank, share_of
from broker.wire.projects import Project

DAY = Terms(half_life_s=86_400, gpu_weight=16)
INSTANTS = st.integers(min_value=0, max_value=10**13)
USES = st.builds(
    Used,
    millicpus=st.integers(0, 10**6),
    gpus=st.integers(0, 1000),
    since=INSTANTS,
    cpu_us=st.integers(0, 10**15),
    gpu_ms=st.integers(0, 10**12),
    amount=st.floats(0, 1e12),
    folded_at=INSTANTS,
    day=st.integers(0, 10**5),
    today_gpu_ms=st.integers(0, DAY_MS),
)


def test_a_second_of_a_gpu_counts_as_several_of_a_processor() -> None:
    used = Used(cpu_us=3_000_000, gpu_ms=2_000)

    assert DAY.amount(used, 0) == 3 + 2 * 16


def test_what_runs_counts_from_its_beginning_and_a_while_ahead() -> None:
    used = Used(millicpus=1500, gpus=1, since=1000)

    assert DAY.amount(used, 11_000) == pytest.approx(10 * (1.5 + 16))
    assert DAY.with_what_runs(used, 11_000) == pytest.approx((10 + AHEAD_S) * (1.5 + 16))


def test_what_was_used_counts_half_after_each_half_life() -> None:
    used = Used(amount=1000, folded_at=0, since=0)

    assert DAY.amount(used, 86_400_000) == pytest.approx(500)
    assert DAY.amount(used, 3 * 86_400_000) == pytest.approx(125)


@given(USES, INSTANTS)
def test_whatever_the_clocks_say_usage_is_a_number_and_never_less_than_nothing(used: Used, listened: int) -> None:
    amount = DAY.amount(used, listened)

    assert 0 <= amount < float("inf")
    assert amount <= DAY.with_what_runs(used, listened)


@given(USES, INSTANTS, INSTANTS)
def test_of_a_day_no_more_is_counted_than_was_held_in_it(used: Used, listened: int, now: int) -> None:
    seconds = used.gpu_s_of_day(listened, now)

    assert seconds >= 0
    if used.day != now // DAY_MS:
        assert seconds <= used.gpus * (now % DAY_MS) / 1000


@given(st.lists(st.tuples(st.integers(-50, 150), st.floats(0, 1e9), st.integers(1, 10**6)), min_size=2, unique=True))
def test_priority_goes_before_usage_and_usage_before_age(jobs: list[tuple[int, float, int]]) -> None:
    ordered = sorted(jobs, key=lambda job: rank(*job))

    for one, next_ in itertools.pairwise(ordered):
        assert one[0] >= next_[0]
        if one[0] == next_[0]:
            assert one[1] <= next_[1]
            if one[1] == next_[1]:
                assert one[2] < next_[2]


def test_what_a_project_leaves_open_is_what_the_table_of_all_says() -> None:
    projects = {"_default": Project(priority=20, share=3), "train": Project(priority=5), "zero": Project(priority=0)}

    assert [priority_of(projects, name) for name in ("train", "zero", "other")] == [5, 0, 20]
    assert [share_of(projects, name) for name in ("train", "other")] == [3, 3]
    assert (priority_of({}, "train"), share_of({}, "train")) == (0, 1)
