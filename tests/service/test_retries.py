"""Failures that are tried again: whose fault they are, when, how often, and what waits for them meanwhile."""

from __future__ import annotations

import pytest

from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest
from broker.wire.workers import Outcome

DELAY_S = 10


async def fails(worker, code: int = 3, **fields: object) -> None:
    await worker.finish(await worker.running(), exit_code=code, **fields)


async def waits(bench, job: int) -> str | None:
    waiting = (await bench.client.job_get(job)).waiting
    return waiting.code if waiting else None


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B87")
@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_a_job_that_always_fails_is_started_once_more_than_it_has_retries(bench, retries: int) -> None:
    job = await bench.submit(retries=retries, retry_delay_s=0)
    worker = await bench.registered()

    for n in range(retries):
        await fails(worker)
        assert (await bench.state(job), await bench.assignments(job)) == ("queued", ["failed"] * (n + 1))
    await fails(worker)

    got = await bench.client.job_get(job)
    assert (got.state.value, got.exit_code, got.attempt) == ("failed", 3, retries + 1)
    told = (await bench.client.job_events(job=job, type=EventType.JOB_RETRYING)).events
    assert [(event.data["retry"], event.data["retries"]) for event in told] == [
        (n + 1, retries) for n in range(retries)
    ]
    assert (await worker.poll()).deliveries == []


@pytest.mark.guarantee("G50")
async def test_its_process_is_told_how_often_one_was_started_before(bench) -> None:
    await bench.submit(retries=1, retry_delay_s=0)
    worker = await bench.registered()
    await fails(worker)

    again = await worker.one()

    assert (again.attempt, again.restarts) == (2, 1)


@pytest.mark.guarantee("G50")
async def test_it_waits_its_back_off_costs_polls_nothing_meanwhile_and_starts_then(bench) -> None:
    job = await bench.submit(retries=2, retry_delay_s=DELAY_S)
    worker = await bench.registered()
    await fails(worker)

    assert await waits(bench, job) == "retry_delay"
    assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=DELAY_S / 2 - 1)  # half of it is no chance
    assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=DELAY_S / 2 + 1)

    await fails(worker)
    await bench.sweep(after_s=DELAY_S)  # the second one is twice as long, and half of that is sure
    assert (await bench.state(job), await waits(bench, job) is None) == ("queued", False)
    await bench.sweep(after_s=DELAY_S)
    await worker.finish(await worker.running())
    assert await bench.state(job) == "completed"


@pytest.mark.guarantee("G50")
async def test_only_a_failure_of_the_workload_uses_a_retry(bench) -> None:
    job = await bench.submit(retries=1, retry_delay_s=0, preemptible=True, on_preempt="requeue")
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.client.job_preempt(job)
    stop = (await worker.poll()).stops[0]
    await worker.finish(delivery, Outcome.STOPPED, exit_code=1, stop=stop.id)  # preempted
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="gone", reason="no")
    await bench.sweep(after_s=61)
    await worker.running()
    await bench.sweep(after_s=61)  # lost
    worker.held.clear()

    await fails(worker)

    assert await bench.state(job) == "queued"
    await fails(worker)
    assert await bench.state(job) == "failed"


@pytest.mark.guarantee("G50")
@pytest.mark.parametrize(
    ("outcome", "fields"),
    [
        (Outcome.LIMIT, {"limit": {"code": "max_wall", "limit_s": 5, "seen_s": 6}}),
        (Outcome.LAUNCH_FAILED, {"reason_code": "launch_failed", "reason": "no such file"}),
        (Outcome.EXITED, {"signal": "SIGKILL"}),
    ],
)
async def test_what_is_no_plain_exit_code_is_the_end(bench, outcome: Outcome, fields: dict) -> None:
    job = await bench.submit(retries=5, retry_delay_s=0)
    worker = await bench.registered()

    await worker.finish(await worker.running(), outcome, exit_code=None, **fields)

    assert await bench.state(job) == "failed"


@pytest.mark.parametrize(("ends", "state"), [(75, "queued"), (1, "failed")])
async def test_with_a_list_of_exit_codes_only_these_are_tried_again(bench, ends: int, state: str) -> None:
    job = await bench.submit(retries=5, retry_delay_s=0, retry_on=[75, 137])
    worker = await bench.registered()

    await fails(worker, ends)

    assert await bench.state(job) == state


