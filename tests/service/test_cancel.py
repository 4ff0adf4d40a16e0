"""Stops: a request until the worker confirms; what was cancelled never comes back as something else."""

from __future__ import annotations

import pytest

from broker.wire.jobs import CancelRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope
from broker.wire.workers import Outcome, Phase, VerdictWord

W = VerdictWord


async def cancel(bench, *jobs: int, **fields: object):
    return await bench.client.job_cancel(CancelRequest.model_validate({"job": list(jobs), **fields}))


async def test_a_queued_job_is_cancelled_at_once(bench) -> None:
    job = await bench.submit()

    answer = await cancel(bench, job, reason="changed my mind")

    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.message) == ("cancelled", "changed my mind")
    assert answer.counts == {"cancelled": 1}


@pytest.mark.guarantee("G14")
async def test_a_job_whose_assignment_is_pending_is_cancelled_at_once_and_its_ack_refused(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()

    await cancel(bench, job)

    assert await bench.state(job) == "cancelled"
    assert await worker.ack(delivery) is W.STALE_ASSIGNMENT


@pytest.mark.guarantee("G13")
async def test_a_running_job_is_stopping_until_its_tree_is_gone(bench) -> None:
    job = await bench.submit(checkpoint_grace_s=7)
    worker = await bench.registered()
    delivery = await worker.running()

    answer = await cancel(bench, job)
    between = await bench.client.job_get(job)
    stop = (await worker.report()).stops[0]
    worker.hold(delivery, Phase.RUNNING, stopping=stop.id)
    shown = await worker.report()
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0, stop=stop.id)

    assert answer.counts == {"stopping": 1}
    assert between.state.value == "running"
    assert (between.stopping.by, between.stopping.grace_s) == (bench_actor(between), 7)
    assert shown.stops == []  # the list shows it: no hot loop
    got = await bench.client.job_get(job)
    assert (got.state.value, got.exit_code) == ("cancelled", 0)


def bench_actor(job):
    return job.stopping.by


