"""What commands used, by the route and in a preview; kept with the ends of jobs."""

from __future__ import annotations

import pytest

from broker.core.estimates import MOST_KEPT
from broker.service import stats
from broker.wire.jobs import Peak
from broker.wire.machines import Cpus, Facts, GpuState, Ram
from broker.wire.problems import Refused


async def roomy(bench):
    facts = Facts(
        number=1, cpus=Cpus(logical=8, usable=8), ram_gb=Ram(total=256, available=256), gpu_state=GpuState.ABSENT
    )
    worker = await bench.registered()
    await worker.report(facts=facts)
    return worker


async def ended(bench, worker, rss_mb: float, command: str = "train.py --lr 1", **final: object) -> int:
    job = await bench.submit(command=command, ram_gb=64)
    peak = Peak(rss_mb=rss_mb, cpu_s=30)
    await worker.finish(await worker.running(), duration_s=60.0, peak=peak, **final)
    return job


async def asked(bench, job: int | None = None, fingerprint: str | None = None):
    return (await stats.stats(bench.broker, job, fingerprint, 20)).commands


@pytest.mark.guarantee("G47")
async def test_what_was_used_is_told_beside_what_was_asked(bench) -> None:
    worker = await roomy(bench)
    for rss_mb in (9000, 11264, 9000):
        job = await ended(bench, worker, rss_mb)
    (one,) = await asked(bench, job)
    assert (one.runs, one.failed, one.rss_gb, one.asked.ram_gb) == (3, 0, 11, 64)
    assert (one.median_run_s, one.worst_run_s, one.cpus, one.job) == (60, 60, 0.5, job)
    assert one.suggestions == ["asks 64 GB, used at most 11 GB in 3 runs: ram_gb 14 would do"]
    assert await asked(bench, fingerprint=one.fingerprint) == [one]
    (listed,) = await asked(bench)
    assert (listed.fingerprint, listed.command) == (one.fingerprint[:16], "train.py --lr 1")


@pytest.mark.guarantee("G47")
async def test_a_preview_says_it_and_a_submit_is_not_changed_by_it(bench) -> None:
    worker = await roomy(bench)
    for value in range(3):
        await ended(bench, worker, 2048, f"train.py --lr {value}")
    said = "asks 64 GB, used at most 2 GB in 3 runs: ram_gb 3 would do"
    assert said in (await bench.client.job_preview({"command": "train.py --lr 9", "ram_gb": 64})).warnings
    assert not (await bench.client.job_preview({"command": "train.py --lr 9", "ram_gb": 4})).warnings
    made = await bench.client.job_get(await bench.submit(command="train.py --lr 9", ram_gb=64), detail="full")
    assert made.spec["ram_gb"] == 64


async def test_too_few_runs_are_said_and_suggest_nothing(bench) -> None:
    worker = await roomy(bench)
    job = await ended(bench, worker, 100)
    await ended(bench, worker, 100, exit_code=1)
    (one,) = await asked(bench, job)
    assert (one.runs, one.failed, one.suggestions) == (1, 1, None)
    assert one.note == "1 runs were completed: 3 are needed for a suggestion"


async def test_no_more_ends_are_kept_than_estimates_keep(bench) -> None:
    worker = await roomy(bench)
    for number in range(MOST_KEPT + 2):
        job = await ended(bench, worker, 5000 if number < 2 else 100)
    (one,) = await asked(bench, job)
    assert (one.runs, one.rss_gb) == (MOST_KEPT, 0.0977)


async def test_what_names_nothing_or_two_things_is_refused(bench) -> None:
    for words, field in (((99, None), "job"), ((None, "nonsense"), "fingerprint"), ((1, "a" * 16), "job")):
        with pytest.raises(Refused) as refused:
            await asked(bench, *words)
        assert refused.value.field == field
    (unknown,) = await asked(bench, fingerprint="a" * 16)
    assert (unknown.runs, unknown.rss_gb, unknown.command) == (0, None, None)
