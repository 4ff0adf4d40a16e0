"""Time limits as the broker sees them: what a supervisor reports, its own backstop, and what is decided at the submit."""

from __future__ import annotations

import json

import pytest

from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest
from broker.wire.projects import Project
from broker.wire.workers import Outcome, Phase, VerdictWord

REACHED = {"code": "max_wall", "limit_s": 100, "seen_s": 100.5}
BEYOND_S = 100 + 7 + 30  # the limit, the grace, the margin


async def running(bench, **fields: object):
    job = await bench.submit(**{"max_wall_s": 100, "checkpoint_grace_s": 7, **fields})
    worker = await bench.registered()
    return job, worker, await worker.running()


async def later(bench, worker, seconds: float) -> None:
    """Time in which the worker is heard."""
    while seconds > 0:
        await bench.sweep(after_s=min(20, seconds))
        await worker.report()
        seconds -= 20


@pytest.mark.guarantee("G25")
async def test_a_job_that_was_stopped_by_a_limit_and_exits_0_has_failed_by_that_limit(bench) -> None:
    job, worker, delivery = await running(bench)

    assert await worker.finish(delivery, Outcome.LIMIT, exit_code=0, limit=REACHED) is VerdictWord.ACCEPTED

    got = await bench.client.job_get(job, detail="full")
    assert (got.state.value, got.exit_code) == ("failed", 0)
    for reason in (got.reason, got.assignments[0].reason, (await bench.client.job_wait([job])).jobs[0].reason):
        assert (reason.code, reason.limit_s, reason.seen_s) == ("max_wall", 100, 100.5)
        assert "max_wall_s=100" in reason.message
    failed = (await bench.client.job_events(job=job, type=EventType.JOB_FAILED)).events[0].data
    assert (failed["reason_code"], failed["limit_s"], failed["seen_s"]) == ("max_wall", 100, 100.5)


@pytest.mark.guarantee("G25")
async def test_the_broker_asks_for_the_stop_itself_when_the_limit_the_grace_and_the_margin_are_over(bench) -> None:
    job, worker, delivery = await running(bench)

    await later(bench, worker, BEYOND_S - 1)
    assert (await worker.report()).stops == []
    await later(bench, worker, 2)
    [stop] = (await worker.report()).stops
    worker.hold(delivery, Phase.RUNNING, stopping=stop.id)
    between = await bench.client.job_get(job)
    await later(bench, worker, 40)  # once is enough
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0, stop=stop.id)

    assert (between.state.value, between.stopping.by) == ("running", "jobd")
    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code, got.reason.limit_s) == ("failed", "max_wall", 100)
    assert got.reason.seen_s >= 100
    assert (await bench.kinds(job)).count("job_stop_requested") == 1


@pytest.mark.guarantee("G25")
async def test_a_wall_limit_that_is_over_takes_the_place_of_a_preemption_that_does_not_end(bench) -> None:
    job, worker, delivery = await running(bench, preemptible=True)
    await bench.client.job_preempt(job)
    [preempt] = (await worker.report()).stops
    worker.hold(delivery, Phase.RUNNING, stopping=preempt.id)

    await later(bench, worker, BEYOND_S + 1)
    [wall] = (await worker.report()).stops
    await worker.finish(delivery, Outcome.STOPPED, exit_code=0, stop=wall.id)

    assert wall.id != preempt.id
    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code) == ("failed", "max_wall")


async def test_time_in_which_the_broker_was_away_is_not_held_against_a_job(bench) -> None:
    _, worker, _ = await running(bench)

    bench.clock.wall += 10 * 3600 * 1000  # somebody sets the clock
    await later(bench, worker, 20)
    assert (await worker.report()).stops == []
    bench.clock.wall -= 20 * 3600 * 1000
    await later(bench, worker, 20)
    assert (await worker.report()).stops == []


async def test_a_job_without_a_wall_limit_is_never_overdue(bench) -> None:
    job, worker, _ = await running(bench, max_wall_s="none")

    await bench.sweep(after_s=7000)
    await worker.report()
    await later(bench, worker, 60)

    assert (await worker.report()).stops == []
    assert (await bench.client.job_get(job, detail="full")).spec["max_wall_s"] == "none"


@pytest.mark.guarantee("G25")
async def test_a_cancel_replaces_the_stop_of_a_limit_and_not_the_other_way_round(bench) -> None:
    job, worker, delivery = await running(bench)
    await later(bench, worker, BEYOND_S + 1)
    [wall] = (await worker.report()).stops

    await bench.client.job_cancel(CancelRequest(job=[job], reason="mine"))
    [cancel] = (await worker.report()).stops
    await later(bench, worker, 60)
    [still] = (await worker.report()).stops
    await worker.finish(delivery, Outcome.LIMIT, exit_code=0, limit=REACHED)

    assert wall.id != cancel.id == still.id
    assert (await bench.client.job_get(job)).state.value == "cancelled"


async def test_a_cancelled_job_is_not_asked_to_stop_for_its_limit(bench) -> None:
    job, worker, delivery = await running(bench)
    await bench.client.job_cancel(CancelRequest(job=[job]))
    [cancel] = (await worker.report()).stops
    worker.hold(delivery, Phase.RUNNING, stopping=cancel.id)

    await later(bench, worker, BEYOND_S + 60)

    assert (await worker.report()).stops == []
    assert (await bench.kinds(job)).count("job_stop_requested") == 1


