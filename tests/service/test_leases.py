"""Leases for work that is no job: how they queue, last, end and are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.service import leases, sweeps
from broker.service.context import Caller
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec
from broker.wire.leases import LESSEE, LeaseRequest, LeaseState, Lessee
from broker.wire.machines import Cpus, Facts, Gpu, GpuHealth, GpuProcess, GpuState
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project
from broker.wire.settings import BrokerSettings
from broker.wire.states import Scope
from broker.wire.workers import Outcome
from support.scripted_worker import ScriptedWorker, SteppedClock

HERE = "machine:boot"
A = "GPU-a"
S = LeaseState


async def asked(client: BrokerClient, **fields: object) -> int:
    said = {"machine": HERE, "ttl_s": 60, "what": "pytest  -q\ntests", **fields}
    return (await client.lease_request(LeaseRequest.model_validate(said))).job


async def told(bench, job: int) -> list[str]:
    return [kind for kind in await bench.kinds(job) if kind.startswith("lease_")]


async def the_lease(bench, job: int):
    return await bench.client.lease_get(job)


async def told_to_stop(worker: ScriptedWorker, delivery) -> float:
    """The stop that the worker is told of is carried out by KILL; its grace."""
    [stop] = (await worker.poll()).stops
    await worker.finish(delivery, Outcome.STOPPED, signal="SIGKILL", stop=stop.id)
    return stop.grace_s


def facts(number: int, *uses: str | None) -> Facts:
    """A card with a process of each of these."""
    processes = [GpuProcess(pid=100 + n, mb=2048, job=job) for n, job in enumerate(uses)]
    card = Gpu(
        uuid=A,
        index=0,
        health=GpuHealth.OK,
        total_mb=24576,
        driver_mb=400,
        free_mb=24576 - 400 - 2048 * len(uses),
        processes=processes,
    )
    return Facts(number=number, cpus=Cpus(logical=8, usable=8), gpu_state=GpuState.OK, gpus=[card])


@pytest.mark.guarantee("G34")
async def test_a_lease_stands_in_the_queue_among_jobs_and_is_shown_as_what_it_is(bench) -> None:
    worker = await bench.registered(slots=1)
    first = await bench.submit(cpus=1)
    job, later = await asked(bench.client), await bench.submit(cpus=1)
    delivery = await worker.running()
    assert delivery.job == first
    waits = await the_lease(bench, job)
    assert (waits.state, waits.waiting.code) == (S.WAITING, "capacity")

    await worker.finish(delivery)
    delivery = await worker.running()

    assert delivery.job == job
    lease = await the_lease(bench, job)
    assert (lease.state, lease.worker, lease.expires_in_s) == (S.GRANTED, "w1", 60)
    shown = await bench.client.job_get(job)
    assert (shown.kind, shown.command, shown.state) == ("lease", "pytest -q tests", "running")
    assert [known.kind for known in (await bench.client.job_list()).jobs] == [None, "lease", None]
    assert await told(bench, job) == ["lease_granted"]
    assert (await worker.poll()).deliveries == []
    assert await bench.state(later) == "queued"


async def test_a_released_lease_is_completed_at_once_and_a_repeat_changes_nothing(bench) -> None:
    worker = await bench.registered()
    job = await asked(bench.client)
    delivery = await worker.running()

    lease = await bench.client.lease_release(job)

    assert lease.state is S.ENDING
    await bench.sweep()  # what it was asked to end for stands
    assert await told_to_stop(worker, delivery) == 0
    lease = await bench.client.lease_release(job)
    assert (lease.state, lease.reason.code) == (S.ENDED, "lease_released")
    assert await bench.state(job) == "completed"
    assert await told(bench, job) == ["lease_granted", "lease_released"]


async def test_who_waits_leaves_the_queue_and_so_does_who_does_not_renew(bench) -> None:
    await bench.registered(slots=1, tags=["other"])
    left, silent = [await asked(bench.client, needs=["gone"]) for _ in range(2)]
    assert (await bench.client.lease_release(left)).reason.code == "lease_released"
    await bench.sweep(after_s=59)
    assert await bench.state(silent) == "queued"
    await bench.sweep(after_s=2)
    lease = await the_lease(bench, silent)
    assert (lease.state, lease.reason.code) == (S.ENDED, "lease_expired")
    assert await told(bench, silent) == ["lease_expired"]


@pytest.mark.guarantee("G34")
async def test_a_lease_lasts_as_long_as_it_is_renewed_and_no_longer(make_bench) -> None:
    bench = await make_bench(lease_s=10_000)
    worker = await bench.registered()
    job = await asked(bench.client)
    delivery = await worker.running()
    for _ in range(3):
        await bench.sweep(after_s=50)
        await worker.report()
        assert (await bench.client.lease_renew(job)).expires_in_s == 60

    await bench.sweep(after_s=61)
    await worker.report()

    lease = await the_lease(bench, job)
    assert (lease.state, lease.stopping.why) == (S.ENDING, "not renewed for 60 s")
    with pytest.raises(Refused, match="not renewed") as refused:
        await bench.client.lease_renew(job)
    assert refused.value.code is ProblemCode.ALREADY_TERMINAL
    assert await told_to_stop(worker, delivery) == 10
    shown = await bench.client.job_get(job)
    assert (shown.state, shown.reason.code) == ("cancelled", "lease_expired")
    assert await told(bench, job) == ["lease_granted", "lease_expired"]


async def test_no_jump_of_the_wall_clock_ends_a_lease(bench) -> None:
    worker = await bench.registered()
    job = await asked(bench.client)
    await worker.running()
    for jump_ms in (10 * 86_400_000, -20 * 86_400_000):
        bench.clock.wall += jump_ms
        await bench.sweep()
        await worker.report()
        assert (await the_lease(bench, job)).state is S.GRANTED
    assert (await bench.client.lease_renew(job)).expires_in_s == 60


@pytest.mark.guarantee("G34")
@pytest.mark.trial("B11")
async def test_a_broker_that_was_away_expires_no_lease_at_once(short_dir: Path) -> None:
    clock, state = SteppedClock(), short_dir / "state"
    settings = BrokerSettings(lease_s=600, sweep_s=5, poll_s=5)

    async def sweep(broker) -> None:
        for one in sweeps.SWEEPS:
            await one.run(broker)

    async with run_broker(settings, state, {}, clock=clock) as broker, BrokerClient(f"unix://{state}/broker.sock") as c:
        worker = ScriptedWorker(c)
        await worker.register()
        job = await asked(c)
        await worker.running()
        await sweep(broker)
    clock.pass_s(7200)
    async with run_broker(settings, state, {}, clock=clock) as broker, BrokerClient(f"unix://{state}/broker.sock") as c:
        await sweep(broker)
        assert (await c.lease_get(job)).state is S.GRANTED
        for _ in range(8):
            clock.pass_s(9)
            await sweep(broker)
        assert (await c.lease_get(job)).stopping is not None


async def test_the_worker_is_one_of_the_machine_and_of_those_one_with_room(bench) -> None:
    with pytest.raises(Refused, match="no worker runs") as none:
        await asked(bench.client)
    assert none.value.code is ProblemCode.UNKNOWN_WORKER and "job up" in (none.value.hint or "")
    await bench.registered("other", machine="elsewhere:boot")
    await bench.registered("small", slots=1)
    await bench.registered("large", slots=8)
    with pytest.raises(Refused, match="worker other does not run"):
        await asked(bench.client, worker="other")
    job = await asked(bench.client, cpus=4)
    full = await bench.client.job_get(job, detail="full")
    assert full.spec is not None and full.spec["worker"] == "large"
    assert full.spec["on_worker_lost"] == "orphan" and full.spec["idle_timeout_s"] == "none"


async def test_a_lost_worker_ends_no_lease_and_it_is_not_given_twice(bench) -> None:
    worker = await bench.registered()
    await worker.report(facts=facts(1))
    job = await asked(bench.client, gpus=1)
    delivery = await worker.running()
    await bench.sweep(after_s=50)
    await bench.client.lease_renew(job)
    await bench.sweep(after_s=50)
    assert await bench.state(job) == "orphaned"
    lease = await bench.client.lease_renew(job)
    assert (lease.state, lease.gpus) == (S.GRANTED, [A])

    waits = await bench.submit(gpus=1)
    back = worker.restarted()
    await back.register()
    back.hold(delivery, phase="running")
    await back.report(facts=facts(1))

    assert await bench.state(job) == "running"
    assert (await back.poll()).deliveries == []
    assert await bench.state(waits) == "queued"


async def test_a_lease_whose_devices_lie_idle_is_told_once(make_bench) -> None:
    bench = await make_bench(lease_s=10_000)
    worker = await bench.registered()
    await worker.report(facts=facts(1))
    job = await asked(bench.client, vram_gb=4, ttl_s=86_400)
    await worker.running()
    number = 2
    for use in (f"{job}.1", None, f"{job}.1"):
        await worker.report(facts=facts(number, use))
        await bench.sweep(after_s=0)
        await bench.sweep(after_s=400)
        number += 1
    assert await told(bench, job) == ["lease_granted"]

    await worker.report(facts=facts(number, None))
    for _ in range(4):
        await worker.report()
        await bench.sweep(after_s=400)

    assert await told(bench, job) == ["lease_granted", "lease_idle"]
    lease = await the_lease(bench, job)
    assert (lease.state, lease.idle) == (S.GRANTED, True)


async def test_whoever_looks_is_answered_when_a_lease_is_granted_and_when_it_is_to_end(bench) -> None:
    worker = await bench.registered()
    job = await asked(bench.client)
    looks = asyncio.create_task(bench.client.lease_get(job, unless=S.WAITING, wait_s=30))
    delivery = await worker.running()
    assert (await asyncio.wait_for(looks, 10)).state is S.GRANTED
    looks = asyncio.create_task(bench.client.lease_get(job, unless=S.GRANTED, wait_s=30))
    await bench.client.lease_release(job)
    assert (await asyncio.wait_for(looks, 10)).state in (S.ENDING, S.ENDED)
    await told_to_stop(worker, delivery)


async def test_what_is_no_lease_is_refused_and_so_is_who_says_whose_memory_is_whose(bench) -> None:
    job = await bench.submit()
    for ask in (bench.client.lease_get, bench.client.lease_renew, bench.client.lease_release):
        with pytest.raises(Refused, match="is no lease") as refused:
            await ask(job)
        assert refused.value.code is ProblemCode.UNKNOWN_LEASE
        with pytest.raises(Refused) as unknown:
            await ask(job + 1)
        assert unknown.value.code is ProblemCode.UNKNOWN_JOB
    with pytest.raises(Refused, match=LESSEE):
        await bench.client.job_submit(JobSpec(command="true", env={LESSEE: "1:1"}))
    await bench.registered()
    leased = await asked(bench.client, lessee=Lessee(pid=7, start=9))
    full = await bench.client.job_get(leased, detail="full")
    assert full.spec is not None and full.spec["env"] == {LESSEE: "7:9"}


async def test_an_idle_sweep_says_nothing_of_leases_without_devices(make_bench) -> None:
    bench = await make_bench(lease_s=10_000)
    worker = await bench.registered()
    job = await asked(bench.client, ttl_s=86_400)
    await worker.running()
    await bench.sweep()
    await bench.sweep(after_s=700)
    assert EventType.LEASE_IDLE.value not in await bench.kinds(job)


async def test_the_wall_limit_of_a_lease_is_a_stop_that_its_lessee_hears_of(make_bench) -> None:
    limited = {"_default": Project(max_wall_s=100, checkpoint_grace_s=5)}
    bench = await make_bench(lease_s=10_000, wall_margin_s=2, projects=limited)
    worker = await bench.registered()
    job = await asked(bench.client, ttl_s=86_400)
    delivery = await worker.running()
    assert delivery.spec.max_wall_s is None
    await bench.sweep(after_s=106)
    assert (await the_lease(bench, job)).state is S.GRANTED
    await bench.sweep(after_s=2)
    assert (await the_lease(bench, job)).stopping.why.startswith("max_wall_s=100")
    assert await told_to_stop(worker, delivery) == 5
    assert (await bench.client.job_get(job)).reason.code == "max_wall"


async def test_an_actor_renews_only_its_own_and_releases_others_only_on_purpose(bench) -> None:
    await bench.registered()
    job = await asked(bench.client)
    other = Caller("ben", frozenset({Scope.SUBMIT}))
    with pytest.raises(Refused) as forbidden:
        await leases.renew(bench.broker, other, job)
    assert forbidden.value.code is ProblemCode.FORBIDDEN
    with pytest.raises(Refused) as unconfirmed:
        await leases.release(bench.broker, other, job, force=False)
    assert unconfirmed.value.code is ProblemCode.CONFIRMATION_NEEDED
    assert (await leases.release(bench.broker, other, job, force=True)).state is S.ENDED


async def test_a_lease_that_was_released_while_its_worker_was_away_ends_when_that_comes_back(bench) -> None:
    worker = await bench.registered()
    job = await asked(bench.client, ttl_s=86_400)
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "orphaned"
    await bench.client.lease_release(job)
    with pytest.raises(Refused, match="is over"):
        await bench.client.lease_renew(job)

    back = worker.restarted()
    await back.register()
    back.hold(delivery, phase="running")
    await back.report()
    assert await bench.state(job) == "running"
    await bench.sweep()

    await told_to_stop(back, delivery)
    assert (await the_lease(bench, job)).state is S.ENDED
    assert await told(bench, job) == ["lease_granted", "lease_released"]
