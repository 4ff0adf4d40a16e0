"""Jobs by the clock: one job for each instant, whatever happens, or an event that says why there is none."""

from __future__ import annotations

import asyncio

import pytest

from broker.service import schedules
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.schedules import Missed, Overlap, Schedule, ScheduleRequest

DAY_S = 86_400


async def put(bench, name: str = "nightly", **fields: object) -> Schedule:
    said = {"cron": "0 3 * * *", "job": {"command": "true"}, **fields}
    return await bench.client.schedule_put(name, ScheduleRequest.model_validate(said))


async def until_next(bench, name: str = "nightly", late_s: float = 1) -> None:
    """The clock moves to the next instant, and the broker looks."""
    next_at = (await bench.client.schedule_get(name)).next_at
    assert next_at is not None
    bench.clock.pass_s(next_at.timestamp() - bench.clock.wall_ms() / 1000 + late_s)
    await schedules.fire(bench.broker)


async def jobs(bench) -> int:
    return (await bench.client.job_list()).total


async def skipped(bench) -> list[str]:
    events = (await bench.client.job_events(type=EventType.SCHEDULE_SKIPPED)).events
    return [(event.data or {})["reason"] for event in events]


@pytest.mark.guarantee("G49")
async def test_each_instant_is_one_ordinary_job_that_names_its_schedule(bench) -> None:
    made = await put(bench)
    await schedules.fire(bench.broker)
    assert await jobs(bench) == 0

    await until_next(bench)
    await schedules.fire(bench.broker)
    after = await bench.client.schedule_get("nightly")
    assert await jobs(bench) == 1
    assert after.last_at == made.next_at
    assert after.next_at is not None
    assert made.next_at is not None
    assert (after.next_at - made.next_at).total_seconds() == DAY_S
    job = await bench.client.job_get(after.last_job or 0, detail="full")
    assert (job.spec or {})["labels"] == {"schedule": "nightly"}


async def test_its_jobs_have_the_profile_and_the_project_that_a_submit_would_have(make_bench, tmp_path) -> None:
    settings = {
        "profiles": {"quick": {"max_wall_s": 60}},
        "projects": {"vision": {"roots": [str(tmp_path)], "priority": 3}},
    }
    bench = await make_bench(**settings)
    await put(bench, job={"command": "true", "profile": "quick", "cwd": str(tmp_path)})

    await until_next(bench)

    job = await bench.client.job_get((await bench.client.schedule_get("nightly")).last_job or 0, detail="full")
    assert (job.project, (job.spec or {})["max_wall_s"], (job.sources or {})["max_wall_s"]) == (
        "vision",
        60,
        "profile quick",
    )
    with pytest.raises(Refused) as caught:
        await put(bench, job={"command": "true", "profile": "quik"})
    assert (caught.value.code, "quick" in f"{caught.value.detail} {caught.value.hint}") == (
        ProblemCode.INVALID_SPEC,
        True,
    )


@pytest.mark.guarantee("G49")
async def test_looked_at_twice_at_once_it_is_submitted_once(bench) -> None:
    await put(bench, overlap="allow")
    next_at = (await bench.client.schedule_get("nightly")).next_at
    assert next_at is not None
    bench.clock.pass_s(next_at.timestamp() - bench.clock.wall_ms() / 1000)
    await asyncio.gather(*(schedules.fire(bench.broker) for _ in range(5)))
    assert await jobs(bench) == 1


async def test_instants_that_the_broker_missed_are_skipped_and_say_so_or_are_one_job(bench) -> None:
    await put(bench, "skips")
    await put(bench, "catches_up", missed=Missed.RUN_ONCE)
    bench.clock.pass_s(5 * DAY_S)
    await schedules.fire(bench.broker)
    assert await skipped(bench) == ["missed"]
    assert await jobs(bench) == 1
    assert (await bench.client.schedule_get("catches_up")).last_job is not None
    await schedules.fire(bench.broker)
    assert await jobs(bench) == 1


