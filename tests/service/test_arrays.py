"""Arrays: one call, many jobs; a throttle, a most of failures, an end of the whole; and others that wait for it."""

from __future__ import annotations

import asyncio
import getpass
from collections import Counter

import pytest

from broker.core.states import Cause, Facts
from broker.service.rows import read_job
from broker.service.transition import apply
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import DependencyPolicy, JobState
from broker.wire.workers import Outcome


async def array(bench, **fields: object) -> int:
    said = await bench.client.job_submit(JobSpec.model_validate({"command": "true", **fields}))
    assert said.array is not None
    assert said.ids == f"{said.array}..{said.array + (said.count or 0) - 1}"
    return said.array


async def counts(bench, of: int) -> dict[str, int]:
    whole = (await bench.client.job_list(array=of)).array
    assert whole is not None
    listed = (await bench.client.job_list(array=of)).counts
    assert whole.counts == listed, "what is kept and what is counted"
    return listed


async def refusal(bench, **fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await array(bench, **fields)
    assert (await bench.client.job_list()).total == 0
    return caught.value


# ---- what a member runs


async def test_a_worker_gets_each_member_with_its_own_words_and_nothing_of_the_array(bench) -> None:
    first = await array(
        bench,
        command="train --lr {lr} --out run_{i} '{\"json\": {}}' ${HOME}",
        cwd="/data/{lr}",
        name="t{i}",
        env={"LR": "{lr}"},
        sweep={"lr": [0.1, "1e-3"]},
        max_parallel=2,
    )
    worker = await bench.registered()

    deliveries = (await worker.poll()).deliveries

    assert [(d.job, d.array, d.array_index, d.spec.cwd, d.spec.env) for d in deliveries] == [
        (first, first, 0, "/data/0.1", {"LR": "0.1"}),
        (first + 1, first, 1, "/data/1e-3", {"LR": "1e-3"}),
    ]
    assert deliveries[1].spec.command == "train --lr 1e-3 --out run_1 '{\"json\": {}}' ${HOME}"
    assert {d.spec.sweep for d in deliveries} == {d.spec.max_parallel for d in deliveries} == {None}
    seen = await bench.client.job_get(first + 1, detail="full")
    assert (seen.name, seen.values, seen.array_index) == ("t1", {"lr": "1e-3"}, 1)
    assert seen.spec is not None
    assert seen.spec["command"] == deliveries[1].spec.command


async def test_a_directory_that_one_member_lacks_keeps_no_other_from_its_turn(bench) -> None:
    first = await array(bench, cwd="/data/{i}", count=3)
    worker = await bench.registered(slots=1)
    refused = await worker.one()
    await worker.finish(refused, Outcome.REFUSED, reason_code="cwd_missing", reason="no /data/0")

    assert (await worker.one()).job == first + 1


async def test_bad_input_is_refused_as_a_whole_with_member_and_field(bench) -> None:
    said = await refusal(bench, name="x" * 197 + "{i}", count=1001)

    assert (said.code, said.field) == (ProblemCode.INVALID_SPEC, "name")
    assert said.detail.startswith("member 1000: name:")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sweep": {"a": list(range(101)), "b": list(range(100))}}, "sweep"),
        ({"count": 2, "depends_on_array": [7]}, "depends_on_array"),
        ({"max_parallel": 1}, "max_parallel"),
    ],
)
async def test_what_makes_no_array_is_refused(bench, fields: dict[str, object], field: str) -> None:
    assert (await refusal(bench, **fields)).field == field


async def test_a_preview_says_how_many_and_what_the_first_one_runs(bench) -> None:
    seen = await bench.client.job_preview({"command": "a {x} {i}", "sweep": {"x": ["p", "q"], "y": [1, 2]}})

    assert (seen.valid, seen.count, seen.command) == (True, 4, "a p 0")
    assert seen.warnings == ["{y} stands nowhere in it: members that differ on y only are the same"]
    wrong = await bench.client.job_preview({"command": "a", "sweep": {"x": [1]}, "count": 2})
    assert (wrong.valid, (wrong.errors or [])[0].field) == (False, "count")


