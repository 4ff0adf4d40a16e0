"""`eta`, `start_estimate_s`: from what runs, what is ahead and how long such jobs ran; and silence where that is unknown."""

from __future__ import annotations

import pytest

from broker.core.forecast import MOST_AHEAD
from broker.service import sweeps
from broker.wire.workers import Outcome


async def known(bench, worker, command: str, *seconds: float) -> None:
    """Let it be known how long this runs."""
    for duration_s in seconds:
        await bench.submit(command=command)
        await worker.finish(await worker.running(), duration_s=duration_s)


async def test_a_queued_job_says_when_it_starts_and_how_long_it_runs(bench) -> None:
    worker = await bench.registered(slots=1)
    await known(bench, worker, "train.py", 100, 100, 100)
    await bench.submit(command="train.py")
    await worker.running()
    bench.clock.pass_s(30)
    await bench.submit(command="train.py", count=2)
    job = await bench.submit(command="train.py")

    found = await bench.client.job_explain(job)
    eta = (await bench.client.job_get(job)).eta

    assert (found.start_estimate_s, eta.start_s, eta.run_s) == (270, 270, 100)
    assert found.basis == "if 1 that run and 2 ahead of it take as long as such jobs did before"
    assert eta.basis == f"start: {found.basis}; run: median of 3 runs of this command"


async def test_what_is_ahead_is_so_by_the_priority_of_its_project_too(make_bench) -> None:
    bench = await make_bench(projects={"paper": {"priority": 20}})
    worker = await bench.registered(slots=1)
    await known(bench, worker, "train.py", 100, 100, 100)
    await bench.submit(command="train.py")
    await worker.running()
    mine = await bench.submit(command="train.py", priority=10)
    await bench.submit(command="train.py", project="paper")
    first = await bench.submit(command="train.py", project="paper", priority=1)

    starts = [(await bench.client.job_explain(job)).start_estimate_s for job in (first, mine)]

    assert starts == [100, 300]


async def test_what_a_quota_holds_or_everybody_refused_is_not_ahead(make_bench) -> None:
    bench = await make_bench(projects={"small": {"priority": 50, "quota": {"running": 1, "when_over": "hold"}}})
    worker = await bench.registered(slots=1)
    await known(bench, worker, "train.py", 100, 100, 100)
    await bench.submit(command="never.py", cwd="/data", priority=9)
    said = "cwd /data does not exist on w1"
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="cwd_missing", reason=said)
    await bench.sweep()
    await bench.submit(command="train.py", project="small")
    await worker.running()
    await bench.submit(command="never.py", project="small")
    job = await bench.submit(command="train.py")

    found = await bench.client.job_explain(job)

    assert (found.ahead, found.start_estimate_s) == (None, 100)


async def test_a_running_job_says_how_much_is_left_and_that_it_runs_longer_than_any_before(bench) -> None:
    worker = await bench.registered(slots=1)
    await known(bench, worker, "train.py", 100, 100, 130)
    job = await bench.submit(command="train.py")
    await worker.running()
    bench.clock.pass_s(30)
    eta = (await bench.client.job_get(job)).eta
    assert (eta.run_s, eta.left_s, eta.start_s) == (100, 70, None)

    bench.clock.pass_s(80)
    eta = (await bench.client.job_get(job)).eta
    assert (eta.run_s, eta.left_s) == (130, 20)
    assert eta.basis == "median of 1 run of this command that took longer than this one has"

    bench.clock.pass_s(40)
    eta = (await bench.client.job_get(job)).eta
    assert (eta.run_s, eta.left_s) == (None, None)
    assert eta.basis == "it runs longer than the last 3 runs of this command"


@pytest.mark.guarantee("G35")
async def test_nothing_is_said_of_what_never_ran(bench) -> None:
    worker = await bench.registered(slots=1)
    running = await bench.submit(command="a.py")
    await worker.running()
    queued = await bench.submit(command="b.py")
    assert (await bench.client.job_get(running)).eta is None
    assert (await bench.client.job_get(queued)).eta is None
    found = await bench.client.job_explain(queued)
    assert found.start_estimate_s is None
    assert found.basis == f"too little is known of how long what is in its way runs: {running}.1"


async def test_a_job_that_is_being_stopped_ends_within_its_grace(bench) -> None:
    worker = await bench.registered(slots=1)
    running = await bench.submit(command="a.py", checkpoint_grace_s=40, preemptible=True)
    await worker.running()
    queued = await bench.submit(command="b.py")
    await bench.client.job_preempt(running)
    bench.clock.pass_s(10)
    assert (await bench.client.job_explain(queued)).start_estimate_s == 30


async def test_a_child_starts_after_its_parents(bench) -> None:
    worker = await bench.registered(slots=4)
    await known(bench, worker, "a.py", 100, 100, 100)
    parent = await bench.submit(command="a.py")
    await worker.running()
    child = await bench.submit(command="b.py", depends_on=[parent])
    found = await bench.client.job_explain(child)
    assert (found.waiting.code, found.start_estimate_s) == ("dependencies", 100)
    assert found.basis == "if 1 that run take as long as such jobs did before"
    grandchild = await bench.submit(depends_on=[child])
    assert (await bench.client.job_explain(grandchild)).start_estimate_s is None


async def test_the_work_of_an_estimate_is_bounded_and_that_is_said(bench) -> None:
    worker = await bench.registered(slots=1)
    await known(bench, worker, "a.py", 1, 1, 1)
    await bench.submit(command="a.py")
    await worker.running()
    await bench.submit(command="a.py", count=MOST_AHEAD + 1)
    last = await bench.submit(command="a.py")
    found = await bench.client.job_explain(last)
    assert (found.start_estimate_s, found.ahead.jobs) == (None, MOST_AHEAD + 1)
    assert found.basis == f"more than {MOST_AHEAD} jobs, or many kinds of them, are ahead of it"


async def test_a_worker_that_is_away_or_closed_starts_nothing(bench) -> None:
    worker = await bench.registered(slots=1)
    await known(bench, worker, "a.py", 10, 10, 10)
    job = await bench.submit(command="a.py")
    assert (await bench.client.job_explain(job)).start_estimate_s == 0
    bench.clock.pass_s(61)
    await sweeps.expire_leases(bench.broker)
    found = await bench.client.job_explain(job)
    assert (found.start_estimate_s, found.basis) == (None, None)
    assert (await bench.client.job_get(job)).eta.run_s == 10
