"""What a delivery has used, put together from what is told now and then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.usage import largest
from broker.wire.jobs import Peak


def test_the_largest_of_each_number_counts_whenever_it_was_told() -> None:
    told = [Peak(rss_mb=100, cpu_s=1), Peak(rss_mb=900, vram_mb=4096, cpu_s=5), Peak(rss_mb=50, vram_mb=12, cpu_s=2)]
    found = None
    for said in told:
        found = largest(found, said)
    assert found == Peak(rss_mb=900, vram_mb=4096, cpu_s=5)


def test_of_a_mean_the_newest_counts_and_what_is_not_told_changes_nothing() -> None:
    assert largest(Peak(gpu=80), Peak(gpu=20)) == Peak(gpu=20)
    assert largest(Peak(gpu=80, vram_mb=1), Peak(rss_mb=2)) == Peak(gpu=80, vram_mb=1, rss_mb=2)
    assert largest(Peak(gpu=80), None) == Peak(gpu=80)
    assert largest(None, None) is None


NUMBERS = st.one_of(st.none(), st.floats(0, 1e9))
PEAKS = st.builds(Peak, rss_mb=NUMBERS, vram_mb=st.one_of(st.none(), st.integers(0, 10**6)), cpu_s=NUMBERS)


@given(st.lists(PEAKS, min_size=1))
def test_a_repeat_and_another_order_come_to_the_same(told: list[Peak]) -> None:
    def all_of(some: list[Peak]) -> Peak | None:
        found = None
        for said in some:
            found = largest(found, said)
        return found

    assert all_of(told) == all_of(told[::-1]) == all_of([*told, *told])


@pytest.mark.parametrize("name", ["rss_mb", "vram_mb", "cpu_s"])
def test_nothing_known_is_not_zero(name: str) -> None:
    assert getattr(largest(Peak(), Peak(gpu=1)), name) is None
