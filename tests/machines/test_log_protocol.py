"""Any order of sending, doubling, losing and crashing: the broker's copy is what was written, as far as it goes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.machines.logs import Bench, log_protocol


@pytest.mark.guarantee("G15")
def test_the_brokers_copy_is_an_exact_prefix_and_nothing_durable_is_lost() -> None:
    bench = Bench()
    try:
        run_state_machine_as_test(
            log_protocol(bench),
            settings=settings(
                max_examples=300,
                stateful_step_count=50,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        bench.close()
