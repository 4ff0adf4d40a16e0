"""`job_preview`: what a submit would say, under the load of now, and nothing of it is kept."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker.state import DATABASE_NAME
from broker.wire.jobs import JobSpec
from service.test_making_room import POLICY, after, stopping
from service.test_reservations import started
from support.tokens import tokens

MOST_TOKENS = 700


def everything(directory: Path) -> dict[str, list[tuple]]:
    """All rows of all tables."""
    database = directory / DATABASE_NAME
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}


@pytest.mark.guarantee("G35")
async def test_it_writes_nothing(bench) -> None:
    await bench.registered(slots=1)
    await bench.submit(cpus=1)
    before = everything(bench.directory)

    assert (await bench.client.job_preview({"command": "new.py", "needs": ["never_seen"], "count": 50})).valid
    assert not (await bench.client.job_preview({"command": "new.py", "gpus": -1})).valid

    assert everything(bench.directory) == before
    assert before["jobs"]


async def test_all_that_is_wrong_is_said_at_once_and_is_no_refusal(bench) -> None:
    found = await bench.client.job_preview({"comand": "true", "gpus": -1, "count": "many"})
    assert not found.valid
    assert [(error.code, error.field) for error in found.errors] == [
        ("invalid_spec", "gpus"),
        ("invalid_spec", "count"),
        ("invalid_spec", "comand"),
    ]
    assert found.errors[2].hint == "did you mean command?"
    assert (found.spec, found.placement) == (None, None)


async def test_what_a_submit_would_refuse_is_an_error_and_the_rest_is_told_all_the_same(bench) -> None:
    worker = await bench.registered()
    parent = await bench.submit()
    await worker.finish(await worker.running(), exit_code=1)
    found = await bench.client.job_preview(
        {"command": "true", "depends_on": [parent], "env": {"CUDA_VISIBLE_DEVICES": "0"}}
    )
    assert not found.valid
    assert [(error.code, error.field) for error in found.errors] == [
        ("invalid_spec", "env"),
        ("dependency_unsatisfiable", "depends_on"),
    ]
    assert [one.worker for one in found.placement] == ["w1"]
    unknown = await bench.client.job_preview({"command": "true", "depends_on": [99]})
    assert [error.code for error in unknown.errors] == ["unknown_job"]


async def test_values_come_with_whose_word_they_are(make_bench) -> None:
    bench = await make_bench(projects={"vision": {"checkpoint_grace_s": 7}})
    found = await bench.client.job_preview({"command": "true", "project": "vision", "cpus": 2})
    assert (found.spec["checkpoint_grace_s"], found.sources["checkpoint_grace_s"]) == (7, "project")
    assert (found.spec["cpus"], found.sources["cpus"]) == (2, "job")
    assert found.sources["max_wall_s"] == "floor"
    job = await bench.client.job_submit(JobSpec(command="true", project="vision", cpus=2))
    full = await bench.client.job_get(job.id, detail="full")
    assert (full.spec, full.sources) == (found.spec, found.sources)


async def test_workers_are_told_under_the_load_of_now(bench, tmp_path: Path) -> None:
    worker = await bench.registered(slots=2)
    for _ in range(3):
        await bench.submit(command="train.py --lr 1")
        await worker.finish(await worker.running(), duration_s=60)
    free = await bench.client.job_preview({"command": "train.py --lr 2"})
    assert (free.valid, free.start_estimate_s, free.run_estimate_s) == (True, 0, 60)
    assert ([one.fits for one in free.placement], free.waiting, free.suggestion) == ([True], None, None)

    await bench.submit(command="train.py --lr 1", cpus=2)
    await worker.running()
    bench.clock.pass_s(20)
    await bench.submit(command="train.py --lr 1", priority=1)

    busy = await bench.client.job_preview({"command": "train.py --lr 2"})
    reason = busy.placement[0].reasons[0]
    assert (reason.code, reason.need, reason.have) == ("busy", 1, 0)
    assert (busy.waiting.code, busy.ahead.jobs) == ("capacity", 1)
    assert (busy.start_estimate_s, busy.run_estimate_s) == (40, 60)
    assert busy.basis == (
        "start: if 1 that run and 1 ahead of it take as long as such jobs did before; "
        "run: median of 3 runs of this command with other values"
    )
    assert busy.suggestion == "wait: w1 takes it when a job there ends"
    assert tokens(json.dumps(busy.model_dump(mode="json", exclude_none=True)), tmp_path) < MOST_TOKENS


async def test_a_submit_says_the_same(bench) -> None:
    asked = {"command": "python -c 'import torch'", "needs": ["matlab"]}
    await bench.registered()
    found = await bench.client.job_preview(asked)
    said = await bench.client.job_submit(JobSpec.model_validate(asked))
    assert (found.waiting, found.warnings) == (said.waiting, said.warnings)
    assert found.suggestion == (await bench.client.job_explain(said.id)).suggestion


@pytest.mark.parametrize(("when_over", "valid"), [("deny", False), ("hold", True)])
async def test_what_a_quota_says_is_told_as_a_submit_would_be(make_bench, when_over: str, valid: bool) -> None:
    bench = await make_bench(projects={"small": {"quota": {"running": 1, "when_over": when_over}}})
    worker = await bench.registered()
    await bench.submit(project="small")
    await worker.running()

    found = await bench.client.job_preview({"command": "true", "project": "small"})

    assert found.valid is valid
    assert [error.code for error in found.errors or []] == ([] if valid else ["quota_exceeded"])
    assert found.waiting.code == "quota"
    assert "quota" in found.suggestion
    assert found.start_estimate_s is None


async def test_it_names_the_jobs_that_the_policy_would_stop_and_stops_none(make_bench) -> None:
    bench = await make_bench(preemption=POLICY)
    worker = await bench.registered("anna", slots=2)
    dear, cheap = [await bench.submit(preemptible=True, priority=priority) for priority in (5, 0)]
    await started(worker)
    await after(bench, worker, 100)
    urgent = {"command": "urgent", "priority": 30}
    before = everything(bench.directory)

    one = await bench.client.job_preview(urgent)
    both = await bench.client.job_preview({**urgent, "cpus": 2})
    equal = await bench.client.job_preview({"command": "patient"})

    assert [(job.id, job.worker, job.priority) for job in one.would_preempt] == [(cheap, "anna", 0)]
    assert {job.id for job in both.would_preempt} == {dear, cheap}
    assert equal.would_preempt is None
    assert everything(bench.directory) == before

    await bench.submit(priority=30)
    assert (await bench.client.job_preview(urgent)).would_preempt is None  # one of its kind comes first
    await bench.sweep()
    assert await stopping(bench, dear, cheap) == [False, True]
