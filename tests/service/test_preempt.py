"""Preemption by hand: soft, confirmed by the tree's end, and gone with the assignment that it was asked of."""

from __future__ import annotations

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope
from broker.wire.workers import Outcome, Phase, VerdictWord

W = VerdictWord


async def running(bench, **fields: object):
    job = await bench.submit(preemptible=True, **fields)
    worker = await bench.registered()
    return job, worker, await worker.running()


async def refused(call) -> Refused:
    with pytest.raises(Refused) as caught:
        await call
    return caught.value


@pytest.mark.guarantee("G26")
async def test_a_preempted_job_is_running_until_its_tree_is_gone_and_ends_preempted(bench) -> None:
    job, worker, delivery = await running(bench, checkpoint_grace_s=7)

    said = await bench.client.job_preempt(job, reason="make room")
    between = await bench.client.job_get(job)
    [stop] = (await worker.report()).stops
    worker.hold(delivery, Phase.RUNNING, stopping=stop.id)
    assert (await worker.report()).stops == []
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0, stop=stop.id)

    assert (said.state.value, stop.grace_s, stop.why) == ("running", 7, "make room")
    assert said.note == "stopping: TERM, KILL after 7 s, then preempted"
    assert (between.state.value, between.stopping.why) == ("running", "make room")
    got = await bench.client.job_get(job, detail="full")
    assert (got.state.value, got.exit_code, got.reason.code, got.reason.message) == (
        *("preempted", 0, "preempted", "make room"),
    )
    assert got.assignments[0].state.value == "preempted"
    assert (await bench.client.job_list()).counts == {"preempted": 1}
    assert (await bench.kinds(job))[-2:] == ["job_stop_requested", "job_preempted"]


@pytest.mark.guarantee("G26")
async def test_one_that_wants_to_run_again_is_queued_and_no_loss_is_counted(bench) -> None:
    job, worker, delivery = await running(bench, on_preempt="requeue")
    for attempt in (1, 2, 3, 4):  # more often than a job may lose its worker
        await bench.client.job_preempt(job)
        assert await worker.finish(delivery, Outcome.STOPPED, exit_code=0) is W.ACCEPTED
        assert await bench.state(job) == "queued"
        delivery = await worker.running()
        assert (delivery.attempt, delivery.restarts) == (attempt + 1, attempt)

    await worker.finish(delivery)

    assert await bench.state(job) == "completed"
    assert await bench.assignments(job) == ["preempted"] * 4 + ["succeeded"]
    assert (await bench.kinds(job)).count("job_preempted") == 4


@pytest.mark.guarantee("G26")
async def test_the_stop_is_gone_with_the_assignment_that_it_was_asked_of(bench) -> None:
    job, worker, delivery = await running(bench, on_preempt="requeue")
    await bench.client.job_preempt(job)
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0)

    again = await worker.running()

    got = await bench.client.job_get(job)
    assert (got.state.value, got.stopping, got.attempt) == ("running", None, 2)
    assert (await worker.report()).stops == []
    assert (await worker.poll()).stops == []
    await worker.finish(again)
    assert await bench.state(job) == "completed"


@pytest.mark.parametrize(("on_preempt", "state"), [("stop", "preempted"), ("requeue", "queued")])
@pytest.mark.guarantee("G26")
async def test_one_whose_assignment_is_pending_is_preempted_at_once_and_its_ack_refused(
    bench, on_preempt: str, state: str
) -> None:
    job = await bench.submit(preemptible=True, on_preempt=on_preempt)
    worker = await bench.registered()
    delivery = await worker.one()

    said = await bench.client.job_preempt(job)

    assert (said.state.value, said.note) == (state, "preempted before it ran")
    assert await bench.state(job) == state
    assert await worker.ack(delivery) is W.STALE_ASSIGNMENT
    assert await bench.assignments(job) == ["preempted"]


