"""A change that was decided on rows that are not so any more is not written."""

from __future__ import annotations

import asyncio

import pytest

from broker.core.states import Cause, Facts
from broker.service.rows import read_job
from broker.service.transition import LostSwap, apply
from broker.wire.jobs import CancelRequest
from broker.wire.workers import VerdictWord


@pytest.mark.guarantee("G6")
async def test_a_decision_on_an_older_row_of_a_job_is_not_written(bench) -> None:
    """Its state is the same again: only the version tells that it has changed twice."""
    job = await bench.submit()
    store = bench.broker.store
    older = await store.read(lambda tx: read_job(tx, job))
    worker = await bench.registered()
    await worker.one()
    await bench.sweep(after_s=16)  # never acknowledged: it is queued again
    now = await store.read(lambda tx: read_job(tx, job))
    assert (older.state, older.version) < (now.state, now.version) and older.state is now.state

    with pytest.raises(LostSwap):
        await store.run(
            lambda tx: apply(tx, older, None, Cause.CANCEL_QUEUED, Facts(now=tx.now_ms, listened=0, gone=True))
        )

    assert await bench.state(job) == "queued"
    assert await bench.kinds(job) == ["job_submitted", "job_assigned", "assignment_expired", "job_requeued"]


@pytest.mark.guarantee("G6")
async def test_an_end_and_a_cancel_in_the_same_instant_leave_one_end(bench) -> None:
    for code in (0, 1, 0, 1):
        job = await bench.submit()
        worker = await bench.registered(f"w{job}")
        delivery = await worker.running()

        cancel = bench.client.job_cancel(CancelRequest(job=[job]))
        verdict, _ = await asyncio.gather(worker.finish(delivery, exit_code=code), cancel)

        kinds = await bench.kinds(job)
        assert verdict is VerdictWord.ACCEPTED
        assert await bench.state(job) == ("completed" if code == 0 else "failed")
        assert [kind for kind in kinds if kind in ("job_completed", "job_failed", "job_cancelled")] == kinds[-1:]
