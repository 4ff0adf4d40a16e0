"""Many jobs in one call: all of them, or none."""

from __future__ import annotations

import pytest

from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project


def specs(*fields: dict[str, object]) -> list[JobSpec]:
    return [JobSpec.model_validate({"command": "true", **one}) for one in fields]


async def test_all_are_accepted_in_their_order_arrays_too(bench) -> None:
    said = await bench.client.job_submit_many(specs({"name": "a"}, {"count": 3, "max_parallel": 1}, {"name": "b"}))

    assert [(made.id, made.ids) for made in said.jobs] == [(1, None), (None, "2..4"), (5, None)]
    assert (await bench.client.job_list()).total == 5


@pytest.mark.parametrize(
    ("bad", "field", "code"),
    [
        ({"max_parallel": 2}, "jobs.1.max_parallel", ProblemCode.INVALID_SPEC),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "jobs.1.env", ProblemCode.INVALID_SPEC),
        ({"depends_on": [99]}, "jobs.1.depends_on", ProblemCode.UNKNOWN_JOB),
        ({"count": 9_999}, "jobs", ProblemCode.INVALID_SPEC),
        ({"name": "n" * 197 + "{i}", "count": 1001}, "jobs.1.name", ProblemCode.INVALID_SPEC),
    ],
)
async def test_one_that_is_wrong_refuses_them_all_and_is_named(
    bench, bad: dict[str, object], field: str, code: ProblemCode
) -> None:
    with pytest.raises(Refused) as caught:
        await bench.client.job_submit_many(specs({}, bad, {}))

    assert (caught.value.code, caught.value.field) == (code, field)
    assert (await bench.client.job_list()).total == 0
    assert (await bench.client.job_events()).events == []


async def test_a_quota_that_one_of_them_passes_keeps_them_all_out_and_says_so(make_bench) -> None:
    bench = await make_bench(projects={"small": Project.model_validate({"quota": {"queued": 2}})})

    with pytest.raises(Refused) as caught:
        await bench.client.job_submit_many(specs(*[{"project": "small"}] * 3))

    assert (caught.value.code, caught.value.field) == (ProblemCode.QUOTA_EXCEEDED, "jobs.2")
    assert (await bench.client.job_list()).total == 0
    [event] = (await bench.client.job_events()).events
    assert (event.type.value, event.project) == ("job_denied", "small")
    assert event.data == {
        "reason": "quota",
        "quota": "project small",
        "field": "queued",
        "limit": 2,
        "have": 2,
        "need": 1,
    }