async def test_a_signal_is_tried_again_where_the_list_has_what_a_shell_makes_of_it(bench) -> None:
    job = await bench.submit(retries=5, retry_delay_s=0, retry_on=[137])
    worker = await bench.registered()

    await worker.finish(await worker.running(), Outcome.EXITED, exit_code=None, signal="SIGKILL")

    assert await bench.state(job) == "queued"


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B89")
async def test_children_wait_through_failures_that_are_tried_again(bench) -> None:
    parent = await bench.submit(retries=2, retry_delay_s=0)
    child = await bench.submit(depends_on=[parent])
    worker = await bench.registered()
    for _ in range(2):
        await fails(worker)
        await bench.sweep(after_s=20)
        assert (await bench.state(child), await waits(bench, child)) == ("queued", "dependencies")

    await worker.finish(await worker.running())

    assert await bench.state(parent) == "completed"
    assert (await worker.running()).job == child


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B89")
async def test_a_cancel_during_the_back_off_is_for_good(bench) -> None:
    job = await bench.submit(retries=2, retry_delay_s=DELAY_S)
    worker = await bench.registered()
    await fails(worker)

    await bench.client.job_cancel(CancelRequest(job=[job]))

    for _ in range(10):
        await bench.sweep(after_s=30)
        assert (await worker.poll()).deliveries == []
    assert await bench.state(job) == "cancelled"


@pytest.mark.guarantee("G50")
async def test_one_that_is_to_be_stopped_is_not_tried_again(bench) -> None:
    job = await bench.submit(retries=2, retry_delay_s=0)
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.client.job_cancel(CancelRequest(job=[job]))

    await worker.finish(delivery, exit_code=3)  # by itself, before TERM was delivered

    assert await bench.state(job) == "failed"


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B88")
async def test_each_member_of_an_array_has_its_own_count(bench) -> None:
    array = await bench.submit(count=20, retries=2, retry_delay_s=0)
    workers = [await bench.registered(f"w{n}") for n in range(10)]
    starts = 0

    while (await bench.client.job_list(array=array)).counts != {"failed": 20}:
        for worker in workers:
            for delivery in (await worker.poll()).deliveries:
                await worker.ack(delivery)
                await worker.start(delivery)
                await worker.finish(delivery, exit_code=1)
                starts += 1

    assert starts == 60


@pytest.mark.guarantee("G50")
async def test_a_failure_that_is_tried_again_does_not_count_for_its_array(bench) -> None:
    array = await bench.submit(count=2, retries=1, retry_delay_s=0, max_failures=1, max_parallel=1)
    worker = await bench.registered()

    await fails(worker)

    assert (await bench.client.job_list(array=array)).counts == {"queued": 2}
    await fails(worker)
    assert (await bench.client.job_list(array=array)).counts == {"failed": 1, "cancelled": 1}


@pytest.mark.guarantee("G50")
@pytest.mark.parametrize("policy", ["requeue", "orphan"])
async def test_a_late_report_after_a_loss_is_judged_alike(bench, policy: str) -> None:
    job = await bench.submit(retries=1, retry_delay_s=0, on_worker_lost=policy)
    child = await bench.submit(depends_on=[job])
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    lost = await bench.state(job)

    await worker.finish(delivery, exit_code=3)

    assert lost == ("queued" if policy == "requeue" else "orphaned")
    assert (await bench.state(job), await bench.state(child)) == ("queued", "queued")
    assert await bench.assignments(job) == ["failed"]
    await fails(worker)
    assert (await bench.state(job), await bench.state(child)) == ("failed", "cancelled")


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B35")
async def test_one_that_takes_its_workers_along_ends_with_the_third_whatever_retries_it_has(bench) -> None:
    job = await bench.submit(retries=100, retry_delay_s=0, priority=50)
    other = await bench.submit()
    for n in range(3):
        worker = await bench.registered(f"w{n}", slots=1)
        assert (await worker.running()).job == job
        await bench.sweep(after_s=61)

    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code, got.attempt) == ("orphaned", "worker_lost", 3)
    assert "job_retrying" not in await bench.kinds(job)
    worker = await bench.registered("w9")
    await worker.finish(await worker.running())
    assert await bench.state(other) == "completed"


@pytest.mark.trial("B87")
async def test_a_projects_default_is_beaten_by_none_at_all(make_bench) -> None:
    bench = await make_bench(projects={"default": {"retries": 3, "retry_delay_s": 0}})
    job, by_default = await bench.submit(retries=0), await bench.submit()
    worker = await bench.registered(slots=1)
    for _ in range(5):
        await fails(worker)

    assert ((await bench.client.job_get(job)).attempt, (await bench.client.job_get(by_default)).attempt) == (1, 4)
    assert (await bench.client.job_get(by_default, detail="full")).sources["retries"] == "project"
