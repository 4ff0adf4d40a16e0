"""Any order of sending, doubling, losing and crashing: the broker's copy is what was written, as far as it goes."""

from __future__ import annotations

import pytest

from support.machines.logs import Bench, log_protocol
from support.machines.running import tell


@pytest.mark.guarantee("G15")
def test_the_brokers_copy_is_an_exact_prefix_and_nothing_durable_is_lost() -> None:
    bench = Bench()
    try:
        tell(log_protocol(bench), 200, 50)
    finally:
        bench.close()
