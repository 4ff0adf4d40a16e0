"""What goes after its time, what must stay, and what is said of what has gone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.core.retention import REMOVED, Keep, blocks, cutoffs, members
from broker.service import retention
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.workers import Outcome, Phase
from support.folding import differences_in
from support.scripted_worker import ScriptedWorker, SteppedClock

DAY = 86_400.0
KEEP = {"keep_env_s": 1 * DAY, "keep_logs_s": 10 * DAY, "keep_jobs_s": 30 * DAY}
SECRET = "s3cr3t-value-of-the-environment"


@pytest.fixture
async def bench(make_bench):
    return await make_bench(**KEEP)


async def later(bench, days: float) -> None:
    """Time passes, and retention has its turn."""
    bench.clock.pass_s(days * DAY)
    await retention.prune(bench.broker)


async def done(bench, worker: ScriptedWorker, output: bytes = b"", **fields: object) -> int:
    """A job that has run and written, with all of its output here."""
    job = await bench.submit(**fields)
    delivery = await worker.running()
    assert delivery.job == job
    if output:
        await worker.write(delivery, output)
    await worker.finish(delivery, final_size=len(output))
    return job


def rows(bench, statement: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{bench.directory}/jobd.sqlite3?mode=ro", uri=True)) as connection:
        return connection.execute(statement, values).fetchall()


async def refusal(awaitable) -> Refused:
    with pytest.raises(Refused) as refused:
        await awaitable
    return refused.value


async def kinds(bench) -> list[EventType]:
    return [event.type for event in (await bench.client.job_events(limit=500)).events]


# ---- the two clocks


@pytest.mark.trial("B83")
@pytest.mark.guarantee("G27")
async def test_output_goes_first_and_is_told_apart_from_none(bench) -> None:
    worker = await bench.registered()
    job, silent = await done(bench, worker, b"hello\n"), await done(bench, worker)

    await later(bench, 9.9)
    assert "hello" in await bench.client.job_logs(job)
    await later(bench, 0.2)

    assert (await refusal(bench.client.job_logs(job))).code is ProblemCode.LOGS_PRUNED
    assert (await refusal(anext(bench.client.job_output(job)))).code is ProblemCode.LOGS_PRUNED
    got = await bench.client.job_get(job, detail="full")
    assert (got.state.value, got.exit_code, got.logs_pruned, got.log_bytes) == ("completed", 0, True, None)
    waited = await bench.client.job_wait([job])
    assert waited.done and waited.jobs[0].log_tail is None
    assert not (bench.directory / "logs" / "0" / str(job)).exists()
    pruned = [e for e in (await bench.client.job_events(limit=500)).events if e.type is EventType.LOGS_PRUNED]
    assert [event.data for event in pruned] == [{"jobs": f"{job}..{silent}"}]


@pytest.mark.guarantee("G27")
async def test_a_row_goes_with_all_that_belonged_to_it(bench) -> None:
    worker = await bench.registered()
    job = await done(bench, worker, b"hello\n", name="old", project="p")
    young = await bench.submit(project="p")

    await later(bench, 30.1)

    assert rows(bench, "SELECT id FROM jobs") == [(young,)]
    for table in ("assignments", "events", "dependencies"):
        column = "child" if table == "dependencies" else "job"
        assert rows(bench, f"SELECT 1 FROM {table} WHERE {column} = ?", job) == []
    assert rows(bench, "SELECT count(*) FROM specs") == [(1,)]
    listed = await bench.client.job_list(project="p")
    assert (listed.total, listed.counts) == (1, {"queued": 1})
    assert differences_in(bench.directory / "jobd.sqlite3") == []


@pytest.mark.guarantee("G27")
async def test_what_is_gone_is_refused_as_gone_everywhere(bench) -> None:
    worker = await bench.registered()
    job = await done(bench, worker)
    await later(bench, 31)
    client = bench.client

    for call in (
        client.job_get(job),
        client.job_wait([job]),
        client.job_logs(job),
        client.job_cancel(CancelRequest(job=[job])),
        client.job_submit(JobSpec(command="true", depends_on=[job])),
    ):
        refused = await refusal(call)
        assert refused.code is ProblemCode.UNKNOWN_JOB
        assert f"job {job} is not kept any more" in refused.detail
    assert "there is no job" in (await refusal(client.job_get(job + 1))).detail


@pytest.mark.guarantee("G27")
async def test_ids_are_never_given_again(short_dir: Path) -> None:
    clock, directory = SteppedClock(), short_dir / "state"
    settings = BrokerSettings.model_validate({"sweep_s": 3600, **KEEP})
    url = f"unix://{directory}/broker.sock"
    async with run_broker(settings, directory, {}, clock=clock) as broker, BrokerClient(url) as client:
        last = (await client.job_submit(JobSpec(command="true", count=5))).array + 4
        await client.job_cancel(CancelRequest(array=last - 4))
        seen = (await client.job_events(limit=500)).next_cursor
        clock.pass_s(31 * DAY)
        await retention.prune(broker)
        assert (await client.job_list()).total == 0
    async with run_broker(settings, directory, {}, clock=clock), BrokerClient(url) as client:
        assert (await client.job_submit(JobSpec(command="true"))).id == last + 1
        assert (await client.job_events(since=seen)).events[-1].job == last + 1


async def test_nothing_goes_where_all_is_kept_for_ever(make_bench) -> None:
    bench = await make_bench(keep_env_s=0, keep_logs_s=0, keep_jobs_s=0)
    job = await done(bench, await bench.registered(), b"hello\n", env={"TOKEN": SECRET})

    await later(bench, 3650)

    assert "hello" in await bench.client.job_logs(job)
    assert (await bench.client.job_get(job, detail="full")).spec["env"] == {"TOKEN": SECRET}


async def test_output_does_not_outlive_its_row(make_bench) -> None:
    bench = await make_bench(keep_logs_s=0, keep_jobs_s=DAY)
    job = await done(bench, await bench.registered(), b"hello\n")

    await later(bench, 1.1)

    assert (await refusal(bench.client.job_get(job))).code is ProblemCode.UNKNOWN_JOB
    assert not (bench.directory / "logs" / "0" / str(job)).exists()


@pytest.mark.trial("B110")
async def test_many_go_in_batches_with_one_event_each(bench) -> None:
    array = await bench.submit(count=350)
    await bench.client.job_cancel(CancelRequest(array=array))

    await later(bench, 31)

    told = (await bench.client.job_events(type=EventType.JOBS_PRUNED)).events
    assert [len(members(event.data["jobs"])) for event in told] == [100, 100, 100, 50]
    assert (await bench.client.job_list()).total == 0
    assert rows(bench, "SELECT count(*) FROM specs") == [(0,)]


def test_ids_in_blocks_are_read_back() -> None:
    for ids in ([1], [1, 2, 3], [3, 1, 2, 9, 7], list(range(5, 200, 3))):
        assert members(blocks(ids)) == sorted(ids)
    assert blocks([53, *range(1, 51)]) == "1..50,53"


def test_output_goes_by_whichever_is_the_shorter() -> None:
    cut = cutoffs(Keep(env_s=0, logs_s=50, jobs_s=20), now_ms=100_000)
    assert (cut.env, cut.logs, cut.jobs) == (None, 80_000, 80_000)


# ---- what must stay


@pytest.mark.trial("B96")
@pytest.mark.guarantee("G27")
async def test_a_parent_stays_while_a_job_that_has_not_ended_depends_on_it(bench) -> None:
    worker = await bench.registered()
    first = await done(bench, worker)
    second = await bench.submit(needs=["nowhere"])
    child = await bench.submit(depends_on=[first, second])
    other = await done(bench, worker)

    await later(bench, 31)

    assert await bench.state(first) == "completed"
    assert (await refusal(bench.client.job_get(other))).code is ProblemCode.UNKNOWN_JOB
    assert (await bench.client.job_get(child, detail="full")).depends_on == [first, second]
    await bench.client.job_cancel(CancelRequest(job=[second]))
    assert await bench.state(child) == "cancelled"
    await later(bench, 31)
    assert (await bench.client.job_list()).total == 0


@pytest.mark.trial("B96")
@pytest.mark.guarantee("G27")
async def test_the_end_of_a_parent_that_is_gone_still_decides_a_child_that_is_queued_again(bench) -> None:
    """With policy failure: the parent is orphaned, so the child may start; the parent comes back and completes, which
    forbids it; the parent is removed; and then it turns out that the child never executed. It must not start now."""
    parent = await bench.submit(on_worker_lost="orphan")
    first = await bench.registered("w1")
    delivery = await first.running()
    await bench.sweep(after_s=61)
    child = await bench.submit(depends_on=[parent], dependency_policy="failure", on_worker_lost="orphan")
    second = await bench.registered("w2", machine="m2:boot")
    never_started = await second.one()
    await second.ack(never_started)
    await first.report()
    await first.finish(delivery)
    assert [await bench.state(job) for job in (parent, child)] == ["completed", "assigned"]
    bench.clock.pass_s(20 * DAY)
    await second.report()
    await bench.sweep()  # a gap, of which little counts as silence
    await bench.sweep(after_s=61)
    assert await bench.state(child) == "orphaned"
    await later(bench, 11)
    assert rows(bench, "SELECT id FROM jobs") == [(child,)]

    await second.finish(never_started, Outcome.NEVER_EXECUTED)

    got = await bench.client.job_get(child, detail="full")
    assert (got.state.value, got.depends_on) == ("cancelled", [parent])
    assert f"job {parent}, which is completed" in got.reason.message


async def test_what_may_still_run_stays_until_its_worker_is_forgotten(bench) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    await worker.running()
    await bench.sweep(after_s=61)
    bench.clock.pass_s(29 * DAY)
    worker.recovered, worker.held = False, {}
    await worker.report()

    await later(bench, 5)
    assert await bench.state(job) == "orphaned"
    await bench.sweep()  # a gap, of which little counts as silence
    await bench.sweep(after_s=61)
    await later(bench, 31)

    assert (await refusal(bench.client.job_get(job))).code is ProblemCode.UNKNOWN_JOB
    assert (await bench.client.worker_list()).workers == []
    assert EventType.WORKER_REMOVED in await kinds(bench)


@pytest.mark.guarantee("G27")
async def test_output_that_is_still_to_come_is_waited_for(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await worker.write(delivery, b"half ")
    await worker.finish(delivery, final_size=9)

    await later(bench, 40)
    await worker.report()

    assert await bench.state(job) == "completed"
    assert await worker.write(delivery, b"done", offset=5) == 9
    await later(bench, 0)
    assert (await refusal(bench.client.job_get(job))).code is ProblemCode.UNKNOWN_JOB


async def test_a_holder_of_output_that_is_gone_may_forget_it(bench) -> None:
    worker = await bench.registered()
    await bench.submit()
    delivery = await worker.running()
    await worker.write(delivery, b"12345")
    await worker.finish(delivery, final_size=5)
    await later(bench, 11)

    answer = await bench.client.put_log(worker.id, delivery.job, 1, delivery.token, 1, "log", 0, b"12345")

    assert (answer.size, answer.durable, answer.duplicate) == (5, 5, True)
    assert not (bench.directory / "logs" / "0" / str(delivery.job)).exists()


@pytest.mark.trial("B113")
@pytest.mark.guarantee("G27")
async def test_a_clock_that_jumps_removes_nothing(bench) -> None:
    worker = await bench.registered()
    job = await done(bench, worker, b"hello\n")

    bench.clock.wall += int(3650 * DAY * 1000)
    await retention.prune(bench.broker)
    bench.clock.pass_s(DAY / 2)
    await retention.prune(bench.broker)
    assert "hello" in await bench.client.job_logs(job)
    bench.clock.wall -= int(3650 * DAY * 1000)
    for _ in range(3):
        await later(bench, 0.5)
    assert "hello" in await bench.client.job_logs(job)

    await later(bench, 10)
    assert (await refusal(bench.client.job_logs(job))).code is ProblemCode.LOGS_PRUNED


async def test_a_row_that_can_not_be_removed_keeps_no_other(bench) -> None:
    worker = await bench.registered()
    first, bad, last = [await done(bench, worker) for _ in range(3)]
    await later(bench, 11)

    def spoil(tx) -> None:
        tx._connection.execute("UPDATE counts SET n = 2")  # one too few: the count of the last can't be taken away

    await bench.broker.store.run(spoil)
    await later(bench, 20)

    left = [job for (job,) in rows(bench, "SELECT id FROM jobs")]
    assert len(left) == 1 and left[0] in (first, bad, last)
    assert (await bench.client.job_list()).jobs[0].id == left[0]


# ---- environment values


@pytest.mark.guarantee("G27")
async def test_values_of_the_environment_are_gone_from_the_database_too(bench) -> None:
    worker = await bench.registered()
    job = await done(bench, worker, env={"TOKEN": SECRET, "PLAIN": "x" * 9000 + SECRET})
    await later(bench, 0.9)
    assert (await bench.client.job_get(job, detail="full")).spec["env"]["TOKEN"] == SECRET

    await later(bench, 0.2)

    assert (await bench.client.job_get(job, detail="full")).spec["env"] == {"TOKEN": REMOVED, "PLAIN": REMOVED}
    await bench.broker.store.close()
    for file in bench.directory.glob("jobd.sqlite3*"):
        assert SECRET.encode() not in file.read_bytes(), file.name


@pytest.mark.guarantee("G27")
async def test_what_can_run_again_keeps_its_environment(bench) -> None:
    """An orphan, and what its end had cancelled; a member of an array that still waits."""
    orphan = await bench.submit(on_worker_lost="orphan", env={"A": "1"})
    worker = await bench.registered()
    delivery = await worker.running()
    child = await bench.submit(depends_on=[orphan], env={"B": "2"})
    grandchild = await bench.submit(depends_on=[child], env={"C": "3"})
    array = await bench.submit(count=2, needs=["nowhere"], env={"D": "4"})
    await bench.client.job_cancel(CancelRequest(job=[array]))
    cancelled = await bench.submit(depends_on=[orphan], env={"E": "5"})
    await bench.client.job_cancel(CancelRequest(job=[cancelled]))
    await bench.sweep(after_s=61)
    assert [await bench.state(job) for job in (orphan, child, grandchild)] == ["orphaned", "cancelled", "cancelled"]

    await later(bench, 2)

    async def env(job: int) -> dict[str, str]:
        return (await bench.client.job_get(job, detail="full")).spec["env"]

    assert [await env(job) for job in (orphan, child, grandchild, array)] == [
        {"A": "1"},
        {"B": "2"},
        {"C": "3"},
        {"D": "4"},
    ]
    assert await env(cancelled) == {"E": REMOVED}
    await worker.report()
    assert [await bench.state(job) for job in (orphan, child, grandchild)] == ["running", "queued", "queued"]
    await worker.finish(delivery)
    assert (await worker.one()).spec.env == {"B": "2"}
    await bench.client.job_cancel(CancelRequest(array=array))
    await later(bench, 2)
    assert [await env(job) for job in (orphan, array, array + 1)] == [{"A": REMOVED}, {"D": REMOVED}, {"D": REMOVED}]


@pytest.mark.guarantee("G27")
async def test_those_of_an_array_that_is_larger_than_a_page_go_too(bench) -> None:
    array = await bench.submit(count=retention.BATCH + 1, env={"TOKEN": SECRET})
    await bench.client.job_cancel(CancelRequest(array=array))

    await later(bench, 2)

    assert (await bench.client.job_get(array, detail="full")).spec["env"] == {"TOKEN": REMOVED}


@pytest.mark.guarantee("G27")
async def test_what_two_orphans_had_cancelled_keeps_its_environment_until_both_are_back(bench) -> None:
    parents = [await bench.submit(on_worker_lost="orphan") for _ in range(2)]
    worker = await bench.registered()
    deliveries = (await worker.poll()).deliveries
    for delivery in deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
        worker.hold(delivery, Phase.RUNNING)
    child = await bench.submit(depends_on=parents, env={"B": "2"})
    await bench.sweep(after_s=61)
    worker.held.pop((deliveries[1].job, 1))
    await worker.report()
    await worker.finish(deliveries[0])
    assert await bench.state(child) == "cancelled"

    await later(bench, 2)
    worker.hold(deliveries[1], Phase.RUNNING)
    await worker.report()
    await worker.finish(deliveries[1])

    assert (await worker.one()).spec.env == {"B": "2"}


# ---- gaps in the story


@pytest.mark.guarantee("G27")
async def test_who_reads_on_from_before_a_gap_is_told(bench) -> None:
    worker = await bench.registered()
    cursor = (await bench.client.job_events()).next_cursor
    await done(bench, worker)
    after = (await bench.client.job_events(limit=500)).next_cursor
    kept = await bench.submit(needs=["nowhere"])
    await later(bench, 31)

    page = await bench.client.job_events(since=cursor, limit=500)
    assert page.pruned_to is not None and cursor < page.pruned_to <= after
    assert {event.job for event in page.events} == {None, kept}
    assert (await bench.client.job_events(since=page.next_cursor)).pruned_to is None
    assert (await bench.client.job_events(job=kept)).pruned_to is None
    assert (await bench.client.job_events(since=0, job=1)).pruned_to is not None
    assert await first_of_stream(bench, cursor) == ("pruned", {"to": page.pruned_to})
    kind, event = await first_of_stream(bench, page.pruned_to)
    assert (kind, event["seq"]) == ("event", page.pruned_to + 1)


async def first_of_stream(bench, since: int) -> tuple[str, dict[str, object]]:
    transport = httpx.AsyncHTTPTransport(uds=str(bench.directory / "broker.sock"))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client,
        client.stream("GET", "/v1/events/stream", params={"since": since}) as stream,
    ):
        told: dict[str, str] = {}
        async for line in stream.aiter_lines():
            if not line:
                break
            name, _, value = line.partition(": ")
            told[name] = value
        return told["event"], json.loads(told["data"])
