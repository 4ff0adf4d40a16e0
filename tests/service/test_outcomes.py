"""Progress, results and artifacts, as a worker by hand tells them to the real broker."""

from __future__ import annotations

from broker.wire.workers import VerdictWord

W = VerdictWord


async def test_a_result_is_the_jobs_as_soon_as_it_has_ended(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    kept = await bench.client.put_result(worker.id, job, 1, delivery.token, 1, b'{"loss": 0.25, "best": null}')
    again = await bench.client.put_result(worker.id, job, 1, delivery.token, 1, b'{"loss": 1}')
    await worker.finish(delivery)
    view = await bench.client.job_get(job)
    waited = await bench.client.job_wait([job])
    assert (kept.duplicate, again.duplicate) == (False, True)
    assert view.result == {"loss": 0.25, "best": None}
    assert waited.jobs[0].result == view.result