async def test_while_the_last_one_runs_the_next_is_skipped_unless_that_is_allowed(bench) -> None:
    await put(bench, job={"command": "true", "count": 2})
    await until_next(bench)
    first = (await bench.client.schedule_get("nightly")).last_job or 0
    await bench.client.job_cancel(CancelRequest(job=[first]))
    await until_next(bench)
    assert await skipped(bench) == ["overlap"]
    await put(bench, job={"command": "true", "count": 2}, overlap=Overlap.ALLOW)
    await until_next(bench)
    assert (await bench.client.job_list()).total == 4
    await bench.client.job_cancel(CancelRequest(project="default", force=True))
    await put(bench)
    await until_next(bench)
    assert await skipped(bench) == ["overlap"]


async def test_an_instant_whose_job_is_refused_says_why_and_the_next_one_comes(bench) -> None:
    parent = await bench.submit()
    await put(bench, job={"command": "true", "depends_on": [parent]})
    await bench.client.job_cancel(CancelRequest(job=[parent]))
    await until_next(bench)
    await until_next(bench)
    assert await skipped(bench) == ["dependency_unsatisfiable"] * 2
    assert await jobs(bench) == 1


async def test_a_quota_that_is_full_is_a_reason_too(make_bench) -> None:
    bench = await make_bench(projects={"default": {"quota": {"queued": 1}}})
    await bench.submit()
    await put(bench)
    await until_next(bench)
    assert await skipped(bench) == ["quota"]


async def test_a_paused_one_rests_and_what_passes_is_not_missed(bench) -> None:
    await put(bench, missed=Missed.RUN_ONCE)
    paused = await bench.client.schedule_pause("nightly")
    assert (paused.paused, paused.next_at) == (True, None)
    bench.clock.pass_s(3 * DAY_S)
    await schedules.fire(bench.broker)
    await bench.client.schedule_resume("nightly")
    await schedules.fire(bench.broker)
    assert await jobs(bench) == 0
    await until_next(bench)
    assert await jobs(bench) == 1


async def test_one_that_is_put_again_unchanged_in_time_passes_over_nothing(bench) -> None:
    await put(bench)
    next_at = (await bench.client.schedule_get("nightly")).next_at
    assert next_at is not None
    bench.clock.pass_s(next_at.timestamp() - bench.clock.wall_ms() / 1000 + 1)
    await put(bench, job={"command": "false"})
    await schedules.fire(bench.broker)
    assert await jobs(bench) == 1


async def test_a_removed_one_runs_no_more_and_its_jobs_stay(bench) -> None:
    await put(bench)
    await until_next(bench)
    assert (await bench.client.schedule_remove("nightly")).schedules == []
    bench.clock.pass_s(DAY_S)
    await schedules.fire(bench.broker)
    assert await jobs(bench) == 1
    for call in (bench.client.schedule_get, bench.client.schedule_remove, bench.client.schedule_pause):
        with pytest.raises(Refused) as caught:
            await call("nightly")
        assert caught.value.code is ProblemCode.UNKNOWN_SCHEDULE


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"tz": "Mars/Base"}, "tz"),
        ({"job": {"command": "true", "labels": {"schedule": "x"}}}, "job.labels"),
        ({"job": {"command": "true", "snapshot": "copy"}}, "snapshot"),
        ({"job": {"command": "true", "snapshot": "copy:" + "0" * 64}}, "job.snapshot"),
        ({"job": {"command": "true", "env": {"CUDA_VISIBLE_DEVICES": "0"}}}, "env"),
    ],
)
async def test_what_could_not_run_is_refused_at_once(bench, fields: dict[str, object], field: str) -> None:
    with pytest.raises(Refused) as caught:
        await put(bench, **fields)
    assert (caught.value.code, caught.value.field) == (ProblemCode.INVALID_SPEC, field)
    assert (await bench.client.schedule_list()).schedules == []


async def test_values_of_its_environment_are_given_to_its_jobs_and_shown_to_nobody(bench) -> None:
    await put(bench, job=JobSpec(command="true", env={"KEY": "secret"}).model_dump(exclude_unset=True))
    assert "secret" not in (await bench.client.schedule_list()).model_dump_json()
    worker = await bench.registered()
    await until_next(bench)
    assert (await worker.running()).spec.env == {"KEY": "secret"}
