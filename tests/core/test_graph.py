"""Which ends let a child start: every policy against every state, and no parent forgotten."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.graph import Parent, Standing, decide, of_parent
from broker.core.states import TERMINAL
from broker.wire.states import DependencyPolicy as P
from broker.wire.states import JobState as J

MET = {
    P.SUCCESS: {J.COMPLETED},
    P.ANY_EXIT: {J.COMPLETED, J.FAILED, J.CANCELLED, J.PREEMPTED, J.ORPHANED, J.SCHEDULING_TIMEOUT},
    P.FAILURE: {J.FAILED, J.CANCELLED, J.PREEMPTED, J.ORPHANED, J.SCHEDULING_TIMEOUT},
}


@pytest.mark.parametrize(("policy", "state"), list(itertools.product(P, J)))
def test_every_end_has_an_answer_and_only_an_end_has(policy: P, state: J) -> None:
    expected = Standing.OPEN if state not in TERMINAL else Standing.MET if state in MET[policy] else Standing.NEVER

    assert of_parent(policy, state) is expected


@given(policy=st.sampled_from(P), states=st.lists(st.sampled_from(J), max_size=6))
def test_all_parents_count(policy: P, states: list[J]) -> None:
    verdict = decide(policy, [Parent(n, state) for n, state in enumerate(states)])

    each = [of_parent(policy, state) for state in states]
    if Standing.NEVER in each:
        assert verdict.standing is Standing.NEVER
        assert verdict.because == Parent(each.index(Standing.NEVER), states[each.index(Standing.NEVER)])
    elif Standing.OPEN in each:
        assert (verdict.standing, verdict.open) == (Standing.OPEN, each.count(Standing.OPEN))
        assert verdict.because is not None
    else:
        assert (verdict.standing, verdict.because) == (Standing.MET, None)