@pytest.mark.guarantee("G13")
async def test_a_stop_is_repeated_until_the_list_shows_it(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()
    await cancel(bench, job)

    first, second = (await worker.report()).stops, (await worker.poll()).stops

    assert first == second and len(first) == 1


async def test_a_job_that_ended_by_itself_before_the_stop_keeps_its_end(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await cancel(bench, job)

    await worker.finish(delivery, Outcome.EXITED, exit_code=0)

    assert await bench.state(job) == "completed"


@pytest.mark.trial("B26")
@pytest.mark.guarantee("G14")
async def test_a_cancel_between_ack_and_start_always_ends_cancelled(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await cancel(bench, job)

    await worker.start(delivery)
    await worker.finish(delivery, Outcome.EXITED, exit_code=0)

    assert await bench.state(job) == "cancelled"


@pytest.mark.trial("B26")
@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.NEVER_EXECUTED])
@pytest.mark.guarantee("G14")
async def test_a_refusal_does_not_undo_a_cancel(bench, outcome: Outcome) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await cancel(bench, job)

    await worker.finish(delivery, outcome)

    assert await bench.state(job) == "cancelled"


@pytest.mark.guarantee("G14")
async def test_a_job_lost_while_a_cancel_was_requested_stays_cancelled(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await cancel(bench, job)
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "cancelled"

    listed = await worker.report()

    assert listed.verdicts[0].verdict is W.STALE_ASSIGNMENT  # its holder is told to stop
    assert await worker.finish(delivery, exit_code=0) is W.STALE_ASSIGNMENT
    assert await bench.state(job) == "cancelled"


async def test_a_repeat_is_harmless_and_says_so(bench) -> None:
    job = await bench.submit()

    first, second = await cancel(bench, job), await cancel(bench, job)

    assert [first.jobs[0].note, second.jobs[0].note] == ["cancelled before it ran", "was cancelled already"]


@pytest.mark.trial("B27")
async def test_cancelling_a_job_that_has_ended_changes_nothing(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.finish(await worker.running(), exit_code=2)

    answer = await cancel(bench, job)

    assert answer.counts == {"already_ended": 1}
    assert await bench.state(job) == "failed"


async def test_an_orphan_that_was_cancelled_is_stopped_when_its_worker_is_heard(bench) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)

    answer = await bench.client.job_cancel(CancelRequest(job=[job]))
    worker.hold(delivery, Phase.RUNNING)
    heard = await worker.report()
    await worker.finish(delivery, Outcome.STOPPED, signal="SIGTERM")

    assert [one.note for one in answer.jobs] == [
        "had ended; what may still run of it is stopped when its worker is heard"
    ]
    assert [verdict.verdict for verdict in heard.verdicts] == [VerdictWord.STALE_ASSIGNMENT]
    assert await bench.state(job) == "orphaned"


async def test_an_unknown_id_refuses_the_whole_call(bench) -> None:
    job = await bench.submit()

    with pytest.raises(Refused) as refused:
        await cancel(bench, job, 999)

    assert refused.value.code is ProblemCode.UNKNOWN_JOB
    assert await bench.state(job) == "queued"


async def test_an_array_is_cancelled_in_one_call(bench) -> None:
    array = await bench.submit(count=150)

    answer = await bench.client.job_cancel(CancelRequest(array=array))

    assert answer.counts == {"cancelled": 150}
    assert len(answer.jobs) == 100
    assert (await bench.client.job_list()).counts == {"cancelled": 150}


async def test_a_filter_that_hits_more_than_ten_running_jobs_must_be_confirmed(bench) -> None:
    await bench.submit(count=11)
    worker = await bench.registered(slots=20)
    for delivery in (await worker.poll()).deliveries:
        await worker.ack(delivery)

    with pytest.raises(Refused) as refused:
        await bench.client.job_cancel(CancelRequest(project="default"))
    confirmed = await bench.client.job_cancel(CancelRequest(project="default", force=True))

    assert refused.value.code is ProblemCode.CONFIRMATION_NEEDED
    assert "force" in refused.value.hint
    assert confirmed.counts == {"stopping": 11}


async def test_ten_running_jobs_need_no_confirmation(bench) -> None:
    await bench.submit(count=10)
    worker = await bench.registered(slots=20)
    for delivery in (await worker.poll()).deliveries:
        await worker.ack(delivery)

    assert (await bench.client.job_cancel(CancelRequest(project="default"))).counts == {"stopping": 10}


async def test_running_work_of_another_actor_must_be_confirmed(make_bench, free_port: int) -> None:
    from broker.client import BrokerClient

    bench = await make_bench(listen=[f"127.0.0.1:{free_port}"])
    token = (await bench.client.token_create("agent", [Scope.SUBMIT])).token
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()

    async with BrokerClient(f"http://127.0.0.1:{free_port}", token) as agent:
        with pytest.raises(Refused) as refused:
            await agent.job_cancel(CancelRequest(job=[job]))
        confirmed = await agent.job_cancel(CancelRequest(job=[job], force=True))

    assert refused.value.code is ProblemCode.CONFIRMATION_NEEDED
    assert confirmed.counts == {"stopping": 1}
    assert (await bench.client.job_get(job)).stopping.by == "agent"


@pytest.mark.trial("B27")
@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("waits", ["in the queue", "for a parent", "for a worker that fits", "to be acknowledged"])
async def test_whatever_a_job_waits_for_its_cancel_holds_at_once_and_a_repeat_says_so(bench, waits: str) -> None:
    parent = await bench.submit(worker="nobody")
    job = await bench.submit(
        depends_on=[parent] if waits == "for a parent" else None,
        worker="nobody" if waits == "for a worker that fits" else None,
    )
    worker = await bench.registered()
    if waits == "to be acknowledged":
        delivery = await worker.one()

    first = (await bench.client.job_cancel(CancelRequest(job=[job]))).jobs[0]
    state = await bench.state(job)
    again = (await bench.client.job_cancel(CancelRequest(job=[job]))).jobs[0]

    assert (first.note, state, again.note) == ("cancelled before it ran", "cancelled", "was cancelled already")
    if waits == "to be acknowledged":
        assert await worker.ack(delivery) is VerdictWord.STALE_ASSIGNMENT
    assert (await worker.poll()).deliveries == []
