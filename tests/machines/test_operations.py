"""Any order of what clients and workers may do, on a bad wire: what may be believed holds after every step."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.machines.operations import Operations


def test_what_may_be_believed_holds_after_every_step() -> None:
    run_state_machine_as_test(
        Operations,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