async def test_a_job_lost_after_its_limit_was_reached_has_failed_by_it_and_does_not_come_back(bench) -> None:
    job, worker, delivery = await running(bench)
    await later(bench, worker, BEYOND_S + 1)
    await worker.report()
    await bench.sweep(after_s=61)

    got = await bench.client.job_get(job, detail="full")
    assert (got.state.value, got.reason.code, got.assignments[0].state.value) == ("failed", "max_wall", "expired")
    assert "nothing was heard of w1" in got.reason.message
    assert (await worker.report()).verdicts[0].verdict is VerdictWord.STALE_ASSIGNMENT
    assert await worker.finish(delivery, exit_code=0) is VerdictWord.STALE_ASSIGNMENT
    assert await bench.state(job) == "failed"


async def test_a_limit_that_is_reported_after_a_loss_fails_the_job_and_nothing_runs_again(bench) -> None:
    job, worker, delivery = await running(bench)
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "queued"

    assert await worker.finish(delivery, Outcome.LIMIT, exit_code=0, limit=REACHED) is VerdictWord.ACCEPTED

    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code) == ("failed", "max_wall")


# ---- the floor


async def full(bench, **fields: object):
    return await bench.client.job_get(await bench.submit(**fields), detail="full")


@pytest.mark.guarantee("G25")
@pytest.mark.trial("B72")
async def test_a_project_that_sets_only_a_priority_keeps_both_limits_of_the_floor(make_bench) -> None:
    bench = await make_bench(projects={"b": Project(priority=5), "c": Project(max_wall_s=60)})

    absent, only_priority, one = await full(bench), await full(bench, project="b"), await full(bench, project="c")

    for got in (absent, only_priority):
        assert (got.spec["idle_timeout_s"], got.spec["max_wall_s"]) == (86_400, 604_800)
        assert (got.sources["idle_timeout_s"], got.sources["max_wall_s"]) == ("floor", "floor")
    assert (only_priority.spec["priority"], only_priority.sources["priority"]) == (0, "default")
    assert (one.spec["idle_timeout_s"], one.spec["max_wall_s"]) == (86_400, 60)
    assert (one.sources["idle_timeout_s"], one.sources["max_wall_s"]) == ("floor", "project")


@pytest.mark.guarantee("G25")
async def test_what_counts_is_what_the_worker_is_given_and_what_the_broker_itself_goes_by(make_bench) -> None:
    bench = await make_bench(
        projects={
            "_default": Project(checkpoint_grace_s=12, on_worker_lost="orphan"),
            "p": Project(checkpoint_grace_s=4, cpus=2, needs=["big"], max_wall_s=100),
        }
    )
    job = await bench.submit(project="p", max_wall_s="none", needs=[])
    worker = await bench.registered()

    delivery = await worker.running()

    spec = delivery.spec
    assert (spec.checkpoint_grace_s, spec.cpus, spec.needs, spec.max_wall_s) == (4, 2, [], "none")
    assert (await bench.client.worker_list()).workers[0].slots.used == 2
    await bench.client.job_cancel(CancelRequest(job=[job]))
    assert (await worker.report()).stops[0].grace_s == 4
    plain = await bench.submit(depends_on=[job])
    await worker.finish(delivery, Outcome.STOPPED)
    assert (await bench.client.job_get(plain, detail="full")).spec["checkpoint_grace_s"] == 12
    lost = await bench.submit()
    await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(lost) == "orphaned"


async def test_what_was_decided_at_the_submit_stays_when_the_project_changes(make_bench) -> None:
    bench = await make_bench(projects={"p": Project(max_wall_s=60)})
    before = await bench.submit(project="p", count=2)
    row = await bench.broker.store.read(lambda tx: tx.one("spec_of_job", job=before + 1))
    bench.broker.settings.projects["p"] = Project(max_wall_s=5)
    after = await bench.submit(project="p")
    worker = await bench.registered()

    limits = {delivery.job: delivery.spec.max_wall_s for delivery in (await worker.poll()).deliveries}

    assert limits == {before: 60, before + 1: 60, after: 5}
    assert json.loads(row["sources"])["max_wall_s"] == "project"


# ---- a kill that fails


@pytest.mark.trial("B102")
@pytest.mark.guarantee("G13")
async def test_a_kill_that_fails_is_told_and_keeps_its_room_until_the_tree_is_gone(bench) -> None:
    job, worker, delivery = await running(bench, cpus=4)
    await bench.client.job_cancel(CancelRequest(job=[job]))
    [stop] = (await worker.report()).stops
    key = (delivery.job, delivery.attempt)
    worker.hold(delivery, Phase.RUNNING, stopping=stop.id)
    worker.held[key] = worker.held[key].model_copy(update={"kill_failed": "4711:D"})

    for _ in range(3):
        await worker.report()

    got = await bench.client.job_get(job)
    assert (got.state.value, got.stopping.kill_failed) == ("running", "4711:D")
    assert "4711:D" in got.warnings[0]
    other = await bench.submit()
    assert (await worker.poll()).deliveries == []  # no slot is free
    fired = (await bench.client.job_events(job=job, type=EventType.WATCHDOG_FIRED)).events
    assert [event.data["processes"] for event in fired] == ["4711:D"]  # once, however often it is listed
    await worker.finish(delivery, Outcome.STOPPED, signal="SIGKILL", stop=stop.id)
    ended = await bench.client.job_get(job)
    assert (ended.state.value, ended.warnings) == ("cancelled", None)
    assert [delivery.job for delivery in (await worker.poll()).deliveries] == [other]
