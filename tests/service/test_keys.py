"""Idempotency keys: agents ask again after a lost answer, and there is one job."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from broker.service import submit as service
from broker.service.context import Caller
from broker.wire.jobs import CancelRequest, JobSpec, Submission, UpdateRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope


async def submit(bench, key: str | None, **fields: Any):
    said = {"command": "true", **fields}
    return await bench.client.job_submit(Submission.model_validate({**said, "idempotency_key": key}))


@pytest.mark.guarantee("G53")
@pytest.mark.trial("B38")
@pytest.mark.parametrize("fields", [{}, {"count": 3}, {"sweep": {"a": [1, 2]}}])
async def test_the_same_under_one_key_is_one_job_for_all_who_ask_and_says_so(bench, fields: dict[str, object]) -> None:
    said = await asyncio.gather(*[submit(bench, "k", **fields) for _ in range(10)])

    assert sorted(bool(one.repeated) for one in said) == [False] + [True] * 9
    assert len({one.model_copy(update={"repeated": None}).model_dump_json() for one in said}) == 1
    total = (await bench.client.job_list()).total
    assert total == (said[0].count or 1)
    assert len((await bench.client.job_events()).events) == 1


@pytest.mark.guarantee("G53")
@pytest.mark.trial("B38")
async def test_a_key_stands_for_one_request_and_the_refusal_names_its_job(bench) -> None:
    made = await submit(bench, "k", command="make")

    for other in ({"command": "make all"}, {"command": "make", "priority": 0}, {"command": "make", "count": 1}):
        with pytest.raises(Refused) as caught:
            await submit(bench, "k", **other)
        assert (caught.value.code, caught.value.field) == (ProblemCode.IDEMPOTENCY_CONFLICT, "idempotency_key")
        assert f"of job {made.id}, at 20" in caught.value.detail
    assert (await bench.client.job_list()).total == 1


async def test_the_order_of_names_does_not_matter_but_for_the_axes_of_a_sweep(bench) -> None:
    await submit(bench, "e", env={"A": "1", "B": "2"})
    assert (await submit(bench, "e", env={"B": "2", "A": "1"})).repeated is True
    await submit(bench, "s", sweep={"a": [1, 2], "b": [1, 2]})
    with pytest.raises(Refused):
        await submit(bench, "s", sweep={"b": [1, 2], "a": [1, 2]})


async def test_projects_and_operations_have_keys_of_their_own(bench) -> None:
    first, second = await submit(bench, "k"), await submit(bench, "k", project="other")
    cancelled = await bench.client.job_cancel(CancelRequest(job=[first.id], idempotency_key="k"))

    assert (first.repeated, second.repeated, cancelled.repeated) == (None, None, None)
    assert first.id != second.id


@pytest.mark.guarantee("G53")
async def test_whoever_uses_the_key_of_another_gets_a_job_of_its_own(bench) -> None:
    said = Submission(command="true", idempotency_key="k")
    anna, berta = (Caller(name, frozenset({Scope.SUBMIT})) for name in ("anna", "berta"))

    first = await service.submit(bench.broker, anna, said)
    second = await service.submit(bench.broker, berta, said)

    assert (first.id == second.id, second.repeated, second.warnings) == (False, None, None)
    assert (await service.submit(bench.broker, berta, said)).id == second.id


async def test_a_refused_submit_does_not_use_its_key_up(bench) -> None:
    with pytest.raises(Refused):
        await submit(bench, "k", depends_on=[1])
    assert (await submit(bench, "k")).repeated is None


async def test_many_together_have_one_key(bench) -> None:
    specs = [JobSpec(command="a"), JobSpec(command="b", count=2)]

    first = await bench.client.job_submit_many(specs, idempotency_key="k")
    again = await bench.client.job_submit_many(specs, idempotency_key="k")

    assert (first.repeated, again.repeated, again.jobs) == (None, True, first.jobs)
    with pytest.raises(Refused) as caught:
        await bench.client.job_submit_many(specs[:1], idempotency_key="k")
    assert caught.value.code is ProblemCode.IDEMPOTENCY_CONFLICT
    assert (await bench.client.job_list()).total == 3


async def test_a_cancel_that_is_repeated_is_answered_as_it_was_and_cancels_nothing_new(bench) -> None:
    job = await bench.submit(project="p")
    request = CancelRequest(project="p", idempotency_key="k")
    first = await bench.client.job_cancel(request)
    later = await bench.submit(project="p")

    again = await bench.client.job_cancel(request.model_copy(update={"force": True}))

    assert (again.repeated, again.jobs, again.counts) == (True, first.jobs, {"cancelled": 1})
    assert (await bench.state(job), await bench.state(later)) == ("cancelled", "queued")


async def test_a_change_that_is_repeated_does_not_undo_what_came_after_it(bench) -> None:
    job = await bench.submit()
    first = await bench.client.job_update(job, priority=5, idempotency_key="k")
    await bench.client.job_update(job, priority=7)

    again = await bench.client.job_update(job, priority=5, idempotency_key="k")

    assert (first.changed, again.repeated, again.changed) == (1, True, 1)
    assert (await bench.client.job_get(job, detail="full")).spec["priority"] == 7
    with pytest.raises(ValidationError):
        UpdateRequest(idempotency_key="k")


@pytest.mark.guarantee("G53")
async def test_a_key_is_known_for_its_time_and_then_forgotten(make_bench) -> None:
    bench = await make_bench(keep_keys_s=100)
    first = await submit(bench, "k")
    await bench.sweep(after_s=90)
    assert (await submit(bench, "k")).id == first.id

    await bench.sweep(after_s=20)

    assert (await submit(bench, "k")).id != first.id


async def test_the_header_is_understood_and_two_keys_that_differ_are_refused(bench) -> None:
    transport = httpx.AsyncHTTPTransport(uds=f"{bench.directory}/broker.sock")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        made = [
            (await http.post("/v1/jobs", json={"command": "true"}, headers={"Idempotency-Key": key})).json()
            for key in ("k", '"k"')
        ]
        both = await http.post(
            "/v1/jobs", json={"command": "true", "idempotency_key": "a"}, headers={"Idempotency-Key": "b"}
        )
        long = await http.post("/v1/jobs", json={"command": "true"}, headers={"Idempotency-Key": "k" * 201})

    assert (made[0]["id"], made[1]["repeated"]) == (made[1]["id"], True)
    assert (both.status_code, both.json()["field"]) == (422, "idempotency_key")
    assert long.status_code == 422


# ---- the same without a key


async def test_who_submits_the_same_again_within_a_minute_is_told_of_the_earlier_job(bench) -> None:
    first = await bench.submit(command="train")
    bench.clock.pass_s(30)
    second = await bench.client.job_submit(JobSpec(command="train"))
    other = await bench.client.job_submit(JobSpec(command="train", priority=1))
    bench.clock.pass_s(61)
    late = await bench.client.job_submit(JobSpec(command="train"))

    assert second.warnings == [
        f"job {first}, from 30 s ago, has the same specification: if it is a repeat, cancel one of them"
    ]
    assert (other.warnings, late.warnings) == (None, None)


async def test_what_one_call_submits_together_is_meant(bench) -> None:
    said = await bench.client.job_submit_many([JobSpec(command="train")] * 3)

    assert [one.warnings for one in said.jobs] == [None] * 3