# ---- max_parallel


async def running(bench, of: int) -> int:
    states = await counts(bench, of)
    return states.get("assigned", 0) + states.get("running", 0)


@pytest.mark.guarantee("G41")
async def test_never_more_members_are_given_away_than_may_run_and_each_end_lets_one_start(bench) -> None:
    throttled = await array(bench, count=10, max_parallel=3)
    workers = [await bench.registered(f"w{n}", machine=f"m{n}:b") for n in range(3)]
    given = [delivery for worker in workers for delivery in (await worker.poll()).deliveries]

    assert [delivery.job for delivery in given] == [throttled, throttled + 1, throttled + 2]
    for _ in range(7):
        worker = workers[0]
        delivery = given.pop(0)
        assert (await worker.poll()).deliveries == []
        await worker.ack(delivery)
        await worker.finish(delivery, exit_code=0)
        given += (await worker.poll()).deliveries
        assert await running(bench, throttled) == 3
    assert await counts(bench, throttled) == {"assigned": 3, "completed": 7}


@pytest.mark.guarantee("G41")
async def test_a_throttled_array_delays_nobody(bench) -> None:
    await array(bench, count=100, max_parallel=1, priority=50)
    other = await bench.submit()
    worker = await bench.registered(slots=2)

    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [1, other]


async def test_a_parked_worker_hears_that_another_member_may_start(bench) -> None:
    await array(bench, count=2, max_parallel=1)
    worker, other = [await bench.registered(f"w{n}", machine=f"m{n}:b") for n in range(2)]
    delivery = await worker.running()
    waiting = asyncio.ensure_future(other.poll(wait_s=5))
    await asyncio.sleep(0.2)
    await worker.finish(delivery, exit_code=0)

    assert [one.job for one in (await waiting).deliveries] == [2]


@pytest.mark.trial("B95")
@pytest.mark.parametrize("slots", [2, 8])
async def test_after_bulk_stops_losses_and_preemptions_exactly_as_many_run_as_may(make_bench, slots: int) -> None:
    bench = await make_bench(prefer_s=0)
    first = await array(bench, count=40, max_parallel=4, preemptible=True, on_preempt="requeue")
    workers = [await bench.registered(f"w{n}", machine=f"m{n}:b", slots=slots) for n in range(2)]
    for turn in range(6):
        live = [(worker, d) for worker in workers for d in (await worker.poll()).deliveries]
        assert await running(bench, first) == 4
        match turn % 3:
            case 0:  # all that run are cancelled at once
                for worker, delivery in live:
                    await worker.ack(delivery)
                    await worker.start(delivery)
                await bench.client.job_cancel(CancelRequest(job=[d.job for _, d in live]))
                assert await running(bench, first) == 4, "what is being stopped still runs"
                for worker, delivery in live:
                    await worker.finish(delivery, Outcome.STOPPED, signal="SIGTERM")
            case 1:  # their workers are lost
                await bench.sweep(after_s=61)
                await bench.sweep(after_s=61)
                workers = [await bench.registered(f"v{turn}{n}", machine=f"m{n}:b", slots=slots) for n in range(2)]
            case _:  # they make room
                for worker, delivery in live:
                    await bench.client.job_preempt(delivery.job)
                    worker.held.clear()  # its ack would be refused


