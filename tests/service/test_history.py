"""How long jobs ran is kept with their ends, a bounded number of them, and goes when nobody runs such a thing."""

from __future__ import annotations

import pytest

from broker.core.estimates import MOST_KEPT
from broker.core.fingerprint import fingerprint
from broker.service import history, retention
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.workers import Outcome


async def known(bench, command: str):
    key = fingerprint(JobSpec(command=command))
    return await bench.broker.store.read(lambda tx: history.estimate(tx, key))


async def ended(bench, worker, command: str, duration_s: float, **final: object) -> None:
    await bench.submit(command=command)
    await worker.finish(await worker.running(), duration_s=duration_s, **final)


async def test_the_end_of_a_job_is_a_sample_by_its_supervisors_clock(bench) -> None:
    worker = await bench.registered()
    for duration_s in (60, 70, 65):
        await ended(bench, worker, "python train.py --lr 0.1", duration_s)
    found = await known(bench, "bash -c 'python train.py --lr 0.1'")
    assert (found.run_s, found.upper_s, found.samples) == (65, 70, 3)
    assert (await known(bench, "python train.py --lr 0.3")).run_s == 65


@pytest.mark.guarantee("G35")
async def test_failures_are_kept_apart_and_stops_not_at_all(bench) -> None:
    worker = await bench.registered()
    for duration_s in (60, 70, 65):
        await ended(bench, worker, "train.py", duration_s)
    await ended(bench, worker, "train.py", 1, exit_code=1)
    job = await bench.submit(command="train.py")
    delivery = await worker.running()
    await bench.client.job_cancel(CancelRequest(job=[job]))
    await worker.finish(delivery, Outcome.STOPPED, duration_s=2, exit_code=143)
    found = await known(bench, "train.py")
    assert (found.run_s, found.samples) == (65, 3)
    assert found.basis == "median of 3 runs of this command; 1 failed and is not counted"


async def test_a_report_that_is_repeated_is_no_second_sample(bench) -> None:
    worker = await bench.registered()
    await bench.submit(command="train.py")
    delivery = await worker.running()
    await worker.finish(delivery, duration_s=5)
    await worker.finish(delivery, duration_s=5)
    assert (await known(bench, "train.py")).samples == 1


async def test_a_bounded_number_is_kept(bench) -> None:
    worker = await bench.registered()
    for number in range(MOST_KEPT + 8):
        await ended(bench, worker, "train.py", number)
    rows = await bench.broker.store.read(lambda tx: history.history(tx, fingerprint(JobSpec(command="train.py"))))
    assert [run.run_s for run in rows.runs] == list(range(8, MOST_KEPT + 8))


async def test_members_of_an_array_are_samples_of_one_command(bench) -> None:
    worker = await bench.registered(slots=1)
    await bench.submit(command="train.py", count=3)
    for _ in range(3):
        await worker.finish(await worker.running(), duration_s=9)
    assert (await known(bench, "train.py")).run_s == 9


async def test_what_nobody_runs_any_more_is_forgotten(make_bench) -> None:
    bench = await make_bench(keep_jobs_s=100, keep_logs_s=100)
    worker = await bench.registered()
    for _ in range(3):
        await ended(bench, worker, "old.py", 5)
    bench.clock.pass_s(90)
    await ended(bench, worker, "new.py", 5)
    bench.clock.pass_s(20)
    await retention.prune(bench.broker)
    assert (await known(bench, "old.py")).samples == 0
    assert (await known(bench, "new.py")).samples == 1
