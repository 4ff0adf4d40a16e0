"""Waits that are kept: an id now, the answer later, whoever is there then."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.service import retention
from broker.wire.jobs import CancelRequest, JobSpec, Progress
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.states import JobState
from broker.wire.watches import KEPT_S, WatchRequest, WatchState
from broker.wire.workers import Outcome


@pytest.mark.guarantee("G42")
async def test_it_tells_how_a_job_stands_with_its_last_line_and_then_its_end(bench) -> None:
    worker = await bench.registered()
    job = await bench.submit()
    asked = await bench.client.watch_create(WatchRequest(job=[job]))
    assert (asked.state, asked.message, asked.waited) == (WatchState.WORKING, f"job {job} queued", None)

    running = await worker.running()
    await worker.write(running, b"epoch 1\n\x1b[31mepoch 2\x1b[0m\n")
    meanwhile = await bench.client.watch_get(asked.watch)
    assert meanwhile.message == f"job {job} running for 0 s on w1; last line: epoch 2"

    key = running.job, running.attempt
    worker.held[key] = worker.held[key].model_copy(update={"progress": Progress(fraction=0.42, message="step 2")})
    await worker.report()
    so_far = await bench.client.watch_get(asked.watch)
    assert so_far.message == f"job {job} running for 0 s on w1; 42% step 2; last line: epoch 2"

    await worker.finish(running, Outcome.EXITED, exit_code=3)
    done = await bench.client.watch_get(asked.watch)
    assert (done.state, done.message) == (WatchState.COMPLETED, f"job {job} failed")
    assert done.waited == await bench.client.job_wait([job], timeout_s=0)


@pytest.mark.guarantee("G42")
async def test_it_is_there_after_the_broker_has_started_again(short_dir: Path) -> None:
    directory = short_dir / "state"
    url = f"unix://{directory}/broker.sock"
    async with run_broker(BrokerSettings(), directory, {}), BrokerClient(url) as client:
        job = (await client.job_submit(JobSpec(command="true"))).id or 0
        asked = await client.watch_create(WatchRequest(job=[job]))
    async with run_broker(BrokerSettings(), directory, {}), BrokerClient(url) as client:
        assert (await client.watch_get(asked.watch)).state is WatchState.WORKING
        await client.job_cancel(CancelRequest(job=[job]))
        assert (await client.watch_get(asked.watch)).state is WatchState.COMPLETED


async def test_to_cancel_it_stops_no_job_and_a_repeat_changes_nothing(bench) -> None:
    job = await bench.submit()
    asked = await bench.client.watch_create(WatchRequest(job=[job]))

    first, second = [await bench.client.watch_cancel(asked.watch) for _ in range(2)]

    assert first == second == await bench.client.watch_get(asked.watch)
    assert first.state is WatchState.CANCELLED
    assert (await bench.client.job_get(job)).state is JobState.QUEUED


async def test_for_one_of_several_it_is_over_with_the_first_end(bench) -> None:
    jobs = [await bench.submit() for _ in range(3)]
    asked = await bench.client.watch_create(WatchRequest(job=jobs, mode="any"))
    assert asked.message == "3 jobs: 3 queued"

    await bench.client.job_cancel(CancelRequest(job=[jobs[2]]))

    done = await bench.client.watch_get(asked.watch)
    assert (done.state, done.message) == (WatchState.COMPLETED, "3 jobs: 2 queued, 1 cancelled")


async def test_jobs_that_there_are_not_are_refused_and_nothing_is_kept(bench) -> None:
    with pytest.raises(Refused) as caught:
        await bench.client.watch_create(WatchRequest(job=[99]))
    assert caught.value.code is ProblemCode.UNKNOWN_JOB
    with pytest.raises(Refused) as unknown:
        await bench.client.watch_get("job99.guess")
    assert (unknown.value.code, unknown.value.field) == (ProblemCode.UNKNOWN_WATCH, "watch")
    assert "job_wait" in (unknown.value.hint or "")


async def test_it_goes_after_a_week(bench) -> None:
    said = await bench.client.job_submit(JobSpec(command="true"))
    asked = await bench.client.watch_create(WatchRequest(job=[said.id or 0]))

    bench.clock.pass_s(KEPT_S - 60)
    await retention.prune(bench.broker)
    assert (await bench.client.watch_get(asked.watch)).state is WatchState.WORKING
    bench.clock.pass_s(120)
    await retention.prune(bench.broker)

    with pytest.raises(Refused) as caught:
        await bench.client.watch_get(asked.watch)
    assert caught.value.code is ProblemCode.UNKNOWN_WATCH
