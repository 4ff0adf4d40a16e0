"""Faults that jobd 0.5 had, and how they end here."""

from __future__ import annotations

import asyncio

import pytest

from broker.client import BrokerClient
from broker.wire.problems import ProblemCode, Refused

TRIES = 500


@pytest.mark.trial("B30")
@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("policy", ["success", "any_exit"])
async def test_a_child_submitted_while_its_parent_fails_never_waits_for_ever(bench, policy: str) -> None:
    """Before, after and in the very moment: the child is refused, or decided by its policy."""
    worker = await bench.registered()
    refused, children = 0, []
    async with BrokerClient(f"unix://{bench.directory}/broker.sock") as another:
        bench_of_clients = [bench.client, another]
        for number in range(TRIES // 2):
            parent = await bench.submit(name="parent")
            delivery = await worker.running()
            assert delivery.job == parent
            bench.client = bench_of_clients[number % 2]
            submit = asyncio.create_task(bench.submit(depends_on=[parent], dependency_policy=policy, worker="nobody"))
            if number % 3 == 0:
                await asyncio.wait([submit])
            await worker.finish(delivery, exit_code=1)
            try:
                children.append(await submit)
            except Refused as error:
                assert error.code is ProblemCode.DEPENDENCY_UNSATISFIABLE
                refused += 1
            if number % 3 == 1:
                try:
                    children.append(await bench.submit(depends_on=[parent], dependency_policy=policy, worker="nobody"))
                except Refused as error:
                    assert error.code is ProblemCode.DEPENDENCY_UNSATISFIABLE
                    refused += 1

    shown = [await bench.client.job_get(child) for child in children]
    waits_for_parents = [job.id for job in shown if job.waiting is not None and job.waiting.code == "dependencies"]
    assert waits_for_parents == []
    if policy == "success":
        assert {job.state.value for job in shown} == {"cancelled"}
        assert refused >= TRIES // 6 and len(children) >= TRIES // 6
    else:
        assert {job.state.value for job in shown} == {"queued"} and refused == 0
        free = await bench.registered("nobody", slots=4000)
        ready: set[int] = set()
        while deliveries := (await free.poll()).deliveries:
            ready |= {delivery.job for delivery in deliveries}
        assert ready == set(children)