@pytest.mark.guarantee("G41")
async def test_one_that_comes_back_runs_whatever_runs_in_its_place_and_nothing_is_added(make_bench) -> None:
    bench = await make_bench(prefer_s=0)
    first = await array(bench, count=4, max_parallel=1)
    worker, other = [await bench.registered(f"w{n}", machine=f"m{n}:b") for n in range(2)]
    lost = await worker.running()
    await bench.sweep(after_s=61)
    await other.register()
    await bench.sweep(after_s=1)
    taken = (await other.poll()).deliveries

    assert len(taken) == 1
    if taken[0].job != lost.job:
        assert await bench.state(lost.job) == "queued"
        await worker.poll()
        assert await bench.state(lost.job) == "running"
        assert await running(bench, first) == 2
    for quiet in (worker, other):
        assert (await quiet.poll()).deliveries == []


# ---- max_failures


async def fail(worker, exit_code: int = 1) -> None:
    delivery = await worker.running()
    await worker.finish(delivery, exit_code=exit_code)


async def test_after_so_many_failures_the_waiting_members_are_cancelled_and_say_so(bench) -> None:
    first = await array(bench, count=10, max_failures=2)
    worker = await bench.registered(slots=1)
    await fail(worker)
    assert (await counts(bench, first))["queued"] == 9

    await fail(worker)

    assert await counts(bench, first) == {"failed": 2, "cancelled": 8}
    ended = await bench.client.job_get(first + 9)
    assert ended.reason is not None
    assert (ended.reason.code, ended.reason.message) == (
        "max_failures",
        f"2 members of array {first} have failed: max_failures=2",
    )


async def test_one_that_is_queued_again_after_that_is_cancelled_too(make_bench) -> None:
    bench = await make_bench(prefer_s=0)
    first = await array(bench, count=3, max_failures=1, preemptible=True, on_preempt="requeue")
    worker = await bench.registered(slots=2)
    one, two = (await worker.poll()).deliveries
    await worker.ack(one)
    await worker.finish(one, exit_code=1)
    assert await counts(bench, first) == {"assigned": 1, "failed": 1, "cancelled": 1}

    await bench.client.job_preempt(two.job)

    assert await counts(bench, first) == {"failed": 1, "cancelled": 2}


async def test_fewer_failures_cancel_nobody_and_stops_are_no_failures(bench) -> None:
    first = await array(bench, count=4, max_failures=2)
    worker = await bench.registered(slots=1)
    await fail(worker)
    await bench.client.job_cancel(CancelRequest(job=[first + 1]))

    assert (await counts(bench, first)) == {"failed": 1, "cancelled": 1, "queued": 2}


# ---- cancel, wait, list


def one_by_one(tx, jobs: range) -> None:
    facts = Facts(now=tx.now_ms, listened=0, reason_code="cancelled", reason="enough", gone=True)
    for job in jobs:
        apply(tx, read_job(tx, job), None, Cause.CANCEL_QUEUED, facts, actor=getpass.getuser())


async def test_many_are_cancelled_as_one_would_be(bench) -> None:
    """The few statements for many write what the one door writes for each."""
    told = []
    for together in (True, False):
        first = await array(bench, count=12, cwd="/data/{i}", scheduling_timeout_s=60, project=f"p{together}")
        members = range(first, first + 12)
        if together:
            await bench.client.job_cancel(CancelRequest(array=first, reason="enough"))
        else:
            await bench.broker.store.run(lambda tx, members=members: one_by_one(tx, members))
        rows = await bench.broker.store.read(
            lambda tx, members=members: [dict(tx.one("job", job=job)) for job in members]
        )
        changing = ("id", "project", "array_id", "shape")
        events = [(await bench.client.job_events(job=job)).events[-1] for job in members]
        told.append(
            (
                [{name: value for name, value in row.items() if name not in changing} for row in rows],
                [(event.type, event.actor, event.data) for event in events],
                await counts(bench, first),
                (await bench.client.job_list(project=f"p{together}")).counts,
            )
        )
        assert await bench.broker.store.read(lambda tx: tx.all("ready_shapes")) == []
    assert told[0] == told[1]


