"""A child never starts before its condition holds, and never waits for one that can't."""

from __future__ import annotations

import pytest

from broker.wire.jobs import CancelRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Outcome, VerdictWord

ENDS = [
    *("completed", "failed", "launch failed", "time limit", "cancelled", "cancelled queued", "preempted", "orphaned"),
    "scheduling timeout",
]


async def end(bench, job: int, how: str) -> None:
    """Bring one job of the bench, the only one that can be claimed, to this end."""
    if how == "cancelled queued":
        await bench.client.job_cancel(CancelRequest(job=[job]))
        return
    if how == "scheduling timeout":
        await bench.sweep(after_s=601)
        assert await bench.state(job) == "scheduling_timeout"
        return
    worker = await bench.registered(f"w{job}")
    delivery = await worker.running()
    assert delivery.job == job
    match how:
        case "completed":
            await worker.finish(delivery)
        case "failed":
            await worker.finish(delivery, exit_code=1)
        case "launch failed":
            await worker.finish(delivery, Outcome.LAUNCH_FAILED)
        case "cancelled":
            await bench.client.job_cancel(CancelRequest(job=[job]))
            await worker.finish(delivery, Outcome.STOPPED)
        case "time limit":
            limit = {"code": "max_wall", "limit_s": 1, "seen_s": 1.1}
            await worker.finish(delivery, Outcome.LIMIT, exit_code=0, limit=limit)
        case "preempted":
            await bench.client.job_preempt(job)
            await worker.finish(delivery, Outcome.STOPPED, exit_code=0)
        case "orphaned":
            await bench.sweep(after_s=61)


@pytest.mark.trial("B29")
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.guarantee("G24")
async def test_a_chain_is_decided_by_every_way_in_which_its_first_job_can_end(bench, how: str) -> None:
    first = await bench.submit(on_worker_lost="orphan", preemptible=True, scheduling_timeout_s=600)
    second = await bench.submit(depends_on=[first])
    third = await bench.submit(depends_on=[second])
    whatever = await bench.submit(depends_on=[first], dependency_policy="any_exit")
    on_failure = await bench.submit(depends_on=[first], dependency_policy="failure")

    await end(bench, first, how)

    good = how == "completed"
    waits = {job: await bench.client.job_get(job) for job in (second, third, whatever, on_failure)}
    assert waits[second].state.value == ("queued" if good else "cancelled")
    assert waits[third].state.value == ("queued" if good else "cancelled")
    assert waits[whatever].state.value == "queued"
    assert waits[on_failure].state.value == ("cancelled" if good else "queued")
    if not good:
        assert f"job {first}" in waits[second].reason.message
        assert f"job {second}" in waits[third].reason.message
    ready = {delivery.job for delivery in (await (await bench.registered("last", slots=9)).poll()).deliveries}
    assert ready == ({second, whatever} if good else {whatever, on_failure})


async def test_a_blocked_job_says_what_it_waits_for_and_is_given_to_nobody(bench) -> None:
    parent = await bench.submit(worker="elsewhere")
    child = await bench.submit(depends_on=[parent])
    worker = await bench.registered()

    assert (await worker.poll()).deliveries == []
    got = await bench.client.job_get(child, detail="full")
    assert (got.waiting.code, got.depends_on) == ("dependencies", [parent])
    assert f"job {parent}" in got.waiting.message
    assert (await bench.client.job_get(parent, detail="full")).dependents == [child]


@pytest.mark.trial("B97")
async def test_a_child_waits_for_all_of_its_parents(bench) -> None:
    one, two = await bench.submit(), await bench.submit()
    child = await bench.submit(depends_on=[one, two, one])
    worker = await bench.registered()
    first, second = (await worker.poll()).deliveries
    for delivery in (first, second):
        await worker.ack(delivery)
        await worker.start(delivery)

    await worker.finish(first)
    early = await worker.poll()
    await worker.finish(second)
    late = await worker.poll()

    assert early.deliveries == []
    assert [delivery.job for delivery in late.deliveries] == [child]


async def test_a_child_of_jobs_that_ended_well_starts_at_once(bench) -> None:
    parent = await bench.submit()
    worker = await bench.registered()
    await worker.finish(await worker.running())

    child = await bench.submit(depends_on=[parent])

    assert (await worker.one()).job == child


@pytest.mark.trial("B30")
@pytest.mark.parametrize(("policy", "exit_code"), [("success", 1), ("failure", 0)])
async def test_a_child_that_could_never_start_is_refused_at_once(bench, policy: str, exit_code: int) -> None:
    parent = await bench.submit()
    worker = await bench.registered()
    await worker.finish(await worker.running(), exit_code=exit_code)

    with pytest.raises(Refused) as refused:
        await bench.submit(depends_on=[parent], dependency_policy=policy)

    assert (refused.value.code, refused.value.field) == (ProblemCode.DEPENDENCY_UNSATISFIABLE, "depends_on")
    assert (await bench.client.job_list()).total == 1


@pytest.mark.trial("B97")
@pytest.mark.parametrize("parents", [[999], [1, 999], [2]])
async def test_unknown_parents_and_the_own_next_id_are_refused(bench, parents: list[int]) -> None:
    await bench.submit()

    with pytest.raises(Refused) as refused:
        await bench.submit(depends_on=parents)

    assert refused.value.code is ProblemCode.UNKNOWN_JOB
    assert (await bench.client.job_list()).total == 1


