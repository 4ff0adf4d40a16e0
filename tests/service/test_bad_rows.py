"""A row that can't be, planted by hand in the database: it harms nobody but itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from broker.wire.workers import VerdictWord

BAD = {
    "a job's policy": "UPDATE jobs SET policy = 'whenever' WHERE id = 1",
    "a job's place in far time": "UPDATE jobs SET created_at = 9000000000000000, queued_at = -5 WHERE id = 1",
    "an assignment's lease": "UPDATE assignments SET lease_until = -9000000000000 WHERE job = 1",
    "an assignment's stop": "UPDATE assignments SET stop_id = 'x', stop_kind = 'tickle', stop_by = 'y', stop_why = 'z', "
    "stop_grace_s = 1, stop_at = 1, stop_early = 0 WHERE job = 1",
    "an assignment's worker": "UPDATE assignments SET worker = 'nobody' WHERE job = 1",
    "a specification": "UPDATE specs SET json = '{\"command\": ' WHERE id = (SELECT spec FROM jobs WHERE id = 1)",
    "an event's data": "UPDATE events SET data = '{broken' WHERE job = 1",
    "an event's type": "UPDATE events SET type = 'job_sang' WHERE job = 1",
}

QUEUED = {  # words of their own: each is said once in a process
    "a job's policy": "UPDATE jobs SET policy = 'now and then' WHERE id = 1",
    "a specification": "UPDATE specs SET json = 'run it' WHERE id = (SELECT spec FROM jobs WHERE id = 1)",
}


@pytest.mark.trial("B109")
@pytest.mark.parametrize("bad", BAD)
async def test_one_bad_row_keeps_no_other_job_from_its_end(bench, bad: str) -> None:
    jobs = [await bench.submit() for _ in range(3)]
    worker = await bench.registered(slots=3)
    for delivery in (await worker.poll()).deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
    child = await bench.submit(depends_on=[jobs[1]], dependency_policy="any_exit")
    plant(bench, BAD[bad])

    await bench.sweep(after_s=61)
    await bench.sweep()

    assert [await bench.state(job) for job in jobs[1:]] == ["queued", "queued"]
    other = await bench.registered("w2", slots=3)
    given = {delivery.job: delivery for delivery in (await other.poll()).deliveries}
    assert given.keys() >= set(jobs[1:])
    for job in jobs[1:]:
        await other.ack(given[job])
        await other.finish(given[job])
    assert [await bench.state(job) for job in (*jobs[1:], child)] == ["completed", "completed", "queued"]
    shown = await bench.client.job_list()
    assert {job.id for job in shown.jobs} >= {*jobs[1:], child}
    assert (await bench.client.worker_list()).workers
    assert (await bench.client.job_events(limit=500)).events


@pytest.mark.trial("B109")
@pytest.mark.parametrize("bad", ["an assignment's stop", "a job's policy"])
async def test_one_bad_row_keeps_no_other_job_of_its_worker_from_its_end(bench, bad: str) -> None:
    jobs = [await bench.submit() for _ in range(3)]
    worker = await bench.registered(slots=3)
    deliveries = (await worker.poll()).deliveries
    for delivery in deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)
    plant(bench, BAD[bad])

    await worker.poll()
    for delivery in deliveries[1:]:
        assert await worker.finish(delivery) is VerdictWord.ACCEPTED

    assert [await bench.state(job) for job in jobs[1:]] == ["completed", "completed"]


@pytest.mark.trial("B109")
@pytest.mark.parametrize("bad", QUEUED)
async def test_a_job_that_can_not_be_read_gives_way_to_those_behind_it_and_is_said_once(bench, bad: str, capfd) -> None:
    jobs = [await bench.submit() for _ in range(3)]
    plant(bench, QUEUED[bad])
    worker = await bench.registered(slots=3)

    given = [delivery.job for delivery in (await worker.poll()).deliveries]
    for _ in range(3):
        await worker.poll()
        await bench.sweep()

    assert given == jobs[1:]
    said = [line for line in capfd.readouterr().out.splitlines() if "can't be read" in line]
    assert len(said) == 1 and "row=1" in said[0]
    if bad == "a specification":
        got = await bench.client.job_get(jobs[0])
        assert (got.state.value, got.reason.code) == ("cancelled", "unreadable")


def plant(bench, bad: str) -> None:
    with closing(sqlite3.connect(bench.directory / "jobd.sqlite3")) as connection, connection:
        connection.execute(bad)
    connection.close()
