"""How long a wait takes, on a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from broker.service.queries import LOOKS_AGAIN_S


@pytest.mark.guarantee("G20")
@pytest.mark.trial("B58")
async def test_a_wait_of_an_hour_is_answered_after_40_seconds_and_not_before(bench) -> None:
    job = await bench.submit()
    wait = asyncio.create_task(bench.client.job_wait([job], timeout_s=3600))
    await asyncio.sleep(0.5)
    bench.clock.pass_s(38)
    early, _ = await asyncio.wait({wait}, timeout=LOOKS_AGAIN_S + 1)
    bench.clock.pass_s(41)  # enough also if it came after the first step
    late, _ = await asyncio.wait({wait}, timeout=3 * LOOKS_AGAIN_S)

    assert (early, late) == (set(), {wait})
    waited = wait.result()
    assert (waited.done, waited.pending) == (False, [job])
    assert await bench.state(job) == "queued"