@pytest.mark.trial("B94")
async def test_ten_thousand_are_cancelled_in_one_answer_and_none_starts_after_it(bench) -> None:
    first = await array(bench, count=10_000)
    workers = [await bench.registered(f"w{n}", machine=f"m{n}:b", slots=10) for n in range(5)]
    running = [(worker, delivery) for worker in workers for delivery in (await worker.poll()).deliveries]
    for worker, delivery in running:
        await worker.ack(delivery)
        await worker.start(delivery)

    cancelling = asyncio.ensure_future(bench.client.job_cancel(CancelRequest(array=first, force=True)))
    other = await bench.submit(needs=["nobody-has-this"])  # meanwhile
    said = await cancelling

    assert said.counts == {"cancelled": 9950, "stopping": 50}
    assert len(said.jobs) == 100
    assert await bench.state(other) == "queued"
    for worker, delivery in running:
        assert (await worker.poll()).deliveries == []
        await worker.finish(delivery, Outcome.STOPPED, signal="SIGTERM")
        assert (await worker.poll()).deliveries == []
    again = await bench.client.job_cancel(CancelRequest(array=first))
    assert again.counts == {"already_ended": 10_000}
    assert await counts(bench, first) == {"cancelled": 10_000}


async def test_whoever_depends_on_members_hears_of_their_end_when_all_are_cancelled(bench) -> None:
    first = await array(bench, count=3)
    child, other = await bench.submit(depends_on=[first + 1]), await bench.submit(depends_on_array=[first])
    after = await bench.submit(depends_on=[other], dependency_policy="any_exit")

    await bench.client.job_cancel(CancelRequest(array=first))

    assert [await bench.state(job) for job in (child, other, after)] == ["cancelled", "cancelled", "queued"]
    said = (await bench.client.job_get(other)).reason
    assert said is not None
    assert said.message == f"it depends on array {first}, which is cancelled"


async def test_an_end_that_has_decided_a_child_afresh_is_not_counted_for_it_once_more(bench) -> None:
    worker = await bench.registered(slots=2)
    first = await array(bench, count=2)
    stopped, _ = (await worker.poll()).deliveries
    child = await bench.submit(depends_on=[stopped.job])
    last = await bench.submit(depends_on=[child], depends_on_array=[first], dependency_policy="any_exit")

    await bench.client.job_cancel(CancelRequest(job=[stopped.job]))

    assert (await bench.client.job_get(child)).state is JobState.CANCELLED
    waiting = (await bench.client.job_get(last)).waiting
    assert waiting is not None
    assert (waiting.code, f"array {first}" in waiting.message) == ("dependencies", True)


async def test_members_that_are_cancelled_together_are_each_counted_once_for_who_waits_for_all(bench) -> None:
    worker = await bench.registered(slots=1)
    first = await array(bench, count=3)
    await worker.running()
    last = await bench.submit(depends_on=[first + 1, first + 2], depends_on_array=[first], dependency_policy="any_exit")

    await bench.client.job_cancel(CancelRequest(array=first))

    waiting = (await bench.client.job_get(last)).waiting
    assert waiting is not None
    assert (waiting.code, f"array {first}" in waiting.message) == ("dependencies", True)


async def test_a_wait_for_an_array_tells_its_counts_and_bad_ends_first(bench) -> None:
    first = await array(bench, count=60)
    worker = await bench.registered(slots=60)
    for n, delivery in enumerate((await worker.poll()).deliveries):
        await worker.ack(delivery)
        if n < 59:
            await worker.finish(delivery, exit_code=1 if n == 57 else 0)

    said = await bench.client.job_wait(array=first, timeout_s=0)

    assert (said.done, said.counts, said.pending) == (
        False,
        {"completed": 58, "failed": 1, "assigned": 1},
        [first + 59],
    )
    assert said.jobs[0].id == first + 57
    assert said.next is not None
    assert f"array={first}" in said.next
    assert (await bench.client.job_wait(array=first, mode="any", timeout_s=0)).done


