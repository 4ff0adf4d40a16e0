"""Many clients and workers at once: whatever the order, each job has one owner and one end."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.workers import Ack, Delivery, Final, Finish, Outcome, Phase, VerdictWord
from support.scripted_worker import ScriptedWorker

W = VerdictWord


async def workers_of(bench, stack: AsyncExitStack, count: int, slots: float) -> list[ScriptedWorker]:
    """Each with connections of its own."""
    found = []
    for number in range(count):
        client = await stack.enter_async_context(BrokerClient(f"unix://{bench.directory}/broker.sock"))
        found.append(ScriptedWorker(client, f"w{number}", slots=slots))
        await found[-1].register()
    return found


def ack(delivery: Delivery) -> Ack:
    return Ack(kind="ack", job=delivery.job, attempt=delivery.attempt, token=delivery.token, shim="shim")


def finish(delivery: Delivery) -> Finish:
    final = Final(outcome=Outcome.EXITED, exit_code=0)
    return Finish(kind="finish", job=delivery.job, attempt=delivery.attempt, token=delivery.token, final=final)


@pytest.mark.trial("B39")
@pytest.mark.guarantee("G4")
async def test_sixteen_pollers_never_take_the_same_job(bench) -> None:
    """Some of them leave before they are answered: what they were given is told to them again."""
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await bench.client.job_submit(JobSpec(command="true", count=500))
        taken: list[int] = []

        async def takes(worker: ScriptedWorker, chance: random.Random, wait_s: float = 0.5) -> None:
            while True:
                hasty = asyncio.create_task(worker.poll(wait_s=wait_s, process=False))
                if chance.random() < 0.1:
                    await asyncio.wait([hasty], timeout=0.002)
                    hasty.cancel()
                    await asyncio.gather(hasty, return_exceptions=True)
                    continue
                answer = await hasty
                worker.process(answer)
                if not answer.deliveries:
                    return
                acks = (await worker.report(*(ack(delivery) for delivery in answer.deliveries))).verdicts
                accepted = [d for d, said in zip(answer.deliveries, acks, strict=False) if said.verdict is W.ACCEPTED]
                taken.extend(delivery.job for delivery in accepted)
                worker.held.clear()
                ends = (await worker.report(*(finish(delivery) for delivery in accepted))).verdicts
                assert [said.verdict for said in ends] == [W.ACCEPTED] * len(accepted)

        workers = await workers_of(bench, stack, 16, slots=8)
        await asyncio.gather(*(takes(worker, random.Random(n)) for n, worker in enumerate(workers)))
        for worker in workers:  # what was given to one that had left is told again to the same worker
            await takes(worker, random.Random(99), wait_s=0)

    assert len(taken) == len(set(taken)) == 2000
    assert (await bench.client.job_list()).counts == {"completed": 2000}


@pytest.mark.trial("B26")
@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_cancel_between_claim_and_start_always_holds(bench, seed: int) -> None:
    """200 short jobs on eight workers, of which some refuse what they are given: none that was cancelled completes."""
    chance = random.Random(seed)
    jobs = [await bench.submit() for _ in range(200)]
    executed: dict[int, int] = {}
    async with AsyncExitStack() as stack:
        workers = await workers_of(bench, stack, 8, slots=4)
        canceller = await stack.enter_async_context(BrokerClient(f"unix://{bench.directory}/broker.sock"))
        accepted: dict[int, str] = {}

        async def cancels() -> None:
            for job in chance.sample(jobs, 120):
                await asyncio.sleep(chance.random() * 0.01)
                answer = (await canceller.job_cancel(CancelRequest(job=[job]))).jobs[0]
                accepted[job] = answer.note
                if answer.note.startswith("cancelled"):
                    assert executed.get(job, 0) == 0, "it was cancelled before it ran, and ran"

        async def works(worker: ScriptedWorker, own: random.Random) -> None:
            idle = 0
            while idle < 3:
                answer = await worker.poll(wait_s=0.2)
                idle = 0 if answer.deliveries else idle + 1
                for delivery in answer.deliveries:
                    await lives(worker, delivery, own)

        async def lives(worker: ScriptedWorker, delivery: Delivery, own: random.Random) -> None:
            await asyncio.sleep(own.random() * 0.003)
            if own.random() < 0.2:
                await worker.finish(delivery, Outcome.REFUSED, reason_code="cwd_missing", reason="no such directory")
                return
            if await worker.ack(delivery) is not W.ACCEPTED:
                worker.held.pop((delivery.job, delivery.attempt), None)
                return
            executed[delivery.job] = executed.get(delivery.job, 0) + 1
            worker.hold(delivery, Phase.RUNNING)
            await asyncio.sleep(own.random() * 0.003)
            await worker.start(delivery)
            stops = [stop for stop in (await worker.report()).stops if stop.job == delivery.job]
            await worker.finish(delivery, Outcome.STOPPED if stops else Outcome.EXITED, exit_code=0)

        await asyncio.gather(cancels(), *(works(worker, random.Random(n)) for n, worker in enumerate(workers)))
        while (await bench.client.job_list()).counts.get("queued"):
            bench.clock.pass_s(61)  # no refusal holds any more
            await works(workers[0], random.Random(9))

    states = {job: await bench.state(job) for job in jobs}
    for job, note in accepted.items():
        if note.startswith("cancelled"):
            assert states[job] == "cancelled" and executed.get(job, 0) == 0
        elif note.startswith("stopping"):
            assert states[job] in ("cancelled", "completed")  # it had ended by itself before it heard of the stop
    assert {states[job] for job in jobs if job not in accepted} == {"completed"}
    assert max(executed.values()) == 1


@pytest.mark.trial("B31")
@pytest.mark.guarantee("G24")
async def test_a_parent_that_is_cancelled_while_it_exits_0_releases_all_of_its_descendants_or_none(bench) -> None:
    chance, ends = random.Random(5), set()
    async with BrokerClient(f"unix://{bench.directory}/broker.sock") as canceller:
        for number in range(60):
            worker = await bench.registered(f"w{number}", slots=1)
            parent = await bench.submit()
            child = await bench.submit(depends_on=[parent], worker=f"w{number}")
            grandchild = await bench.submit(depends_on=[child], worker=f"w{number}")
            delivery = await worker.one()
            assert delivery.job == parent

            async def cancels(job: int = parent) -> None:
                await asyncio.sleep(chance.random() * 0.004)
                await canceller.job_cancel(CancelRequest(job=[job]))

            cancelling = asyncio.create_task(cancels())
            if await worker.ack(delivery) is W.ACCEPTED:
                await worker.start(delivery)
                await worker.finish(delivery, exit_code=0)
            await cancelling
            worker.held.clear()

            end = await bench.state(parent)
            ends.add(end)
            given = [delivery.job for delivery in (await worker.poll()).deliveries]
            states = [await bench.state(job) for job in (child, grandchild)]
            if end == "cancelled":
                assert (given, states) == ([], ["cancelled", "cancelled"])
            else:
                assert (end, given, states) == ("completed", [child], ["assigned", "queued"])
            await canceller.job_cancel(CancelRequest(job=[child]))

    assert ends == {"completed", "cancelled"}
