"""A worker that fails to start one job after the other is given no more, and says why."""

from __future__ import annotations

import pytest

from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest
from broker.wire.workers import Outcome, WorkerUpdate

NO_PROCESS = {"reason_code": "launcher_failed", "reason": "no process could be made: Cannot allocate memory"}
NOT_FOUND = {"reason_code": "launch_failed", "reason": "x: No such file or directory (ENOENT, errno 2)"}


async def fails(bench, worker, *, outcome: Outcome = Outcome.REFUSED, **fields: object) -> None:
    """A job comes to the worker, and is not started there."""
    what = NOT_FOUND if outcome is Outcome.LAUNCH_FAILED else NO_PROCESS
    job = await bench.submit(worker=worker.name, **fields)
    await bench.sweep(after_s=61)  # what it refused before is asked again
    await worker.report()
    delivery = next(one for one in (await worker.poll()).deliveries if one.job == job)
    await worker.ack(delivery)
    await worker.finish(delivery, outcome, **what)
    if outcome is Outcome.REFUSED:
        await bench.client.job_cancel(CancelRequest(job=[job]))


async def shown(bench, name: str = "w1"):
    return next(worker for worker in (await bench.client.worker_list()).workers if worker.name == name)


async def cordons(bench) -> list[dict[str, object]]:
    return [event.data or {} for event in (await bench.client.job_events(type=EventType.WORKER_CORDONED)).events]


@pytest.mark.guarantee("G32")
async def test_a_worker_that_starts_nothing_is_cordoned_says_why_and_is_resumed_by_hand(make_bench) -> None:
    bench = await make_bench(max_launch_failures=3)
    worker = await bench.registered()
    for _ in range(3):
        assert await cordons(bench) == []
        await fails(bench, worker)

    [event] = await cordons(bench)
    assert (event["drain"], event["code"]) == (False, "launch_failures")
    assert "3 starts in a row" in str(event["why"]) and "Cannot allocate memory" in str(event["why"])
    found = await shown(bench)
    assert (found.state.value, found.cordoned) == ("cordoned", True)
    assert found.cordon_reason is not None and found.cordon_reason.message == event["why"]
    waits = await bench.submit()
    assert (await worker.poll()).deliveries == []
    explained = await bench.client.job_explain(waits)
    assert "Cannot allocate memory" in explained.placement[0].reasons[0].message
    assert explained.suggestion.startswith("job workers resume w1")
    assert "3 starts in a row" in explained.waiting.message

    answer = await bench.client.worker_update("w1", WorkerUpdate(resume=True))
    assert (answer.state.value, answer.cordon_reason) == ("online", None)
    await bench.sweep(after_s=61)
    await worker.report()
    assert [one.job for one in (await worker.poll()).deliveries] == [waits]


@pytest.mark.guarantee("G32")
async def test_one_start_that_succeeds_begins_the_count_anew(make_bench) -> None:
    bench = await make_bench(max_launch_failures=3)
    worker = await bench.registered()
    for _ in range(3):
        await fails(bench, worker)
        await fails(bench, worker)
        await bench.submit()
        await bench.sweep(after_s=61)
        await worker.report()
        await worker.finish(await worker.running())
    assert await cordons(bench) == []
    assert (await shown(bench)).state.value == "online"


@pytest.mark.guarantee("G32")
async def test_a_command_that_is_not_found_is_the_project_s_own_until_others_fail_too(make_bench) -> None:
    bench = await make_bench(max_launch_failures=3)
    worker = await bench.registered()
    for number in range(6):
        await fails(bench, worker, outcome=Outcome.LAUNCH_FAILED, command=None, argv=["trian", str(number)])
    assert await cordons(bench) == []
    await fails(bench, worker, outcome=Outcome.LAUNCH_FAILED, command=None, argv=["gcc"], project="other")
    assert len(await cordons(bench)) == 1


async def test_zero_turns_it_off_and_an_operators_cordon_stays_the_operators(make_bench) -> None:
    bench = await make_bench(max_launch_failures=0)
    worker = await bench.registered()
    for _ in range(4):
        await fails(bench, worker)
    assert await cordons(bench) == []
    await bench.client.worker_update("w1", WorkerUpdate(cordon=True))
    assert (await shown(bench)).cordon_reason is None


async def test_what_was_cordoned_by_itself_can_be_drained_and_keeps_its_reason(make_bench) -> None:
    bench = await make_bench(max_launch_failures=1)
    worker = await bench.registered()
    await fails(bench, worker)
    answer = await bench.client.worker_update("w1", WorkerUpdate(drain=True))
    assert answer.state.value == "drained"
    assert answer.cordon_reason is not None