@pytest.mark.trial("B97")
async def test_an_array_waits_as_a_whole_and_a_thousand_parents_are_possible(bench) -> None:
    array = await bench.submit(count=1000)
    child = await bench.submit(depends_on=list(range(array, array + 1000)), dependency_policy="any_exit", count=3)

    await bench.client.job_cancel(CancelRequest(array=array))
    deliveries = (await (await bench.registered(slots=9)).poll()).deliveries

    assert [delivery.job for delivery in deliveries] == [child, child + 1, child + 2]


async def test_a_long_chain_falls_in_one_piece(bench) -> None:
    jobs = [await bench.submit(worker="elsewhere")]
    for _ in range(300):
        jobs.append(await bench.submit(depends_on=[jobs[-1]]))

    await bench.client.job_cancel(CancelRequest(job=[jobs[0]]))

    assert (await bench.client.job_list()).counts == {"cancelled": 301}


@pytest.mark.guarantee("G24")
async def test_children_of_a_resurrected_parent_wait_again_and_grandchildren_too(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent])
    grandchild = await bench.submit(depends_on=[child])
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    assert [await bench.state(job) for job in (parent, child, grandchild)] == ["orphaned", "cancelled", "cancelled"]

    await worker.report()

    assert [await bench.state(job) for job in (parent, child, grandchild)] == ["running", "queued", "queued"]
    assert "job_uncancelled" in await bench.kinds(grandchild)
    assert (await worker.poll()).deliveries == []
    await worker.finish(delivery)
    assert (await worker.one()).job == child


async def test_a_late_good_end_lets_the_children_run_after_all(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent])
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)

    await worker.finish(delivery, exit_code=0)

    assert await bench.state(parent) == "completed"
    assert (await worker.one()).job == child


async def test_what_a_person_also_cancelled_does_not_come_back(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent])
    worker = await bench.registered()
    await worker.running()
    await bench.sweep(after_s=61)
    await bench.client.job_cancel(CancelRequest(job=[child]))

    await worker.report()

    assert await bench.state(parent) == "running"
    assert await bench.state(child) == "cancelled"


@pytest.mark.guarantee("G24")
async def test_what_another_failed_parent_forbids_does_not_come_back(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    other = await bench.submit(worker="elsewhere")
    child = await bench.submit(depends_on=[parent, other])
    worker = await bench.registered()
    await worker.running()
    await bench.client.job_cancel(CancelRequest(job=[other]))
    await bench.sweep(after_s=61)

    await worker.report()

    assert await bench.state(child) == "cancelled"


async def test_a_queued_child_of_a_parent_that_came_back_is_decided_again(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent], dependency_policy="any_exit")
    worker = await bench.registered()
    await worker.running()
    await bench.sweep(after_s=61)  # the end `orphaned` lets the child start

    answer = await worker.poll()  # and in this very exchange the parent comes back

    assert answer.deliveries == []
    assert (await bench.client.job_get(child)).waiting.code == "dependencies"


async def test_a_child_that_has_started_stays(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent], dependency_policy="any_exit")
    a = await bench.registered("a")
    await a.running()
    await bench.sweep(after_s=61)
    b = await bench.registered("b")
    await b.running()

    await a.report()

    assert [await bench.state(parent), await bench.state(child)] == ["running", "running"]


async def test_parent_and_child_that_were_lost_together_come_back_together(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent], dependency_policy="any_exit")
    worker = await bench.registered()
    first = await worker.running()
    await bench.sweep(after_s=61)  # the parent is orphaned, which lets its child start
    other = await bench.registered("other")
    second = await other.running()
    await bench.sweep(after_s=61)  # and now the child is lost too
    assert [await bench.state(job) for job in (parent, child)] == ["orphaned", "queued"]

    await worker.report()  # the parent lives: its child, which is queued, must wait for it
    blocked = (await bench.client.job_get(child)).waiting.code
    await other.report()  # the child lives as well, and stays

    assert blocked == "dependencies"
    assert [await bench.state(job) for job in (parent, child)] == ["running", "running"]
    assert await worker.finish(first) is VerdictWord.ACCEPTED
    assert await other.finish(second) is VerdictWord.ACCEPTED


async def test_one_exchange_may_bring_back_a_parent_and_its_child(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent], dependency_policy="any_exit")
    worker = await bench.registered()
    await worker.running()
    held = dict(worker.held)
    await bench.sweep(after_s=61)
    worker.held.clear()
    worker.recovered = False  # a list that is no evidence yet: the parent stays orphaned
    await worker.report()
    worker.recovered = True
    await bench.client.job_get(child)
    delivery = (await worker.poll()).deliveries[0]
    assert delivery.job == child
    await worker.ack(delivery)
    await worker.start(delivery)
    await bench.sweep(after_s=61)
    worker.held |= held

    await worker.report()

    assert [await bench.state(job) for job in (parent, child)] == ["running", "running"]


async def test_a_job_that_is_queued_again_waits_by_what_its_parents_are_now(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent], dependency_policy="any_exit")
    a, b = await bench.registered("a"), await bench.registered("b")
    first = await a.running()
    await bench.sweep(after_s=61)
    second = await b.running()
    await a.report()  # the parent comes back while the child runs
    await b.finish(second, Outcome.NEVER_EXECUTED)

    waiting = (await bench.client.job_get(child)).waiting
    await a.finish(first)

    assert waiting.code == "dependencies"
    assert (await b.one()).job == child