async def test_a_list_shows_an_array_as_one_and_its_members_when_asked(bench) -> None:
    before = await bench.submit(name="before")
    first = await array(bench, count=300, name="many-{i}", max_parallel=1)
    second = await array(bench, count=2, project="other")
    after = await bench.submit()

    page = await bench.client.job_list()

    assert [job.id for job in page.jobs] == [after, second, first, before]
    whole = page.jobs[2]
    assert (whole.array, whole.ids, whole.count, whole.counts) == (
        first,
        f"{first}..{first + 299}",
        300,
        {"queued": 300},
    )
    assert (whole.state, whole.name, page.total) == (JobState.QUEUED, "many-{i}", 304)
    pages, cursor = [], None
    while True:
        one = await bench.client.job_list(limit=1, cursor=cursor)
        pages += [job.id for job in one.jobs]
        if (cursor := one.next_cursor) is None:
            break
    assert pages == [after, second, first, before]
    assert [job.id for job in (await bench.client.job_list(project="other")).jobs] == [second]
    members = await bench.client.job_list(array=first, limit=2)
    assert [job.id for job in members.jobs] == [first + 299, first + 298]
    assert members.array is not None
    assert members.array.counts == {"queued": 300}


# ---- others that wait for it


POLICIES = [
    (DependencyPolicy.SUCCESS, [0, 0], "queued"),
    (DependencyPolicy.SUCCESS, [0, 1], "cancelled"),
    (DependencyPolicy.SUCCESS, [1], "cancelled"),
    (DependencyPolicy.ANY_EXIT, [1], "blocked"),
    (DependencyPolicy.ANY_EXIT, [1, 0], "queued"),
    (DependencyPolicy.FAILURE, [1], "blocked"),
    (DependencyPolicy.FAILURE, [1, 0], "queued"),
    (DependencyPolicy.FAILURE, [0, 0], "cancelled"),
]


@pytest.mark.parametrize(("policy", "ends", "then"), POLICIES)
async def test_a_job_starts_after_all_members_by_its_policy(
    bench, policy: DependencyPolicy, ends: list[int], then: str
) -> None:
    first = await array(bench, count=2)
    child = await bench.submit(depends_on_array=[first], dependency_policy=policy.value)
    worker = await bench.registered(slots=1)
    for code in ends:
        await fail(worker, code)

    found = await bench.client.job_get(child, detail="full")

    waits = found.waiting is not None and found.waiting.code == "dependencies"
    assert ("blocked" if waits else found.state.value) == then
    assert found.depends_on_array == [first]
    assert [delivery.job for delivery in (await worker.poll()).deliveries if delivery.job == child] == (
        [child] if then == "queued" else []
    )
    late = bench.submit(depends_on_array=[first], dependency_policy=policy.value)
    if then == "cancelled":
        with pytest.raises(Refused) as caught:
            await late
        assert (caught.value.code, caught.value.field) == (ProblemCode.DEPENDENCY_UNSATISFIABLE, "depends_on_array")
    else:
        await late


async def test_the_return_of_a_lost_member_brings_back_what_its_end_had_cancelled(bench) -> None:
    first = await array(bench, count=2, on_worker_lost="orphan")
    child = await bench.submit(depends_on_array=[first])
    worker = await bench.registered(slots=2)
    deliveries = (await worker.poll()).deliveries
    for delivery in deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
    await bench.sweep(after_s=61)
    assert [await bench.state(first), await bench.state(child)] == ["orphaned", "cancelled"]

    await worker.poll()

    assert [await bench.state(first), await bench.state(child)] == ["running", "queued"]
    for delivery in deliveries:
        await worker.finish(delivery, exit_code=0)
    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [child]


