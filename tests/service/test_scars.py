"""Faults that jobd 0.5 had, and how they end here."""

from __future__ import annotations

import asyncio

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused

TRIES = 500


@pytest.mark.trial("B30")
@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("policy", ["success", "any_exit"])
async def test_a_child_submitted_while_its_parent_fails_never_waits_for_ever(bench, policy: str) -> None:
    """Before, after and in the very moment: the child is refused, or decided by its policy."""
    worker = await bench.registered()
    children: list[int] = []
    refusals: list[ProblemCode] = []
    async with BrokerClient(f"unix://{bench.directory}/broker.sock") as another:

        async def submit_child(parent: int) -> None:
            spec = JobSpec(command="true", depends_on=[parent], dependency_policy=policy, worker="nobody")
            try:
                children.append((await another.job_submit(spec)).id or 0)
            except Refused as error:
                refusals.append(error.code)

        for number in range(TRIES // 2):
            parent = await bench.submit()
            delivery = await worker.running()
            child = asyncio.create_task(submit_child(parent))
            if number % 3 == 0:
                await child
            await worker.finish(delivery, exit_code=1)
            await child
            if number % 3 == 1:
                await submit_child(parent)

    assert len(children) + len(refusals) >= TRIES // 2
    shown = [await bench.client.job_get(child) for child in children]
    assert [job.id for job in shown if job.waiting is not None and job.waiting.code == "dependencies"] == []
    if policy == "success":
        assert {job.state.value for job in shown} == {"cancelled"}
        assert set(refusals) == {ProblemCode.DEPENDENCY_UNSATISFIABLE}
        assert min(len(children), len(refusals)) >= TRIES // 6
    else:
        assert {job.state.value for job in shown} == {"queued"} and refusals == []
        free = await bench.registered("nobody", slots=4000)
        ready: set[int] = set()
        while deliveries := (await free.poll()).deliveries:
            ready |= {delivery.job for delivery in deliveries}
        assert ready == set(children)
