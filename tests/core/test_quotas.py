"""What a quota denies, what it holds, and the numbers that it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.matching import Shape
from broker.core.placement import Demand
from broker.core.quotas import Has, Over, denies, holds
from broker.wire.projects import Quota

NUMBERS = st.integers(0, 20)
LIMITS = st.one_of(st.none(), NUMBERS)
QUOTAS = st.builds(
    Quota,
    queued=LIMITS,
    running=LIMITS,
    gpus=LIMITS,
    gpu_hours_per_day=st.one_of(st.none(), st.floats(0, 10)),
    when_over=st.sampled_from(["deny", "hold"]),
)
HAVE = st.builds(Has, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.floats(0, 10))


@given(QUOTAS, HAVE, st.integers(1, 20), st.integers(0, 4))
@pytest.mark.guarantee("G38")
def test_what_was_accepted_where_a_quota_denies_never_waits_for_a_number_of_it(
    quota: Quota, has: Has, count: int, gpus: int
) -> None:
    if quota.when_over == "hold" or denies(quota, has, count, gpus) is not None:
        return
    running = has.running + has.queued + count - 1
    held = has.gpus + has.queued_gpus + (count - 1) * gpus

    assert holds(quota, Has(0, 0, running, held, has.gpu_hours), gpus) is None


@given(QUOTAS, HAVE, st.integers(0, 4))
def test_what_starts_stays_within_every_limit(quota: Quota, has: Has, gpus: int) -> None:
    if holds(quota, has, gpus) is not None:
        return

    assert quota.running is None or has.running + 1 <= quota.running
    assert quota.gpus is None or gpus == 0 or has.gpus + gpus <= quota.gpus
    assert quota.gpu_hours_per_day is None or gpus == 0 or has.gpu_hours < quota.gpu_hours_per_day


def test_the_length_of_the_queue_denies_also_where_the_rest_holds() -> None:
    quota = Quota(queued=5, running=1, when_over="hold")

    assert denies(quota, Has(queued=3), 2, 0) is None
    assert denies(quota, Has(queued=3), 3, 0) == Over("queued", 5, 3, 3)


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (Over("queued", 5, 3, 3), "project p may have 5 jobs that wait: it has 3, and this needs 3"),
        (Over("running", 2, 2, 1), "project p may have 2 jobs that run: it has 2, and this needs 1"),
        (Over("gpus", 4, 3, 2), "project p may have 4 GPUs at once: it has 3, and this needs 2"),
        (
            Over("gpu_hours_per_day", 8, 8.26, None),
            "project p may use 8 GPU-hours a day: it has used 8.3 since midnight UTC",
        ),
    ],
)
def test_the_numbers_are_said(over: Over, said: str) -> None:
    assert over.said_of("project p") == said


def test_shapes_of_tokens_with_quotas_are_kept_apart_and_read_back() -> None:
    plain = Shape(1, (), None, "p")
    of_token = Shape(1, ("a",), None, "p", Demand(2, 5), token="agent")

    assert Shape.from_key(of_token.key()) == of_token
    assert Shape.from_key(Shape(1, (), None, "p", token="agent").key()).token == "agent"
    assert plain.key() == '[1,[],null,"p"]'
