"""Quotas of projects and tokens: denied with numbers and no row, or held and started when there is room again."""

from __future__ import annotations

import asyncio

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project, Quota, TokenTable
from broker.wire.states import Scope
from broker.wire.workers import Outcome
from service.test_reservations import card, says, started, with_gpus
from support.waiting import eventually


def project(**fields: object) -> dict[str, object]:
    return {"projects": {"p": Project(quota=Quota.model_validate(fields))}}


async def denied(bench, **fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await bench.submit(**{"project": "p", **fields})
    assert caught.value.code is ProblemCode.QUOTA_EXCEEDED
    return caught.value


async def events(bench, kind: str) -> list:
    return [event for event in (await bench.client.job_events()).events if event.type.value == kind]


@pytest.mark.guarantee("G38")
@pytest.mark.parametrize(
    ("quota", "fits", "too_much", "said"),
    [
        ({"queued": 3}, {"count": 3}, {}, "project p may have 3 jobs that wait: it has 3, and this needs 1"),
        ({"running": 2}, {"count": 2}, {"count": 2}, "project p may have 2 jobs that run: it has 2, and this needs 2"),
        ({"gpus": 4}, {"gpus": 3}, {"gpus": 2}, "project p may have 4 GPUs at once: it has 3, and this needs 2"),
        ({"gpus": 1}, {"count": 5}, {"count": 2, "gpus": 1}, "may have 1 GPU at once: it has 0, and this needs 2"),
    ],
)
async def test_what_is_over_a_quota_is_denied_with_numbers_one_event_and_no_row(
    make_bench, quota: dict, fits: dict, too_much: dict, said: str
) -> None:
    bench = await make_bench(**project(**quota))
    await bench.submit(project="p", **fits)
    before = (await bench.client.job_list()).counts

    refusal = await denied(bench, **too_much)

    assert said in refusal.detail and "[projects.p.quota]" in refusal.hint
    assert (await bench.client.job_list()).counts == before
    [event] = await events(bench, "job_denied")
    assert (event.project, event.job, event.data["reason"], event.data["field"]) == (
        "p",
        None,
        "quota",
        next(iter(quota)),
    )
    assert event.actor and event.data["limit"] == next(iter(quota.values()))
    other = await bench.submit(project="other", **too_much)
    assert await bench.state(other) == "queued"


@pytest.mark.guarantee("G38")
async def test_an_array_counts_as_all_of_its_jobs_and_exactly_the_limit_is_allowed(make_bench) -> None:
    bench = await make_bench(**project(queued=10))

    await denied(bench, count=11)
    await bench.submit(project="p", count=10)
    await denied(bench)


@pytest.mark.guarantee("G38")
async def test_of_many_submits_at_once_no_more_are_accepted_than_allowed(make_bench) -> None:
    bench = await make_bench(**project(queued=5))

    said = await asyncio.gather(*(bench.submit(project="p") for _ in range(20)), return_exceptions=True)

    assert sum(isinstance(one, int) for one in said) == 5
    assert len(await events(bench, "job_denied")) == 15


@pytest.mark.guarantee("G38")
@pytest.mark.trial("B95")
async def test_what_is_held_waits_with_numbers_and_starts_when_one_has_ended(make_bench) -> None:
    bench = await make_bench(**project(running=2, when_over="hold"))
    jobs = [await bench.submit(project="p") for _ in range(4)]
    other = await bench.submit()
    worker = await bench.registered(slots=8)

    running = await started(worker)
    waiting = (await bench.client.job_get(jobs[2])).waiting

    assert set(running) == {jobs[0], jobs[1], other}
    assert (waiting.code, waiting.need, waiting.have) == ("quota", 1, 0)
    assert waiting.message == "project p may have 2 jobs that run: it has 2, and this needs 1"
    parked = asyncio.create_task(worker.poll(wait_s=5, process=False))
    await eventually(lambda: worker.id in bench.broker.wake._parked, within_s=20)
    await worker.finish(running[jobs[0]])
    assert [delivery.job for delivery in (await parked).deliveries] == [jobs[2]]


@pytest.mark.guarantee("G38")
async def test_a_job_that_needs_another_worker_than_the_one_that_ended_is_woken_too(make_bench) -> None:
    bench = await make_bench(**project(running=1, when_over="hold"))
    a, b = await bench.registered("a", tags=["a"]), await bench.registered("b", tags=["b"])
    await bench.submit(project="p", needs=["a"])
    running = await a.running()
    job = await bench.submit(project="p", needs=["b"])
    parked = asyncio.create_task(b.poll(wait_s=5))
    await eventually(lambda: b.id in bench.broker.wake._parked, within_s=20)

    await a.finish(running)

    assert [delivery.job for delivery in (await parked).deliveries] == [job]


@pytest.mark.guarantee("G38")
async def test_no_more_devices_are_given_to_a_project_than_its_quota(make_bench) -> None:
    bench = await make_bench(**project(gpus=2, when_over="hold"))
    worker = await with_gpus(bench, "anna", *(card(n) for n in range(4)))
    two, one, none = [await bench.submit(project="p", gpus=gpus) for gpus in (2, 1, 0)]
    other = await bench.submit(gpus=1)

    running = await started(worker)

    assert set(running) == {two, none, other}
    assert (await bench.client.job_get(one)).waiting.code == "quota"
    await worker.finish(running[two])
    assert set(await started(worker)) == {one}


@pytest.mark.guarantee("G38")
@pytest.mark.trial("B37")
async def test_a_job_that_a_quota_holds_keeps_no_room_from_others(make_bench) -> None:
    bench = await make_bench(**project(running=0, when_over="hold"))
    worker = await with_gpus(bench, "anna", card(0), card(1))
    await bench.submit(gpus=1)
    await started(worker)
    held = await bench.submit(project="p", gpus=2, priority=50)
    small = await bench.submit(gpus=1)

    assert set(await started(worker)) == {small}
    assert (await bench.client.job_get(held)).waiting.code == "quota"


@pytest.mark.guarantee("G38")
async def test_hours_of_devices_are_counted_while_a_job_runs_and_come_back_with_the_next_day(make_bench) -> None:
    bench = await make_bench(**project(gpu_hours_per_day=0.01, when_over="hold"))
    bench.clock.wall -= bench.clock.wall % 86_400_000  # midnight
    worker = await with_gpus(bench, "anna", card(0), card(1))
    job = await bench.submit(project="p", gpus=1)
    running = await started(worker)
    bench.clock.pass_s(40)
    again = await bench.submit(project="p", gpus=1)
    plain = await bench.submit(project="p")

    assert set(await started(worker)) == {plain}
    waiting = (await bench.client.job_get(again)).waiting
    assert (waiting.code, waiting.message) == (
        "quota",
        "project p may use 0.01 GPU-hours a day: it has used 0.0 since midnight UTC",
    )
    await worker.finish(running[job])
    parked = asyncio.create_task(worker.poll(wait_s=5))
    await eventually(lambda: worker.id in bench.broker.wake._parked, within_s=20)
    bench.clock.wall += 86_400_000
    await bench.sweep()
    assert [delivery.job for delivery in (await parked).deliveries] == [again]


@pytest.mark.guarantee("G38")
async def test_a_tokens_quota_is_of_what_is_submitted_with_it_in_all_projects(make_bench, free_port: int) -> None:
    tokens = {"agent": TokenTable(quota=Quota(running=1, queued=2, when_over="hold"))}
    bench = await make_bench(listen=[f"127.0.0.1:{free_port}"], tokens=tokens)
    token = (await bench.client.token_create("agent", [Scope.SUBMIT])).token
    async with BrokerClient(f"http://127.0.0.1:{free_port}", token) as agent:
        first = (await agent.job_submit(JobSpec(command="true"))).id
        second = (await agent.job_submit(JobSpec(command="true", project="q"))).id
        with pytest.raises(Refused) as caught:
            await agent.job_submit(JobSpec(command="true"))
    mine = await bench.submit()
    worker = await bench.registered(slots=8)

    running = await started(worker)

    assert "token agent may have 2 jobs that wait: it has 2" in caught.value.detail
    assert set(running) == {first, mine}
    assert (await bench.client.job_get(second)).waiting.message.startswith("token agent may have 1 job that runs")
    await worker.finish(running[first])
    assert set(await started(worker)) == {second}


@pytest.mark.guarantee("G38")
@pytest.mark.trial("B95")
@pytest.mark.parametrize("end", ["cancel", "lost", "refused", "cancel queued"])
async def test_however_jobs_end_the_quota_is_free_again(make_bench, end: str) -> None:
    bench = await make_bench(**project(running=2, queued=4, gpus=2))
    worker = await with_gpus(bench, "anna", card(0), card(1))
    jobs = [await bench.submit(project="p", gpus=1, on_worker_lost="orphan") for _ in range(2)]
    deliveries = {} if end == "cancel queued" else await started(worker)
    await denied(bench)

    if end == "lost":
        await bench.sweep(after_s=61)
    elif end == "refused":
        for delivery in deliveries.values():
            await worker.finish(delivery, Outcome.NEVER_EXECUTED)
        await bench.client.job_cancel(CancelRequest(job=jobs))
    else:
        await bench.client.job_cancel(CancelRequest(job=jobs))
        for delivery in deliveries.values():
            await worker.finish(delivery, Outcome.STOPPED)

    await bench.submit(project="p", gpus=1, count=2)
    await denied(bench)


@pytest.mark.guarantee("G38")
@pytest.mark.trial("B95")
async def test_after_many_stops_at_once_exactly_as_many_run_as_before(make_bench) -> None:
    bench = await make_bench(**project(running=4, when_over="hold"))
    worker = await bench.registered(slots=16)
    await bench.submit(project="p", count=40, preemptible=True, on_preempt="requeue")
    running = await started(worker)

    for round_ in range(9):
        assert len(running) == 4
        if round_ % 3 == 0:
            await bench.client.job_cancel(CancelRequest(job=list(running)))
        elif round_ % 3 == 1:
            for job in running:
                await bench.client.job_preempt(job)
        else:
            await bench.sweep(after_s=61)  # lost: its worker is heard again, and told to stop them
            worker.held.clear()
            await worker.poll(process=False, accept=False)
        if round_ % 3 != 2:
            for delivery in running.values():
                await worker.finish(delivery, Outcome.STOPPED)
        running = await started(worker)

    counts = (await bench.client.job_list()).counts
    assert (counts["running"], counts["cancelled"]) == (4, 12)


async def test_a_project_without_a_quota_has_that_of_the_table_of_all(make_bench) -> None:
    both = {"_default": Project(quota=Quota(queued=1)), "free": Project(quota=Quota())}
    bench = await make_bench(projects=both)

    await denied(bench, count=2)
    await bench.submit(project="free", count=2)


async def test_that_it_waits_for_a_quota_is_said_at_the_submit_and_explained(make_bench) -> None:
    bench = await make_bench(**project(running=1, when_over="hold"))
    worker = await with_gpus(bench, "anna", card(0))
    await bench.submit(project="p")
    await started(worker)

    said = await bench.client.job_submit(JobSpec(command="true", project="p"))
    explained = await bench.client.job_explain(said.id)

    assert said.waiting.code == explained.waiting.code == "quota"
    assert explained.suggestion == "wait until another job of the project has ended, or have its quota raised"
    await says(worker, 2, card(0))
