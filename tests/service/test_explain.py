"""`job_explain`: the right code, its numbers, and the cheapest change. Each answer is written out here whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.service.rivals import MOST_COUNTED
from broker.wire.jobs import Ahead
from broker.wire.machines import Cpus, Facts, Gpu, GpuHealth, GpuProcess, GpuState, Ram
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Outcome, WorkerUpdate
from support.tokens import tokens

MOST_TOKENS = 400
Answer = dict[str, Any]


def card(index: int = 0, foreign_gb: int = 0, total_gb: int = 24) -> Gpu:
    used = [GpuProcess(pid=9, mb=foreign_gb * 1024, user="ada", name="blender")] if foreign_gb else []
    free = (total_gb - foreign_gb) * 1024 - 400
    known = {"uuid": f"GPU-{index}", "index": index, "total_mb": total_gb * 1024, "free_mb": free, "driver_mb": 400}
    return Gpu.model_validate({**known, "health": GpuHealth.OK, "processes": used})


async def machine(bench, name: str, *gpus: Gpu, **fields: object):
    worker = await bench.registered(name, **{"platform": "linux-x86_64", **fields})
    ram = Ram(total=64, available=60)
    said = Facts(number=1, cpus=Cpus(logical=4, usable=4), ram_gb=ram, gpu_state=GpuState.OK, gpus=list(gpus))
    await worker.report(facts=said)
    return worker


async def no_worker(bench) -> int:
    return await bench.submit()


async def all_offline(bench) -> int:
    await machine(bench, "anna")
    await bench.sweep(after_s=61)
    return await bench.submit()


async def tag_missing(bench) -> int:
    await machine(bench, "anna")
    return await bench.submit(needs=["matlab"])


async def pinned_to_nobody(bench) -> int:
    await machine(bench, "anna")
    return await bench.submit(worker="berta")


async def wrong_architecture(bench) -> int:
    await machine(bench, "anna")
    return await bench.submit(arch="arm64")


async def too_little_vram_everywhere(bench) -> int:
    await machine(bench, "anna", card())
    await machine(bench, "berta", card(1, total_gb=16))
    return await bench.submit(vram_gb=40)


async def vram_taken_by_jobs(bench) -> int:
    worker = await machine(bench, "anna", card())
    await bench.submit(vram_gb=20)
    await worker.running()
    return await bench.submit(vram_gb=10)


async def vram_taken_by_others(bench) -> int:
    await machine(bench, "anna", card(foreign_gb=18))
    return await bench.submit(vram_gb=10)


async def two_gpus_never_on_one_host(bench) -> int:
    await machine(bench, "anna", card())
    await machine(bench, "berta", card(1))
    return await bench.submit(gpus=2)


async def ram_short_by_a_little(bench) -> int:
    worker = await machine(bench, "anna")
    await bench.submit(ram_gb=40)
    await worker.running()
    return await bench.submit(ram_gb=25)


async def directory_missing_on_all(bench) -> int:
    job = await bench.submit(cwd="/data")
    for name in ("anna", "berta"):
        worker = await machine(bench, name)
        said = f"cwd /data does not exist on {name}"
        await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="cwd_missing", reason=said)
    await bench.sweep()
    return job


async def waits_for_a_parent(bench) -> int:
    await machine(bench, "anna")
    return await bench.submit(depends_on=[await bench.submit()])


async def quota_of_its_project(bench) -> int:
    worker = await machine(bench, "anna")
    await bench.submit(project="small")
    await worker.running()
    return await bench.submit(project="small")


async def array_throttle(bench) -> int:
    worker = await machine(bench, "anna")
    first = await bench.submit(count=3, max_parallel=1)
    await worker.running()
    return first + 1


async def held_back_for_a_larger_job(bench) -> int:
    worker = await machine(bench, "anna", card(0), card(1))
    await bench.submit(gpus=1)
    await worker.running()
    await bench.submit(gpus=2)
    job = await bench.submit(gpus=1)
    await worker.poll()
    return job


async def waits_for_two_gpus_that_are_kept(bench) -> int:
    return await held_back_for_a_larger_job(bench) - 1


SITUATIONS: dict[Any, Answer] = {
    array_throttle: {
        "waiting": {
            "code": "array_throttle",
            "message": "array 1 may run 1 member at once: so many run",
            "need": 1.0,
            "have": 0.0,
        },
        "placement": [{"worker": "anna", "fits": True}],
        "basis": "when another member of its array ends is not known",
        "suggestion": "raise max_parallel of array 1, or wait until a member that runs has ended",
    },
    quota_of_its_project: {
        "waiting": {
            "code": "quota",
            "message": "project small may have 1 job that runs: it has 1, and this needs 1",
            "need": 1.0,
            "have": 0.0,
        },
        "placement": [{"worker": "anna", "fits": True}],
        "basis": "when its quota lets it start is not known",
        "suggestion": "wait until another job of the project has ended, or have its quota raised",
    },
    held_back_for_a_larger_job: {
        "waiting": {"code": "reservation", "message": "anna is kept for job 2, which waits for the end of 1.1"},
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {"code": "reservation", "message": "anna is kept for job 2, which waits for the end of 1.1"}
                ],
            }
        ],
        "ahead": {"jobs": 1, "because": "1 submitted before it"},
        "basis": "it starts after the job for which room is kept, and when that starts is not known",
        "suggestion": "wait: that job comes first; a max_wall_s that ends before it starts lets this one pass",
    },
    waits_for_two_gpus_that_are_kept: {
        "waiting": {
            "code": "gpus_busy",
            "message": "needs 2 GPUs of its own, anna has 1 free now: GPU 0 is 1.1's alone; GPU 1: 23.1 of 24 GiB free; anna is kept for it until the end of 1.1",
            "need": 2.0,
            "have": 1.0,
        },
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {
                        "code": "gpus_busy",
                        "message": "needs 2 GPUs of its own, anna has 1 free now: GPU 0 is 1.1's alone; GPU 1: 23.1 of 24 GiB free",
                        "need": 2.0,
                        "have": 1.0,
                    }
                ],
            }
        ],
        "basis": "too little is known of how long what is in its way runs: 1.1",
        "suggestion": "wait until the devices of anna are free, or free them, or ask for gpus=1",
    },
    no_worker: {
        "waiting": {
            "code": "no_worker",
            "message": "no worker has registered yet; one just started takes a second or two",
        },
        "placement": [],
        "suggestion": "start a worker: job up on this machine, or job worker --join URL on another",
    },
    all_offline: {
        "waiting": {"code": "workers_offline", "message": "not online: anna"},
        "placement": [
            {"worker": "anna", "fits": False, "reasons": [{"code": "offline", "message": "anna is not online"}]}
        ],
        "suggestion": "bring anna back: start its worker again",
    },
    tag_missing: {
        "waiting": {"code": "no_worker_fits", "message": "no worker fits: anna lacks matlab"},
        "placement": [{"worker": "anna", "fits": False, "reasons": [{"code": "tags", "message": "anna lacks matlab"}]}],
        "suggestion": "leave the tags out, or give them: job workers update anna --tags …",
    },
    pinned_to_nobody: {
        "waiting": {"code": "no_worker_fits", "message": "no worker fits: the job is pinned to berta"},
        "placement": [
            {"worker": "anna", "fits": False, "reasons": [{"code": "worker", "message": "the job is pinned to berta"}]}
        ],
        "suggestion": "no worker is called berta: leave worker out, or start one with JOBD_WORKER_NAME=berta",
    },
    wrong_architecture: {
        "waiting": {"code": "no_worker_fits", "message": "no worker fits: needs arm64, anna has x86_64"},
        "placement": [
            {"worker": "anna", "fits": False, "reasons": [{"code": "arch", "message": "needs arm64, anna has x86_64"}]}
        ],
        "suggestion": "leave arch out, or start a worker on such a machine",
    },
    too_little_vram_everywhere: {
        "waiting": {
            "code": "no_worker_fits",
            "message": "no worker fits: needs 1 GPU with 40 GiB; the largest has 23.1 for jobs on anna; needs 1 GPU with 40 GiB; the largest has 15.1 for jobs on berta",
        },
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {
                        "code": "vram",
                        "message": "needs 1 GPU with 40 GiB; the largest has 23.1 for jobs on anna",
                        "need": 40.0,
                        "have": 23.1,
                    }
                ],
            },
            {
                "worker": "berta",
                "fits": False,
                "reasons": [
                    {
                        "code": "vram",
                        "message": "needs 1 GPU with 40 GiB; the largest has 15.1 for jobs on berta",
                        "need": 40.0,
                        "have": 15.1,
                    }
                ],
            },
        ],
        "suggestion": "ask for vram_gb=23.1",
    },
    vram_taken_by_jobs: {
        "waiting": {
            "code": "gpus_busy",
            "message": "needs 1 GPU with 10 GiB, anna has none free now: GPU 0: 3.1 of 24 GiB free, 20 reserved by 1.1",
            "need": 10.0,
            "have": 3.1,
        },
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {
                        "code": "gpus_busy",
                        "message": "needs 1 GPU with 10 GiB, anna has none free now: GPU 0: 3.1 of 24 GiB free, 20 reserved by 1.1",
                        "need": 10.0,
                        "have": 3.1,
                    }
                ],
            }
        ],
        "basis": "too little is known of how long what is in its way runs: 1.1",
        "suggestion": "wait until the devices of anna are free, or free them, or ask for vram_gb=3.1",
    },
    vram_taken_by_others: {
        "waiting": {
            "code": "gpus_busy",
            "message": "needs 1 GPU with 10 GiB, anna has none free now: GPU 0: 5.1 of 24 GiB free, 18 used by others: blender (ada, pid 9)",
            "need": 10.0,
            "have": 5.1,
        },
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {
                        "code": "gpus_busy",
                        "message": "needs 1 GPU with 10 GiB, anna has none free now: GPU 0: 5.1 of 24 GiB free, 18 used by others: blender (ada, pid 9)",
                        "need": 10.0,
                        "have": 5.1,
                    }
                ],
            }
        ],
        "basis": "no end of a job makes room for it: others use what it needs",
        "suggestion": "wait until the devices of anna are free, or free them, or ask for vram_gb=5.1",
    },
    two_gpus_never_on_one_host: {
        "waiting": {
            "code": "no_worker_fits",
            "message": "no worker fits: needs 2 GPUs of its own, anna has 1; needs 2 GPUs of its own, berta has 1",
        },
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {"code": "gpus", "message": "needs 2 GPUs of its own, anna has 1", "need": 2.0, "have": 1.0}
                ],
            },
            {
                "worker": "berta",
                "fits": False,
                "reasons": [
                    {"code": "gpus", "message": "needs 2 GPUs of its own, berta has 1", "need": 2.0, "have": 1.0}
                ],
            },
        ],
        "suggestion": "ask for gpus=1",
    },
    ram_short_by_a_little: {
        "waiting": {
            "code": "ram_busy",
            "message": "needs 25 GiB of RAM, anna has 23.8 neither reserved nor used",
            "need": 25.0,
            "have": 23.0,
        },
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [
                    {
                        "code": "ram_busy",
                        "message": "needs 25 GiB of RAM, anna has 23.8 neither reserved nor used",
                        "need": 25.0,
                        "have": 23.0,
                    }
                ],
            }
        ],
        "basis": "too little is known of how long what is in its way runs: 1.1",
        "suggestion": "wait: anna takes it when a job there ends, or ask for ram_gb=23",
    },
    directory_missing_on_all: {
        "waiting": {"code": "cwd_missing", "message": "cwd /data does not exist on anna (refused by anna, berta)"},
        "placement": [
            {
                "worker": "anna",
                "fits": False,
                "reasons": [{"code": "cwd_missing", "message": "cwd /data does not exist on anna"}],
            },
            {
                "worker": "berta",
                "fits": False,
                "reasons": [{"code": "cwd_missing", "message": "cwd /data does not exist on berta"}],
            },
        ],
        "suggestion": "mend that on anna, or name another cwd",
    },
    waits_for_a_parent: {
        "waiting": {"code": "dependencies", "message": "waits for job 1, which is queued"},
        "basis": "it starts after job 1, and when that ends is not known",
        "suggestion": "it starts after that job; job_explain 1 says why that one waits",
    },
}


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.__name__)
async def test_each_situation_has_its_code_its_numbers_and_the_cheapest_change(
    make_bench, situation: Any, tmp_path: Path
) -> None:
    bench = await make_bench(projects={"small": {"quota": {"running": 1, "when_over": "hold"}}})
    job = await situation(bench)

    answer = (await bench.client.job_explain(job)).model_dump(mode="json", exclude_none=True)

    assert answer == {"id": job, "state": "queued", **SITUATIONS[situation]}
    assert tokens(json.dumps(answer), tmp_path) < MOST_TOKENS


async def test_all_that_is_short_is_said_and_the_nearest_worker_comes_first(bench) -> None:
    await machine(bench, "anna", card(), slots=1)
    await machine(bench, "berta", slots=8)
    job = await bench.submit(cpus=2, vram_gb=40, ram_gb=100, needs=["matlab"])

    found = (await bench.client.job_explain(job)).placement

    assert [(one.worker, [reason.code for reason in one.reasons or ()]) for one in found or ()] == [
        ("berta", ["tags", "gpus", "ram"]),
        ("anna", ["tags", "cpus", "vram", "ram"]),
    ]


async def test_what_stands_before_it_is_counted(bench) -> None:
    await machine(bench, "anna", slots=1)
    jobs = [await bench.submit() for _ in range(3)]
    await bench.submit(project="other", priority=50)
    last, first = await bench.submit(), await bench.submit(priority=9)

    assert (await bench.client.job_explain(last)).ahead.jobs == 5
    assert (await bench.client.job_explain(first)).ahead == Ahead(jobs=1, because="1 of a higher priority")
    ready = await bench.client.job_explain(jobs[0])
    assert [(one.worker, one.fits) for one in ready.placement or ()] == [("anna", True)]
    assert ready.suggestion == "nothing: anna takes it in its turn"


async def test_what_needs_other_things_stands_before_it_too_if_a_worker_could_take_both(bench) -> None:
    await machine(bench, "anna", card(), slots=1)
    await machine(bench, "berta", slots=1, tags=["matlab"])
    await bench.submit(vram_gb=10)
    await bench.submit(cpus=0.5, priority=1)
    await bench.submit(needs=["matlab"])
    job = await bench.submit(gpus=1)

    assert (await bench.client.job_explain(job)).ahead == Ahead(
        jobs=2, because="1 of a higher priority, 1 submitted before it"
    )


async def test_of_a_project_that_was_first_only_those_in_turn_stand_before_it(bench) -> None:
    await machine(bench, "anna", slots=1)
    await bench.submit(count=50, project="other")
    jobs = [await bench.submit() for _ in range(3)]

    found = [(await bench.client.job_explain(job)).ahead for job in jobs]

    assert [ahead.jobs for ahead in found] == [1, 3, 5]
    assert found[-1].because == "2 submitted before it, 3 of other projects in turn"
    worker = await bench.registered("berta", slots=4)
    assert jobs[1] in [delivery.job for delivery in (await worker.poll()).deliveries]


async def test_what_a_quota_holds_stands_before_nobody_else(make_bench) -> None:
    bench = await make_bench(projects={"small": {"priority": 50, "quota": {"running": 1, "when_over": "hold"}}})
    worker = await machine(bench, "anna", slots=1)
    await bench.submit(project="small")
    await worker.running()
    held = [await bench.submit(project="small") for _ in range(2)]
    job = await bench.submit()

    assert (await bench.client.job_explain(job)).ahead is None
    assert (await bench.client.job_explain(held[1])).ahead.jobs == 1


async def test_what_everybody_refused_stands_before_nobody(bench) -> None:
    worker = await machine(bench, "anna", slots=1)
    await bench.submit(cwd="/data", count=3, priority=5)
    said = "cwd /data does not exist on anna"
    await worker.finish(await worker.one(), Outcome.REFUSED, reason_code="cwd_missing", reason=said)
    await bench.sweep()
    job = await bench.submit()

    assert (await bench.client.job_explain(job)).ahead is None


async def test_counting_ends_somewhere_and_that_is_said(bench) -> None:
    await machine(bench, "anna", slots=1)
    await bench.submit(count=MOST_COUNTED)
    found = (await bench.client.job_explain(await bench.submit())).ahead

    assert (found.jobs, found.at_least) == (MOST_COUNTED, True)


async def test_a_job_that_is_not_queued_says_where_it_is_and_why(bench) -> None:
    worker = await machine(bench, "anna")
    job = await bench.submit()
    await worker.finish(await worker.running(), exit_code=3)

    found = await bench.client.job_explain(job)

    assert (found.state, found.reason.code, found.placement) == ("failed", "exit_code", None)
    with pytest.raises(Refused) as refused:
        await bench.client.job_explain(99)
    assert refused.value.code is ProblemCode.UNKNOWN_JOB


@pytest.mark.parametrize(
    ("change", "said"), [({"cordon": True}, "job workers resume anna"), ({"drain": True}, "job workers resume anna")]
)
async def test_a_worker_that_an_operator_closed_is_to_be_resumed(bench, change: dict[str, bool], said: str) -> None:
    await machine(bench, "anna")
    await bench.client.worker_update("anna", WorkerUpdate(**change))
    assert (await bench.client.job_explain(await bench.submit())).suggestion == said
