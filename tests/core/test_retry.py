"""How long a failure waits before it is tried again."""

from __future__ import annotations

import math

import pytest

from broker.core.retry import LONGEST_DELAY_S, delay_s
from broker.wire.jobs import MOST_RETRIES


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B86")
@pytest.mark.parametrize("first_s", [0, 0.001, 5, 10, 3600, 86_400])
def test_every_delay_is_finite_never_negative_and_has_a_cap(first_s: float) -> None:
    for retried in (*range(60), MOST_RETRIES, 10**9):
        for chance in (0.0, 0.5, 0.999999):
            found = delay_s(first_s, retried, chance)
            assert math.isfinite(found)
            assert 0 <= found <= max(first_s, LONGEST_DELAY_S)


@pytest.mark.trial("B87")
def test_delays_double_and_half_of_each_is_chance() -> None:
    assert [delay_s(10, n, 1.0) for n in range(4)] == [10, 20, 40, 80]
    assert [delay_s(10, n, 0.0) for n in range(4)] == [5, 10, 20, 40]
