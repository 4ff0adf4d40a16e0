"""Retries by hand: a new job that does an ended one again, and an old one that never comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.wire.jobs import CancelRequest, RetryRequest, Submitted
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project
from broker.wire.workers import Outcome


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
    await worker.say_goodbye() if hasattr(worker, "say_goodbye") else None
    return job


@pytest.mark.guarantee("G44")
async def test_a_retry_is_a_new_job_with_the_specification_as_it_was_asked_for_and_each_names_the_other(bench) -> None:
    old = await failed(bench, command="train", name="t", labels={"a": "b"}, priority=3)

    said = await retry(bench, old)

    assert (said.retry_of, said.state.value, said.warnings) == (old, "queued", None)
    new = await bench.client.job_get(said.id, detail="full")
    assert (new.retry_of, new.name, new.spec["command"], new.spec["priority"]) == (old, "t", "train", 3)
    before = await bench.client.job_get(old)
    assert (before.state.value, before.retried_as) == ("failed", said.id)
    assert (await bench.kinds(old))[-1] == "job_retried"