async def test_member_by_member_each_waits_for_its_own(bench) -> None:
    first = await array(bench, count=3)
    second = await array(bench, count=3, depends_on_each=[first])
    third = await array(bench, count=3, depends_on_each=[second], dependency_policy="any_exit")
    worker = await bench.registered(slots=3)
    given = {delivery.job: delivery for delivery in (await worker.poll()).deliveries}
    assert sorted(given) == [first, first + 1, first + 2]
    for n, code in ((1, 0), (2, 1)):
        await worker.ack(given[first + n])
        await worker.finish(given[first + n], exit_code=code)

    now = sorted(delivery.job for delivery in (await worker.poll()).deliveries)

    assert now == [second + 1, third + 2], (
        "of the one that failed the next is cancelled, and what takes any end goes on"
    )
    assert [await bench.state(second + n) for n in range(3)] == ["queued", "assigned", "cancelled"]


async def test_member_by_member_counts_those_that_have_ended_and_refuses_what_could_never_start(bench) -> None:
    first = await array(bench, count=2)
    worker = await bench.registered(slots=1)
    await fail(worker, 0)

    second = await array(bench, count=2, depends_on_each=[first], scheduling_timeout_s=60)
    waits = [(await bench.client.job_get(job)).waiting for job in (second, second + 1)]
    assert [reason and reason.code == "dependencies" for reason in waits] == [False, True]

    await fail(worker, 1)
    with pytest.raises(Refused) as caught:
        await array(bench, count=2, depends_on_each=[first])
    assert (caught.value.code, caught.value.field) == (ProblemCode.DEPENDENCY_UNSATISFIABLE, "depends_on_each")
    assert "member 1" in caught.value.detail
    with pytest.raises(Refused) as caught:
        await array(bench, count=3, depends_on_each=[first])
    assert caught.value.field == "depends_on_each"


async def test_thousands_of_members_with_many_parents_each_are_refused_and_the_other_way_named(bench) -> None:
    parents = await array(bench, count=100)

    with pytest.raises(Refused) as caught:
        await array(bench, count=10_000, depends_on=list(range(parents, parents + 100)))

    assert caught.value.field == "depends_on"
    assert "depends_on_array" in (caught.value.hint or "")


# ---- events and retention


async def test_an_array_of_any_size_is_submitted_with_one_event(bench) -> None:
    first = await array(bench, count=1000)

    [said] = (await bench.client.job_events(limit=500)).events

    assert (said.type.value, said.job, said.data) == ("array_submitted", first, {"count": 1000})


async def test_what_a_lost_member_had_cancelled_keeps_its_environment_while_that_may_come_back(make_bench) -> None:
    bench = await make_bench(keep_env_s=100)
    first = await array(bench, count=2, on_worker_lost="orphan")
    child = await bench.submit(depends_on_array=[first], env={"KEY": "value"})
    worker = await bench.registered(slots=2)
    for delivery in (await worker.poll()).deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
    await bench.sweep(after_s=61)
    assert await bench.state(child) == "cancelled"

    await bench.sweep(after_s=200)

    kept = (await bench.client.job_get(child, detail="full")).spec
    assert kept is not None
    assert kept["env"] == {"KEY": "value"}


async def test_members_go_with_time_and_the_array_with_the_last(make_bench) -> None:
    bench = await make_bench(keep_jobs_s=100, keep_logs_s=100)
    first = await array(bench, count=3, max_parallel=1)
    await bench.client.job_cancel(CancelRequest(job=[first]))
    await bench.sweep(after_s=101)
    assert (await bench.client.job_list(array=first)).total == 2
    assert [job.id for job in (await bench.client.job_list()).jobs] == [first], "though its first member is gone"
    await bench.client.job_cancel(CancelRequest(array=first))
    await bench.sweep(after_s=101)

    def left(tx):
        return Counter(
            {
                name: bool(tx.one(name, **by))
                for name, by in {"array": {"array": first}, "shape_id": {"key": key}}.items()
            }
        )

    key = f'[1.0,[],null,"default",0,null,null,[],null,null,null,{first}]'
    assert await bench.broker.store.read(left) == {"array": False, "shape_id": False}
