"""Progress, results and artifacts, as a worker by hand tells them to the real broker."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest

from broker.wire.jobs import Artifact, Progress
from broker.wire.outcomes import Left
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Delivery, Outcome, VerdictWord
from support.scripted_worker import ScriptedWorker

W = VerdictWord
DAY_S = 86_400
PWRITE = os.pwrite


async def running(bench, **fields: object) -> tuple[int, ScriptedWorker, Delivery]:
    job = await bench.submit(**fields)
    worker = await bench.registered()
    return job, worker, await worker.running()


def saying(worker: ScriptedWorker, delivery: Delivery, progress: Progress) -> None:
    key = (delivery.job, delivery.attempt)
    worker.held[key] = worker.held[key].model_copy(update={"progress": progress})


def a_file(name: str, data: bytes) -> Artifact:
    return Artifact(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


async def put(bench, worker: ScriptedWorker, delivery: Delivery, file: Artifact, data: bytes, offset: int = 0):
    key = worker.id, delivery.job, delivery.attempt, delivery.token, worker.epoch
    return await bench.client.put_artifact(*key, file, offset, data)


async def result(bench, worker: ScriptedWorker, delivery: Delivery, data: bytes):
    key = worker.id, delivery.job, delivery.attempt, delivery.token, worker.epoch
    return await bench.client.put_result(*key, data)


def left(*files: Artifact, **fields: object) -> Left:
    return Left(artifacts=len(files), artifacts_bytes=sum(file.size for file in files), **fields)


# ---- progress


@pytest.mark.guarantee("G44")
async def test_the_last_progress_is_shown_and_no_line_of_it_is_an_event(bench) -> None:
    job, worker, delivery = await running(bench)
    before = await bench.kinds(job)
    for step in range(20):
        saying(worker, delivery, Progress(fraction=step / 20, message=f"step {step}"))
        await worker.report()
        await worker.poll()
    listed = (await bench.client.job_list()).jobs[0]
    assert listed.progress == Progress(fraction=0.95, message="step 19")
    assert await bench.kinds(job) == before

    await worker.finish(delivery, progress={"fraction": 1.0})
    assert (await bench.client.job_get(job)).progress == Progress(fraction=1.0)


async def test_the_next_run_begins_at_nothing(bench) -> None:
    job, worker, delivery = await running(bench)
    saying(worker, delivery, Progress(fraction=0.9))
    await worker.report()
    await result(bench, worker, delivery, b"1")
    await worker.finish(delivery, Outcome.LOST)
    queued = await bench.client.job_get(job)
    assert (queued.state.value, queued.progress, queued.result) == ("queued", None, None)

    await worker.running()
    now = await bench.client.job_get(job, detail="full")
    assert (now.progress, now.result) == (None, None)
    assert [(one.progress, one.result) for one in now.assignments or []] == [(Progress(fraction=0.9), 1), (None, None)]


async def test_a_stale_holder_says_nothing_of_its_progress(bench) -> None:
    job, worker, delivery = await running(bench)
    await bench.sweep(after_s=61)
    other = await bench.registered("w2")
    await other.running()
    saying(worker, delivery, Progress(fraction=0.9))
    await worker.report()
    deliveries = (await bench.client.job_get(job, detail="full")).assignments
    assert [one.progress for one in deliveries] == [None, None]


# ---- results


async def test_a_result_is_the_jobs_as_soon_as_it_has_ended(bench) -> None:
    job, worker, delivery = await running(bench)
    kept = await result(bench, worker, delivery, b'{"loss": 0.25, "best": null}')
    again = await result(bench, worker, delivery, b'{"loss": 1}')
    await worker.finish(delivery)
    view = await bench.client.job_get(job)
    waited = await bench.client.job_wait([job])
    assert (kept.duplicate, again.duplicate) == (False, True)
    assert view.result == {"loss": 0.25, "best": None}
    assert waited.jobs[0].result == view.result


@pytest.mark.trial("B05")
@pytest.mark.guarantee("G44")
async def test_a_stale_workers_result_and_files_are_not_taken(bench) -> None:
    job, worker, old = await running(bench)
    await bench.sweep(after_s=61)
    other = await bench.registered("w2")
    new = await other.running()
    file = a_file("model", b"old")
    for write in (result(bench, worker, old, b'"old"'), put(bench, worker, old, file, b"old")):
        with pytest.raises(Refused) as refused:
            await write
        assert refused.value.code is ProblemCode.STALE_ASSIGNMENT
    forged = new.model_copy(update={"token": "guess"})
    with pytest.raises(Refused):
        await result(bench, other, forged, b'"forged"')
    with pytest.raises(Refused):
        await result(bench, worker, new, b'"anothers"')

    await result(bench, other, new, b'"new"')
    await other.finish(new)
    full = await bench.client.job_get(job, detail="full")
    assert full.result == "new"
    assert [one.result for one in full.assignments or []] == [None, "new"]


async def test_a_lost_holder_waits_with_its_result_until_its_end_is_accepted(bench) -> None:
    job, worker, delivery = await running(bench, on_worker_lost="orphan")
    await bench.sweep(after_s=61)
    with pytest.raises(Refused) as refused:
        await result(bench, worker, delivery, b"7")
    assert refused.value.code is ProblemCode.LEASE_LOST
    assert await worker.finish(delivery) is W.ACCEPTED
    await result(bench, worker, delivery, b"7")
    assert (await bench.client.job_get(job)).result == 7


async def test_what_is_no_json_is_refused_and_a_warning_of_the_worker_is_the_jobs(bench) -> None:
    job, worker, delivery = await running(bench)
    with pytest.raises(Refused) as refused:
        await result(bench, worker, delivery, b"{")
    assert (refused.value.code, refused.value.field) == (ProblemCode.INVALID_REQUEST, "result")
    await worker.finish(delivery, left={"warnings": ["JOBD_RESULT_FILE is not kept:\x1b[31m it is no JSON"]})
    view = await bench.client.job_get(job)
    assert (view.state.value, view.result) == ("completed", None)
    assert view.warnings == ["JOBD_RESULT_FILE is not kept: [31m it is no JSON"]


async def test_a_long_result_is_cut_in_short_answers_with_a_hint_and_whole_in_the_full_one(bench) -> None:
    job, worker, delivery = await running(bench)
    await result(bench, worker, delivery, b'"' + b"x" * 100_000 + b'"')
    await worker.finish(delivery)
    concise = await bench.client.job_get(job)
    ended = (await bench.client.job_wait([job])).jobs[0]
    assert (concise.result, ended.result) == (None, None)
    for cut in (concise.result_cut, ended.result_cut):
        assert cut is not None
        assert len(cut) < 2200
        assert f"job_get job={job} detail=full" in cut
    assert (await bench.client.job_get(job, detail="full")).result == "x" * 100_000


# ---- artifacts


@pytest.mark.guarantee("G45")
async def test_files_come_after_the_end_in_pieces_and_the_job_says_how_many_are_here(bench) -> None:
    job, worker, delivery = await running(bench)
    data = bytes(range(256)) * 10
    model, log = a_file("models/best.bin", data), a_file("log.txt", b"")
    await worker.finish(delivery, left=left(model, log).model_dump())
    assert (await bench.client.job_get(job)).artifacts == "0 of 2"

    assert (await put(bench, worker, delivery, model, data[:1000])).size == 1000
    with pytest.raises(Refused) as gap:
        await put(bench, worker, delivery, model, data[2000:], 2000)
    assert (gap.value.code, gap.value.size) == (ProblemCode.OFFSET_GAP, 1000)
    assert (await put(bench, worker, delivery, model, data[500:2000], 500)).size == 2000
    assert (await put(bench, worker, delivery, model, data[2000:], 2000)).kept
    listed = await bench.client.job_artifacts(job)
    assert (listed.artifacts, listed.expected, listed.complete) == ([model], 2, False)
    assert (await bench.client.job_get(job)).artifacts == "1 of 2"

    assert (await put(bench, worker, delivery, log, b"")).kept
    assert (await put(bench, worker, delivery, model, data[:7])).kept  # a repeat asks for nothing more
    full = await bench.client.job_get(job, detail="full")
    assert full.artifacts == "2"
    assert full.assignments[0].artifacts == [log, model]
    assert await bench.client.job_artifact(job, model.name) == data
    assert await bench.client.job_artifact(job, log.name) == b""
    assert (await bench.client.job_artifacts(job)).complete


@pytest.mark.guarantee("G45")
async def test_a_file_that_does_not_match_its_checksum_is_dropped_and_comes_anew(bench) -> None:
    job, worker, delivery = await running(bench)
    right = a_file("m", b"right")
    await worker.finish(delivery, left=left(right).model_dump())
    with pytest.raises(Refused) as refused:
        await put(bench, worker, delivery, right, b"wrong")
    assert (refused.value.code, refused.value.retryable) == (ProblemCode.BAD_CHECKSUM, True)
    assert (await bench.client.job_artifacts(job)).artifacts == []
    with pytest.raises(Refused) as absent:
        await bench.client.job_artifact(job, "m")
    assert absent.value.code is ProblemCode.NOT_FOUND
    assert (await put(bench, worker, delivery, right, b"right")).kept
    with pytest.raises(Refused) as other:
        await put(bench, worker, delivery, a_file("m", b"later"), b"later")
    assert (other.value.code, other.value.retryable) == (ProblemCode.BAD_CHECKSUM, False)
    assert await bench.client.job_artifact(job, "m") == b"right"


async def test_a_file_that_was_changed_on_its_way_begins_anew(bench) -> None:
    job, worker, delivery = await running(bench)
    first, second = a_file("m", b"first version"), a_file("m", b"second")
    await put(bench, worker, delivery, first, b"first ")
    assert (await put(bench, worker, delivery, second, b"sec")).size == 3
    assert (await put(bench, worker, delivery, second, b"ond", 3)).kept
    assert await bench.client.job_artifact(job, "m") == b"second"


async def test_no_more_is_taken_than_was_announced_and_than_the_settings_allow(make_bench) -> None:
    bench = await make_bench(max_artifact_mb=0.001, max_artifacts_mb=0.0015, max_artifacts=3)
    job, worker, delivery = await running(bench)
    limits = (await worker.register()).outcomes
    assert (limits.artifact_bytes, limits.artifacts_bytes, limits.artifacts) == (1048, 1572, 3)
    for file in (a_file("large", b"x" * 1049), a_file("a", b"x" * 1048), a_file("b", b"x" * 525)):
        refused = None
        try:
            await put(bench, worker, delivery, file, b"x" * file.size)
        except Refused as refusal:
            refused = refusal.code
        assert refused is (None if file.name == "a" else ProblemCode.PAYLOAD_TOO_LARGE)
    await worker.finish(delivery, left=left(a_file("a", b"x" * 1048)).model_dump())
    with pytest.raises(Refused) as refused:
        await put(bench, worker, delivery, a_file("late", b""), b"")
    assert refused.value.code is ProblemCode.STALE_ASSIGNMENT
    assert [file.name for file in (await bench.client.job_artifacts(job)).artifacts] == ["a"]


@pytest.mark.parametrize("name", ["../../jobd.sqlite3", "a/%2e%2e/b", "..", "a//b"])
async def test_a_name_leads_nowhere_else(bench, name: str) -> None:
    job, worker, delivery = await running(bench)
    with pytest.raises(Refused) as put_refused:
        await put(bench, worker, delivery, a_file(name.replace("%2e", "."), b"x"), b"x")
    with pytest.raises(Refused) as get_refused:
        await bench.client.job_artifact(job, name.replace("%2e", "."))
    for refused in (put_refused, get_refused):
        assert refused.value.code in (ProblemCode.INVALID_REQUEST, ProblemCode.NOT_FOUND)
    assert list((bench.directory / "artifacts").rglob("*")) == []


@pytest.mark.guarantee("G45")
async def test_a_full_disk_refuses_files_for_a_while_and_no_end(bench, monkeypatch) -> None:
    job, worker, delivery = await running(bench)
    file = a_file("m", b"data")
    full = True

    def pwrite(handle: int, data: bytes, offset: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, "no room")
        return PWRITE(handle, data, offset)

    monkeypatch.setattr("os.pwrite", pwrite)
    assert await worker.finish(delivery, left=left(file).model_dump()) is W.ACCEPTED
    with pytest.raises(Refused) as refused:
        await put(bench, worker, delivery, file, b"data")
    assert refused.value.code is ProblemCode.STORAGE_FULL
    assert (await bench.client.job_get(job)).artifacts == "0 of 1"
    full = False
    assert (await put(bench, worker, delivery, file, b"data")).kept


async def test_files_go_with_the_output_and_results_with_the_job(make_bench) -> None:
    bench = await make_bench(keep_logs_s=DAY_S, keep_jobs_s=3 * DAY_S)
    job, worker, delivery = await running(bench)
    file, never = a_file("m", b"data"), a_file("n", b"never sent")
    await put(bench, worker, delivery, file, b"data")
    await result(bench, worker, delivery, b"7")
    await worker.finish(delivery, left=left(file, never).model_dump())

    bench.clock.pass_s(DAY_S + 1)
    await bench.sweep()
    await bench.sweep(after_s=4000)
    with pytest.raises(Refused) as refused:
        await bench.client.job_artifacts(job)
    assert refused.value.code is ProblemCode.LOGS_PRUNED
    view = await bench.client.job_get(job)
    assert (view.result, view.artifacts) == (7, None)
    assert not (bench.directory / "artifacts" / "0" / str(job)).exists()
    worker = worker.restarted()
    await worker.register()
    assert (await put(bench, worker, delivery, never, b"never sent")).kept  # its holder may forget it

    bench.clock.pass_s(3 * DAY_S)
    await bench.sweep()
    await bench.sweep(after_s=4000)
    rows = await bench.broker.store.read(
        lambda tx: [tx.one("result", job=job, attempt=1), tx.one("artifact", job=job, attempt=1, name="m")]
    )
    assert rows == [None, None]