async def test_one_that_ended_by_itself_before_the_stop_keeps_its_end(bench) -> None:
    job, worker, delivery = await running(bench)
    await bench.client.job_preempt(job)

    await worker.finish(delivery, Outcome.EXITED, exit_code=3)

    assert await bench.state(job) == "failed"


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.NEVER_EXECUTED])
async def test_a_refusal_confirms_a_preemption(bench, outcome: Outcome) -> None:
    job = await bench.submit(preemptible=True)
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await bench.client.job_preempt(job)

    await worker.finish(delivery, outcome)

    assert await bench.state(job) == "preempted"


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"on_preempt": "stop"}, "preempted"),
        ({"on_preempt": "requeue"}, "queued"),
        ({"on_preempt": "requeue", "on_worker_lost": "orphan"}, "orphaned"),  # its process may be alive
    ],
)
@pytest.mark.guarantee("G26")
async def test_the_word_given_stands_when_the_worker_is_lost(bench, fields, state: str) -> None:
    job, worker, delivery = await running(bench, **fields)
    await bench.client.job_preempt(job)

    await bench.sweep(after_s=61)

    assert await bench.state(job) == state
    if state != "orphaned":
        assert (await worker.report()).verdicts[0].verdict is W.STALE_ASSIGNMENT  # it does not come back
        assert await worker.finish(delivery, exit_code=0) is W.STALE_ASSIGNMENT
        assert await bench.state(job) == state


@pytest.mark.guarantee("G26")
async def test_a_cancel_is_stronger_than_a_preemption_whichever_comes_first(bench) -> None:
    job, worker, delivery = await running(bench, on_preempt="requeue")
    await bench.client.job_preempt(job)
    await bench.client.job_cancel(CancelRequest(job=[job], reason="enough"))
    weaker = await bench.client.job_preempt(job)

    [stop] = (await worker.report()).stops
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0)

    assert stop.why == "enough"
    assert "enough" in weaker.note
    assert await bench.state(job) == "cancelled"


async def test_a_repeat_changes_nothing_and_says_so(bench) -> None:
    job, worker, _ = await running(bench)
    await bench.client.job_preempt(job, reason="one")
    first = (await worker.report()).stops

    again = await bench.client.job_preempt(job, reason="two")

    assert (await worker.report()).stops == first
    assert again.note.startswith("is being stopped already") and "one" in again.note
    assert (await bench.kinds(job)).count("job_stop_requested") == 1


async def test_what_cannot_be_preempted_is_refused_with_a_code(bench) -> None:
    firm, queued = await bench.submit(), await bench.submit(preemptible=True, worker="elsewhere")
    worker = await bench.registered()
    await worker.running()

    assert (await refused(bench.client.job_preempt(firm))).code is ProblemCode.NOT_PREEMPTIBLE
    assert (await refused(bench.client.job_preempt(queued))).code is ProblemCode.NOT_RUNNING
    assert (await refused(bench.client.job_preempt(999))).code is ProblemCode.UNKNOWN_JOB
    await bench.client.job_cancel(CancelRequest(job=[queued]))
    over = await refused(bench.client.job_preempt(queued, force=True))
    assert over.code is ProblemCode.ALREADY_TERMINAL
    assert over.hint
    assert (await worker.report()).stops == []


async def test_another_actors_job_is_preempted_only_when_it_is_meant(make_bench, free_port: int) -> None:
    bench = await make_bench(listen=[f"127.0.0.1:{free_port}"])
    token = (await bench.client.token_create("agent", [Scope.SUBMIT])).token
    job, _, _ = await running(bench)

    async with BrokerClient(f"http://127.0.0.1:{free_port}", token) as agent:
        first = await refused(agent.job_preempt(job))
        await agent.job_preempt(job, force=True)

    assert first.code is ProblemCode.CONFIRMATION_NEEDED
    assert (await bench.client.job_get(job)).stopping.by == "agent"


async def test_children_of_a_job_that_is_queued_again_go_on_waiting(bench) -> None:
    job, worker, delivery = await running(bench, on_preempt="requeue")
    child = await bench.submit(depends_on=[job])
    await bench.client.job_preempt(job)
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0)

    assert (await bench.client.job_get(child)).waiting.code == "dependencies"
    await worker.finish(await worker.running())

    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [child]
