"""Retries by hand: a new job that does an ended one again, and an old one that never comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.wire.adoptions import AdoptRequest
from broker.wire.jobs import CancelRequest, RetryRequest, Submitted
from broker.wire.leases import LeaseRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project
from broker.wire.workers import Outcome, VerdictWord


async def retry(bench, job: int, **said: Any) -> Submitted:
    return await bench.client.job_retry(job, RetryRequest.model_validate(said))


async def refused(bench, job: int, **said: Any) -> Refused:
    before = (await bench.client.job_list()).total
    with pytest.raises(Refused) as caught:
        await retry(bench, job, **said)
    assert (await bench.client.job_list()).total == before
    return caught.value


async def failed(bench, **fields: object) -> int:
    job = await bench.submit(**fields)
    worker = await bench.registered(f"w{job}", machine=f"m{job}:b")
    await worker.finish(await worker.running(), Outcome.EXITED, exit_code=1)
    return job


@pytest.mark.guarantee("G52")
async def test_a_retry_is_a_new_job_with_the_specification_as_it_was_asked_for_and_each_names_the_other(bench) -> None:
    old = await failed(bench, command="train", name="t", labels={"a": "b"}, priority=3)

    said = await retry(bench, old)

    assert (said.retry_of, said.state.value, said.warnings) == (old, "queued", None)
    new = await bench.client.job_get(said.id, detail="full")
    assert (new.retry_of, new.name, new.spec["command"], new.spec["priority"]) == (old, "t", "train", 3)
    before = await bench.client.job_get(old)
    assert (before.state.value, before.retried_as) == ("failed", said.id)
    assert (await bench.kinds(old))[-1] == "job_retried"


async def test_what_a_project_decided_is_decided_afresh_and_what_was_asked_for_stays(make_bench) -> None:
    bench = await make_bench(projects={"p": Project.model_validate({"max_wall_s": 100, "cpus": 2})})
    old = await bench.submit(project="p", cpus=1)
    await bench.client.job_cancel(CancelRequest(job=[old]))
    bench.broker.settings.projects["p"] = Project.model_validate({"max_wall_s": 7, "cpus": 3})

    said = await retry(bench, old)

    new = await bench.client.job_get(said.id, detail="full")
    assert (new.spec["max_wall_s"], new.spec["cpus"]) == (7, 1)
    assert (new.sources["max_wall_s"], new.sources["cpus"]) == ("project", "job")


async def test_changes_are_put_in_null_removes_and_a_new_program_takes_the_place_of_the_old_one(bench) -> None:
    old = await failed(bench, command="train", name="t", venv="/v")

    said = await retry(bench, old, changes={"argv": ["train", "-v"], "name": None, "conda": "c", "cpus": "2"})

    spec = (await bench.client.job_get(said.id, detail="full")).spec
    assert (spec["argv"], spec["conda"], spec["cpus"]) == (["train", "-v"], "c", 2)
    assert {"command", "name", "venv"} & spec.keys() == set()


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"gpus": -1}, "changes.gpus", ProblemCode.INVALID_SPEC),
        ({"gpu": 1}, "changes.gpu", ProblemCode.INVALID_SPEC),
        ({"command": None}, "changes", ProblemCode.INVALID_SPEC),
        ({"count": 3}, "changes.count", ProblemCode.INVALID_SPEC),
        ({"max_parallel": 3}, "max_parallel", ProblemCode.INVALID_SPEC),
        ({"idempotency_key": "a"}, "changes.idempotency_key", ProblemCode.INVALID_SPEC),
        ({"depends_on": [99]}, "depends_on", ProblemCode.UNKNOWN_JOB),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "env", ProblemCode.INVALID_SPEC),
    ],
)
async def test_changes_that_make_no_job_are_refused_and_nothing_is_retried(
    bench, changes: dict[str, object], field: str, code: ProblemCode
) -> None:
    old = await failed(bench)

    said = await refused(bench, old, changes=changes)

    assert (said.code, said.field) == (code, field)
    assert (await bench.client.job_get(old)).retried_as is None


async def test_only_what_has_ended_and_was_not_retried_is_retried_and_no_lease(bench) -> None:
    live = await bench.submit()
    assert (await refused(bench, live)).code is ProblemCode.NOT_TERMINAL
    assert (await refused(bench, 99)).code is ProblemCode.UNKNOWN_JOB
    await bench.client.job_cancel(CancelRequest(job=[live]))
    by = (await retry(bench, live)).id

    again = await refused(bench, live)

    assert (again.code, f"job {by}" in again.detail) == (ProblemCode.ALREADY_RETRIED, True)


async def test_a_lease_is_not_retried(bench) -> None:
    await bench.registered("w", machine="m:b")
    asked = {"machine": "m:b", "ttl_s": 60, "what": "a notebook"}
    lease = await bench.client.lease_request(LeaseRequest.model_validate(asked))
    await bench.client.lease_release(lease.job)

    assert (await refused(bench, lease.job)).code is ProblemCode.NOT_RETRYABLE


async def test_an_adopted_process_is_not_retried(bench) -> None:
    worker = await bench.registered()
    adopted = (await bench.client.job_adopt(AdoptRequest(pid=4242))).id
    delivery = await worker.one()
    await worker.start(delivery)
    await worker.finish(delivery, exit_code=3)

    assert (await refused(bench, adopted)).code is ProblemCode.NOT_RETRYABLE


@pytest.mark.guarantee("G52")
async def test_a_retried_orphan_does_not_come_back_and_its_process_is_told_to_stop(bench) -> None:
    old = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(old) == "orphaned"

    said = await retry(bench, old)
    told = await worker.report()

    assert [verdict.verdict for verdict in told.verdicts] == [VerdictWord.STALE_ASSIGNMENT]
    assert said.warnings is not None and f"job {old}" in said.warnings[0]
    assert await bench.state(old) == "orphaned"
    assert (await bench.client.job_get(old)).retried_as == said.id


@pytest.mark.guarantee("G52")
async def test_a_retried_child_is_not_queued_again_when_its_parent_comes_back(bench) -> None:
    parent = await bench.submit(on_worker_lost="orphan")
    child = await bench.submit(depends_on=[parent], dependency_policy="success")
    other = await bench.submit(depends_on=[parent])
    worker = await bench.registered()
    await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(child) == await bench.state(other) == "cancelled"

    await retry(bench, child, changes={"depends_on": None})
    await worker.report()

    assert await bench.state(parent) == "running"
    assert (await bench.state(child), await bench.state(other)) == ("cancelled", "queued")


async def test_a_retry_of_what_its_parent_forbids_is_refused_and_says_how_to_go_on(bench) -> None:
    parent = await failed(bench)
    with pytest.raises(Refused):
        await bench.submit(depends_on=[parent])
    middle = await bench.submit()
    child = await bench.submit(depends_on=[middle])
    await bench.client.job_cancel(CancelRequest(job=[middle]))
    assert await bench.state(child) == "cancelled"

    assert (await refused(bench, child)).code is ProblemCode.DEPENDENCY_UNSATISFIABLE
    again = (await retry(bench, middle)).id
    said = await retry(bench, child, changes={"depends_on": [again]})

    assert (await bench.client.job_get(said.id)).waiting.code == "dependencies"


async def test_of_many_that_retry_the_same_job_at_once_one_does(bench) -> None:
    old = await failed(bench)

    said = await asyncio.gather(*[retry(bench, old) for _ in range(8)], return_exceptions=True)

    made = [one for one in said if isinstance(one, Submitted)]
    assert len(made) == 1
    assert {one.code for one in said if isinstance(one, Refused)} == {ProblemCode.ALREADY_RETRIED}
    assert (await bench.client.job_list()).total == 2


# ---- arrays


async def ended_array(bench, **fields: object) -> int:
    """Members 1 and 3 of five have failed."""
    array = await bench.submit(command="train {i}", count=5, **fields)
    worker = await bench.registered("of_array", machine="ma:b", slots=5)
    for delivery in (await worker.poll()).deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
        await worker.finish(delivery, Outcome.EXITED, exit_code=delivery.array_index in (1, 3))
    return array


@pytest.mark.guarantee("G52")
async def test_of_an_array_its_failed_members_are_retried_as_an_array_with_their_indexes(bench) -> None:
    old = await ended_array(bench, max_parallel=5)

    said = await retry(bench, old)

    assert (said.count, said.retry_of) == (2, old)
    new = (await bench.client.job_list(array=said.array)).jobs
    assert [(one.array_index, one.command, one.retry_of) for one in reversed(new)] == [
        (1, "train 1", old + 1),
        (3, "train 3", old + 3),
    ]
    members = (await bench.client.job_list(array=old)).jobs
    assert [one.retried_as for one in reversed(members)] == [None, said.array, None, said.array + 1, None]
    worker = await bench.registered("w", machine="m2:b", slots=5)
    given = (await worker.poll()).deliveries
    assert [(one.array, one.array_index, one.spec.command) for one in given] == [
        (said.array, 1, "train 1"),
        (said.array, 3, "train 3"),
    ]
    assert (await refused(bench, old)).code is ProblemCode.ALREADY_RETRIED


async def test_all_members_or_one_can_be_retried_and_a_member_keeps_its_values(bench) -> None:
    old = await bench.submit(command="t {lr}", sweep={"lr": ["a", "b", "c"]})
    await bench.client.job_cancel(CancelRequest(array=old))

    one = await retry(bench, old + 1)
    rest = await retry(bench, old, members="all", changes={"command": "u {lr}"})

    member = await bench.client.job_get(one.array)
    assert (member.command, member.array_index, member.values) == ("t b", 1, {"lr": "b"})
    assert (one.retry_of, rest.retry_of) == (old + 1, old)
    assert [job.command for job in reversed((await bench.client.job_list(array=rest.array)).jobs)] == ["u a", "u c"]


async def test_words_about_members_that_do_not_fit_are_refused(bench) -> None:
    old = await ended_array(bench)
    assert (await refused(bench, old + 1, members="failed")).field == "members"
    live = await bench.submit(count=2)
    assert (await refused(bench, live, members="all")).code is ProblemCode.NOT_TERMINAL
    assert (await refused(bench, live)).code is ProblemCode.NOT_RETRYABLE
    assert (await retry(bench, old, members="one")).count == 1


async def test_member_by_member_goes_on_with_those_that_were_retried(bench) -> None:
    parents = await ended_array(bench)
    children = await bench.submit(command="c {i}", count=5, depends_on_each=[parents], dependency_policy="any_exit")
    await bench.client.job_cancel(CancelRequest(job=[children + 1, children + 3]))
    again = await retry(bench, parents)

    said = await retry(bench, children, changes={"depends_on_each": [again.array], "dependency_policy": None})

    first = await bench.client.job_get(said.array, detail="full")
    assert (first.depends_on, first.array_index) == ([again.array], 1)


# ---- keys


@pytest.mark.guarantee("G53")
async def test_a_retry_with_a_key_is_done_once_and_another_under_that_key_is_refused(bench) -> None:
    old, other = await failed(bench), await failed(bench)

    said = await asyncio.gather(*[retry(bench, old, idempotency_key="k") for _ in range(5)])

    assert len({one.id for one in said}) == 1
    assert sorted(bool(one.repeated) for one in said) == [False, True, True, True, True]
    assert (await refused(bench, other, idempotency_key="k")).code is ProblemCode.IDEMPOTENCY_CONFLICT
    changed = await refused(bench, old, idempotency_key="k", changes={"gpus": 1})
    assert (changed.code, f"job {said[0].id}" in changed.detail) == (ProblemCode.IDEMPOTENCY_CONFLICT, True)


async def test_values_of_the_environment_that_were_removed_have_to_be_given_again(make_bench) -> None:
    bench = await make_bench(keep_env_s=10)
    old = await failed(bench, env={"A": "1"})
    await bench.sweep(after_s=60)

    said = await refused(bench, old)

    assert (said.code, said.field) == (ProblemCode.NOT_RETRYABLE, "changes.env")
    new = await retry(bench, old, changes={"env": {"A": "2"}})
    assert (await bench.client.job_get(new.id, detail="full")).spec["env"] == {"A": "2"}
