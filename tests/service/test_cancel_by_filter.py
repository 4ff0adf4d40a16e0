"""Cancels by filter: what is hit is told before, and no more than that is hit."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker.wire.jobs import CancelAnswer, CancelRequest
from broker.wire.problems import ProblemCode, Refused


async def cancel(bench, **said: Any) -> CancelAnswer:
    return await bench.client.job_cancel(CancelRequest.model_validate(said))


async def ids(bench, **said: Any) -> list[int]:
    """Those that it would hit; afterwards it has hit these."""
    told = await cancel(bench, **said, dry_run=True)
    before = {job.id: job.state for job in (await bench.client.job_list(limit=200)).jobs}
    assert told.dry_run is True
    assert told.confirm is None
    done = await cancel(bench, **said)
    assert ([one.id for one in done.jobs], done.counts) == ([one.id for one in told.jobs], told.counts)
    after = {job.id: job.state for job in (await bench.client.job_list(limit=200)).jobs}
    assert before.keys() == after.keys()
    return [one.id for one in done.jobs]


async def test_a_name_labels_and_a_project_narrow_each_other(bench) -> None:
    a = await bench.submit(name="n", project="p", labels={"run": "1", "who": "me"})
    b = await bench.submit(name="n", project="q", labels={"run": "1"})
    c = await bench.submit(name="m", project="p", labels={"run": "2"})
    await bench.submit(name="x")

    assert await ids(bench, name="n", project="p") == [a]
    assert await ids(bench, labels={"run": "1"}) == [b]
    assert await ids(bench, labels={"run": "1", "who": "you"}) == []
    assert await ids(bench, project="p") == [c]


async def test_labels_of_members_have_their_own_words(bench) -> None:
    array = await bench.submit(count=3, labels={"n": "{i}"})

    assert await ids(bench, labels={"n": "1"}) == [array + 1]
    assert await ids(bench, array=array, labels={"n": "2"}) == [array + 2]
    assert await bench.state(array) == "queued"


async def test_a_preview_changes_nothing_and_says_what_would_have_to_be_confirmed(bench) -> None:
    jobs = [await bench.submit(project="p") for _ in range(12)]
    worker = await bench.registered(slots=12)
    await worker.poll()

    told = await cancel(bench, project="p", dry_run=True)

    assert (told.counts, len(told.jobs)) == ({"stopping": 12}, 12)
    assert told.confirm is not None and "12 running jobs" in told.confirm
    assert {await bench.state(job) for job in jobs} == {"assigned"}
    with pytest.raises(Refused) as caught:
        await cancel(bench, project="p")
    assert caught.value.code is ProblemCode.CONFIRMATION_NEEDED


async def test_ended_jobs_are_hit_by_no_filter(bench) -> None:
    job = await bench.submit(name="n")
    await cancel(bench, job=[job])

    assert await ids(bench, name="n") == []
    assert (await cancel(bench, job=[job], dry_run=True)).counts == {"already_ended": 1}


@pytest.mark.parametrize(
    "said", [{}, {"state": "queued"}, {"labels": {}}, {"project": "p", "dry_run": True, "idempotency_key": "k"}]
)
def test_words_that_name_nothing_or_contradict_each_other_are_refused(said: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CancelRequest.model_validate(said)
