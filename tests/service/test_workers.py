"""What an operator does with workers: cordon, drain, resume, tags, forget. It holds over restarts of both."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import BaseModel

from broker.app import run_broker
from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.workers import Held, Outcome, Phase, VerdictWord, WorkerState, WorkerUpdate
from support.folding import differences_in
from support.scripted_worker import ScriptedWorker, SteppedClock

S = WorkerState


class Loose(BaseModel, extra="allow"):
    """A body with any fields."""


async def update(bench, worker: str = "w1", **fields: object):
    return await bench.client.worker_update(worker, WorkerUpdate.model_validate(fields))


async def told(bench, worker: str = "w1") -> list[str]:
    """What events say of the worker, but for its registration."""
    events = (await bench.client.job_events(worker=worker, limit=500)).events
    return [event.type.value for event in events if event.job is None and event.type is not EventType.WORKER_REGISTERED]


async def state(bench, worker: str = "w1") -> WorkerState:
    [found] = [known for known in (await bench.client.worker_list()).workers if known.name == worker]
    return found.state


@pytest.mark.guarantee("G29")
async def test_a_cordoned_worker_takes_nothing_new_and_keeps_what_it_has(bench) -> None:
    running = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()

    answer = await update(bench, cordon=True)
    waits = await bench.client.job_submit(JobSpec(command="true"))

    assert answer.state is S.CORDONED and answer.running == [f"{running}.1"]
    assert (await worker.poll()).deliveries == []
    assert waits.waiting.code == "workers_cordoned"
    assert "w1 (cordoned)" in (await bench.client.job_get(waits.id)).waiting.message
    await worker.finish(delivery)
    assert await bench.state(running) == "completed"
    assert await state(bench) is S.CORDONED


async def test_a_parked_poll_gets_nothing_while_cordoned_and_at_once_when_resumed(bench) -> None:
    worker = await bench.registered()
    parked = asyncio.create_task(worker.poll(wait_s=30))
    await asyncio.sleep(0)
    await update(bench, cordon=True)
    job = await bench.submit()
    for _ in range(10):  # the dispatcher has its chance
        assert await bench.state(job) == "queued"
    assert not parked.done() or (await parked).deliveries == []

    await update(bench, resume=True)

    deliveries = (await parked).deliveries or (await worker.poll()).deliveries
    assert [delivery.job for delivery in deliveries] == [job]
    assert await told(bench) == ["worker_cordoned", "worker_resumed"]


@pytest.mark.guarantee("G29")
async def test_a_drained_worker_says_so_once_its_last_job_has_ended(bench) -> None:
    await bench.submit(count=2)
    worker = await bench.registered()
    first, second = (await worker.poll()).deliveries
    for delivery in (first, second):
        await worker.ack(delivery)
        await worker.start(delivery)

    assert (await update(bench, drain=True)).state is S.DRAINING
    await worker.finish(first)
    assert await state(bench) is S.DRAINING
    await worker.finish(second)

    assert await state(bench) is S.DRAINED
    await bench.submit()
    assert (await worker.poll()).deliveries == []
    assert (await update(bench, drain=True)).state is S.DRAINED
    assert await told(bench) == ["worker_cordoned", "worker_drained"]


async def test_a_pending_delivery_counts_until_it_is_gone(bench) -> None:
    """What was given before the drain still runs; one that nobody acknowledged is given to somebody else."""
    job = await bench.submit()
    worker = await bench.registered()
    await worker.one()
    assert (await update(bench, drain=True)).state is S.DRAINING

    await bench.sweep(after_s=16)
    assert await bench.state(job) == "queued"
    worker.held.clear()
    await worker.report()

    assert await state(bench) is S.DRAINED


async def test_a_process_that_nobody_knows_keeps_a_worker_from_being_drained(bench) -> None:
    worker = await bench.registered()
    worker.held[999, 1] = Held(job=999, attempt=1, token="t", phase=Phase.RUNNING)
    await update(bench, drain=True)

    await worker.report()
    before = await state(bench)
    worker.held.clear()
    await worker.report()

    assert (before, await state(bench)) == (S.DRAINING, S.DRAINED)


async def test_what_comes_back_to_life_on_a_drained_worker_drains_it_again(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    held = dict(worker.held)
    await update(bench, drain=True)
    worker.held.clear()
    await worker.report()  # it says that it lost the job
    assert (await state(bench), await bench.state(job)) == (S.DRAINED, "queued")

    worker.held = held
    await worker.report()  # and finds it again

    assert (await state(bench), await bench.state(job)) == (S.DRAINING, "running")
    await worker.finish(delivery)
    assert await told(bench) == ["worker_cordoned", "worker_drained", "worker_cordoned", "worker_drained"]


async def test_an_idle_worker_is_drained_at_once_and_a_repeat_says_nothing(bench) -> None:
    await bench.registered()

    assert (await update(bench, drain=True)).state is S.DRAINED
    assert (await update(bench, drain=True)).state is S.DRAINED
    assert (await update(bench, cordon=True)).state is S.CORDONED
    assert (await update(bench, cordon=True)).state is S.CORDONED
    assert (await update(bench, resume=True)).state is S.ONLINE
    assert (await update(bench, resume=True)).state is S.ONLINE
    assert await told(bench) == ["worker_cordoned", "worker_drained", "worker_cordoned", "worker_resumed"]


@pytest.mark.guarantee("G29")
async def test_a_cordon_survives_broker_and_worker(short_dir: Path) -> None:
    clock, directory = SteppedClock(), short_dir / "state"
    settings = BrokerSettings(lease_s=60, sweep_s=3600, poll_s=5)
    url = f"unix://{directory}/broker.sock"
    async with run_broker(settings, directory, {}, clock=clock), BrokerClient(url) as client:
        worker = ScriptedWorker(client)
        await worker.register()
        await client.worker_update("w1", WorkerUpdate(drain=True, tags=["fast"]))
    async with run_broker(settings, directory, {}, clock=clock), BrokerClient(url) as client:
        job = (await client.job_submit(JobSpec(command="true", needs=["fast"]))).id
        worker.client = client
        newer = worker.restarted()
        await newer.register()

        assert (await newer.poll()).deliveries == []
        [shown] = (await client.worker_list()).workers
        assert (shown.state, shown.tags) == (S.DRAINED, ["fast"])
        await client.worker_update("w1", WorkerUpdate(resume=True))
        assert [delivery.job for delivery in (await newer.poll()).deliveries] == [job]


async def test_a_worker_that_is_away_is_cordoned_for_when_it_is_back(bench) -> None:
    worker = await bench.registered()
    await bench.sweep(after_s=61)

    answer = await update(bench, cordon=True)

    assert (answer.state, answer.cordoned) == (S.LOST, True)
    await bench.submit()
    assert (await worker.poll()).deliveries == []
    assert await state(bench) is S.CORDONED


async def test_given_tags_are_kept_beside_its_own_and_can_be_taken_back(bench) -> None:
    worker = await bench.registered(tags=["own"])
    job = await bench.submit(needs=["own", "fast"])
    assert (await worker.poll()).deliveries == []
    parked = asyncio.create_task(worker.poll(wait_s=30))
    await asyncio.sleep(0)

    assert (await update(bench, tags=["fast", "own"])).tags == ["fast", "own"]

    deliveries = (await parked).deliveries or (await worker.poll()).deliveries
    assert [delivery.job for delivery in deliveries] == [job]
    newer = worker.restarted()
    await newer.register()
    assert (await bench.client.worker_list()).workers[0].tags == ["fast", "own"]
    assert (await update(bench, tags=[])).tags == ["own"]
    assert await told(bench) == ["worker_updated", "worker_updated"]


async def test_a_worker_that_pauses_itself_shows_and_what_waits_says_so(bench) -> None:
    worker = await bench.registered()
    await worker.poll(accept=False)

    said = await bench.client.job_submit(JobSpec(command="true"))

    assert await state(bench) is S.PAUSED
    assert said.waiting.code == "workers_paused"
    assert len((await worker.poll()).deliveries) == 1
    assert await state(bench) is S.ONLINE


@pytest.mark.guarantee("G29")
async def test_a_worker_that_ends_with_checkpoints_gives_its_jobs_back_without_a_loss(bench) -> None:
    jobs = [await bench.submit(), await bench.submit(on_worker_lost="orphan"), await bench.submit()]
    worker = await bench.registered()
    running, orphan, preparing = (await worker.poll()).deliveries
    for delivery in (running, orphan):
        await worker.ack(delivery)
        await worker.start(delivery)

    answer = await worker.poll(accept=False, ending=True)

    assert [(stop.job, stop.why) for stop in answer.stops] == [(running.job, "its worker w1 ends")]
    assert [await bench.state(job) for job in jobs] == ["running", "running", "queued"]
    before = (await bench.client.job_events(limit=500)).next_cursor
    await worker.poll(accept=False, ending=True)
    assert (await bench.client.job_events(limit=500)).next_cursor == before
    assert await worker.ack(preparing) is VerdictWord.STALE_ASSIGNMENT
    await worker.finish(running, Outcome.STOPPED, exit_code=0, stop=answer.stops[0].id)
    got = await bench.client.job_get(running.job, detail="full")
    assert (got.state.value, got.reason.code) == ("queued", "preempted")
    assert [assignment.state.value for assignment in got.assignments] == ["preempted"]
    other = await bench.registered("w2", machine="m2:boot")
    assert {delivery.job for delivery in (await other.poll()).deliveries} == {jobs[0], jobs[2]}
    with closing(sqlite3.connect(f"file:{bench.directory}/jobd.sqlite3?mode=ro", uri=True)) as connection:
        assert connection.execute("SELECT sum(losses) FROM jobs").fetchone() == (0,)
    assert differences_in(bench.directory / "jobd.sqlite3") == []


async def test_an_end_by_itself_counts_though_the_worker_was_ending(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await worker.poll(accept=False, ending=True)

    await worker.finish(delivery, exit_code=0)

    assert await bench.state(job) == "completed"


@pytest.mark.parametrize(
    "fields", [{}, {"cordon": True, "resume": True}, {"drain": True, "cordon": True}, {"tags": ["not a tag"]}]
)
async def test_a_change_that_says_nothing_or_too_much_is_refused(bench, fields: dict[str, object]) -> None:
    await bench.registered()

    with pytest.raises(Refused) as refused:
        await bench.client._call(WorkerUpdate, "PATCH", "/v1/workers/w1", body=Loose(**fields))

    assert refused.value.code is ProblemCode.INVALID_REQUEST


async def test_a_misspelt_field_gets_the_right_one(bench) -> None:
    await bench.registered()

    with pytest.raises(Refused) as refused:
        await bench.client._call(WorkerUpdate, "PATCH", "/v1/workers/w1", body=Loose(cordn=True))

    assert refused.value.hint == "did you mean cordon?"


async def test_an_unknown_worker_is_refused_by_name(bench) -> None:
    for call in (update(bench, "nobody", drain=True), bench.client.worker_remove("nobody")):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.code is ProblemCode.UNKNOWN_WORKER


# ---- forgetting a worker


async def test_a_worker_that_is_there_is_not_forgotten(bench) -> None:
    await bench.registered()

    with pytest.raises(Refused) as refused:
        await bench.client.worker_remove("w1")

    assert refused.value.code is ProblemCode.WORKER_IN_USE


@pytest.mark.trial("B10")
async def test_a_lost_worker_is_not_forgotten_while_it_owns_live_jobs(make_bench) -> None:
    """Its jobs would be hidden from the sweep that gives them up. They are given up first; then it may go."""
    bench = await make_bench(exclusive_lease_s=300)
    await bench.submit()
    assigned = await bench.submit(on_worker_lost="requeue_exclusive")
    worker = await bench.registered()
    first, second = (await worker.poll()).deliveries
    for delivery in (first, second):
        await worker.ack(delivery)
    await worker.start(first)
    await bench.sweep(after_s=61)
    assert await state(bench) is S.LOST

    with pytest.raises(Refused) as refused:
        await bench.client.worker_remove("w1")

    assert refused.value.code is ProblemCode.WORKER_IN_USE and f"{assigned}.1" in refused.value.detail
    await bench.sweep(after_s=400)
    assert [await bench.state(job) for job in (first.job, assigned)] == ["queued", "queued"]
    assert (await bench.client.worker_remove("w1")).workers == []
    other = await bench.registered("w1")  # its name is free
    assert {delivery.job for delivery in (await other.poll()).deliveries} == {first.job, assigned}
    assert differences_in(bench.directory / "jobd.sqlite3") == []


async def test_a_forgotten_worker_that_comes_back_brings_its_job_back_and_hears_every_answer(bench) -> None:
    """Same process, same epoch: it has seen answers that the broker, as it was told to, has forgotten."""
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    delivery = await worker.running()
    seen = worker.seen
    await bench.sweep(after_s=61)
    await bench.client.worker_remove("w1")
    assert await bench.state(job) == "orphaned"

    with pytest.raises(Refused) as refused:
        await worker.poll()
    assert refused.value.code is ProblemCode.UNKNOWN_WORKER
    await worker.register()
    await worker.report()

    assert await bench.state(job) == "running"
    another = await bench.submit()
    answer = await worker.poll()
    assert [given.job for given in answer.deliveries] == [another]
    assert answer.number > seen >= 1, "a worker drops an answer whose number it has seen"
    await worker.finish(delivery)
    assert await bench.state(job) == "completed"


async def test_of_several_lost_workers_of_one_name_one_is_named_by_its_id(bench) -> None:
    for _ in range(2):
        await bench.registered()
        await bench.sweep(after_s=61)

    with pytest.raises(Refused) as refused:
        await bench.client.worker_remove("w1")
    ids = [worker.id for worker in (await bench.client.worker_list()).workers]
    left = (await bench.client.worker_remove(ids[0])).workers

    assert refused.value.code is ProblemCode.UNKNOWN_WORKER and "id" in refused.value.hint
    assert len(left) == 1 and left[0].id is None
    assert await told(bench) == ["worker_lost", "worker_lost", "worker_removed"]


@pytest.mark.trial("B21")
async def test_one_that_is_heard_and_does_not_ask_for_work_is_shown_so_and_not_counted_on(bench) -> None:
    silent, other = await bench.registered("silent", slots=2), await bench.registered("other", slots=1)
    running = await bench.submit(worker="other")
    delivery = await other.running()
    job = await bench.submit(worker="silent")
    for _ in range(3):
        await bench.sweep(after_s=30)
        await silent.report()
        await other.poll(wait_s=0)
    shown = {worker.name: worker.state.value for worker in (await bench.client.worker_list()).workers}
    told = await bench.client.job_explain(job)

    assert shown == {"silent": "not_polling", "other": "online"}
    assert (told.waiting.code, told.waiting.message) == ("workers_paused", "no new work for: silent (not polling)")
    assert told.suggestion.startswith("start the worker of silent again")
    assert [given.job for given in (await silent.poll()).deliveries] == [job]
    assert (await bench.client.worker_list()).workers[1].state.value == "online"
    assert running == delivery.job
