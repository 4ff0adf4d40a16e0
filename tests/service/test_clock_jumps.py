"""The wall clock is for people: when it jumps, nothing is late and nothing is early."""

from __future__ import annotations

import pytest

from broker.wire.workers import Outcome

HOUR_MS = 3_600_000


@pytest.mark.trial("B113")
@pytest.mark.guarantee("G10")
async def test_a_clock_that_jumps_forward_stops_nothing_that_is_about_to_start(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await bench.sweep()

    bench.clock.wall += 2 * HOUR_MS
    await bench.sweep()

    assert (await worker.report()).stops == []
    await worker.start(delivery)
    assert await bench.state(job) == "running"


@pytest.mark.trial("B113")
async def test_a_refusal_does_not_outlast_a_clock_that_jumps_back(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.finish(delivery, Outcome.REFUSED, reason_code="disk_full", reason="no room")

    bench.clock.wall -= 4 * HOUR_MS
    await bench.sweep()
    early = await worker.poll()
    await bench.sweep(after_s=61)
    later = await worker.poll()

    assert (len(early.deliveries), len(later.deliveries)) == (0, 1)
