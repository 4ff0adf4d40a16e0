"""Adopted processes, as the broker keeps them: born running, never queued, counted, and told to their worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.wire.adoptions import AdoptRequest
from broker.wire.jobs import CancelRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project, Quota
from broker.wire.workers import PROTOCOL, Delivery, Final, Held, Outcome, Phase, Registration, VerdictWord
from service.test_placement import A, device, gpu, with_gpus
from support.folding import differences_in
from support.scripted_worker import ScriptedWorker

HERE = "machine:boot"


async def adopt(bench, pid: int = 4242, **fields: object) -> int:
    spec = fields.pop("spec", None)
    said = await bench.client.job_adopt(AdoptRequest.model_validate({"pid": pid, "spec": spec, **fields}))
    return said.id


async def refusal(bench, **fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await adopt(bench, **fields)
    return caught.value


async def confirmed(worker: ScriptedWorker) -> Delivery:
    delivery = await worker.one()
    assert await worker.start(delivery) is VerdictWord.ACCEPTED
    return delivery


@pytest.fixture(autouse=True)
def events_tell_what_the_tables_have(short_dir: Path) -> Iterator[None]:
    yield
    database = short_dir / "state" / "jobd.sqlite3"
    assert not database.exists() or differences_in(database) == []


async def test_it_is_running_from_its_first_moment_and_confirmed_by_its_worker(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench, start=f"{HERE}:77")
    born = await bench.client.job_get(job)
    delivery = await confirmed(worker)

    assert (born.state.value, born.kind, born.worker, born.command) == ("running", "adopted", "w1", "process 4242")
    assert (delivery.adopt.pid, delivery.adopt.start, delivery.adopt.follow) == (4242, 77, False)
    assert await bench.assignments(job) == ["started"]
    assert await bench.kinds(job) == ["job_adopted", "job_started"]
    assert await worker.finish(delivery, exit_code=3) is VerdictWord.ACCEPTED
    assert await bench.state(job) == "failed"


async def test_the_parked_poll_comes_back_for_it_and_an_answer_that_was_lost_is_said_again(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    lost = await worker.poll(process=False)
    again = await worker.poll(process=False)
    other = await bench.submit()
    third = await worker.poll()

    assert [one.job for one in lost.deliveries] == [one.job for one in again.deliveries] == [job]
    assert {one.job for one in third.deliveries} == {job, other}
    assert lost.deliveries[0].token == third.deliveries[0].token
    assert await bench.state(job) == "running", "no list that came before its delivery is evidence"


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.NEVER_EXECUTED])
@pytest.mark.guarantee("G43")
@pytest.mark.trial("B98")
async def test_one_that_its_worker_does_not_take_has_failed_with_the_reason(bench, outcome: Outcome) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await worker.one()
    await worker.finish(delivery, outcome, reason_code="adopt_pid_mismatch", reason="another one")

    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code, got.exit_code) == ("failed", "adopt_pid_mismatch", None)
    assert await bench.assignments(job) == ["refused"]


@pytest.mark.guarantee("G43")
@pytest.mark.trial("B98")
async def test_an_end_that_can_not_be_known_is_orphaned_and_has_no_exit_code(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await confirmed(worker)
    await worker.finish(delivery, Outcome.LOST, reason_code="exit_code_unobservable", reason="not known")

    got = await bench.client.job_get(job)
    assert (got.state.value, got.reason.code, got.exit_code) == ("orphaned", "exit_code_unobservable", None)
    assert await bench.assignments(job) == ["expired"]
    assert (await bench.client.worker_list()).workers[0].slots.used == 0


async def silent(bench, worker: ScriptedWorker, delivery: Delivery) -> None:
    await bench.sweep(after_s=61)


async def without_it(bench, worker: ScriptedWorker, delivery: Delivery) -> None:
    worker.held.clear()
    await worker.poll(accept=False)


async def another_start(bench, worker: ScriptedWorker, delivery: Delivery) -> None:
    later = worker.restarted()
    await later.register()
    await later.poll(accept=False)


async def lost_shim(bench, worker: ScriptedWorker, delivery: Delivery) -> None:
    await worker.finish(delivery, Outcome.LOST)


@pytest.mark.parametrize("lose", [silent, without_it, another_start, lost_shim])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.guarantee("G43")
@pytest.mark.trial("B98")
async def test_however_it_is_lost_it_is_orphaned_and_never_queued(bench, lose, known: bool) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await confirmed(worker) if known else await worker.one()
    await lose(bench, worker, delivery)

    assert await bench.state(job) == "orphaned"
    assert "job_requeued" not in await bench.kinds(job)
    other = await bench.registered("w2")
    assert (await other.poll()).deliveries == []


@pytest.mark.guarantee("G43")
@pytest.mark.trial("B98")
async def test_one_that_was_lost_comes_back_with_its_worker(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await confirmed(worker)
    await bench.sweep(after_s=61)
    lost = await bench.state(job)
    await worker.poll(accept=False)

    assert (lost, await bench.state(job)) == ("orphaned", "running")
    assert await worker.finish(delivery) is VerdictWord.ACCEPTED
    assert await bench.state(job) == "completed"


@pytest.mark.guarantee("G43")
async def test_a_late_word_that_nothing_was_taken_queues_nothing(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await worker.one()
    await bench.sweep(after_s=61)
    await worker.finish(delivery, Outcome.REFUSED, reason_code="adopt_pid_gone")

    assert await bench.state(job) == "orphaned"
    assert (await bench.client.worker_list()).workers[0].slots.used == 0


async def test_one_that_its_worker_looks_at_slowly_is_not_stopped_for_that(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await worker.one()
    for _ in range(4):
        await bench.sweep(after_s=30)
        await worker.poll(accept=False)

    assert await bench.state(job) == "running"
    assert (await bench.client.job_get(job)).stopping is None
    assert await worker.start(delivery) is VerdictWord.ACCEPTED


@pytest.mark.guarantee("G43")
@pytest.mark.trial("B98")
async def test_a_cancel_is_confirmed_when_the_worker_says_that_all_is_gone(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench, spec={"checkpoint_grace_s": 3})
    delivery = await confirmed(worker)
    await bench.client.job_cancel(CancelRequest(job=[job]))
    [stop] = (await worker.poll(accept=False)).stops
    before = await bench.state(job)
    await worker.finish(delivery, Outcome.STOPPED, stop=stop.id)

    assert (stop.grace_s, before, await bench.state(job)) == (3, "running", "cancelled")


@pytest.mark.guarantee("G43")
@pytest.mark.trial("B98")
async def test_a_project_that_wants_its_jobs_to_run_again_does_not_mean_these(make_bench) -> None:
    project = Project.model_validate({"on_worker_lost": "requeue_exclusive", "on_preempt": "requeue"})
    bench = await make_bench(projects={"default": project})
    worker = await bench.registered()
    job = await adopt(bench, spec={"preemptible": True})
    delivery = await confirmed(worker)
    await bench.client.job_preempt(job)
    await worker.finish(delivery, Outcome.STOPPED)

    assert await bench.state(job) == "preempted"


@pytest.mark.guarantee("G43")
async def test_what_it_takes_counts_and_it_is_there_also_if_there_was_no_room(bench) -> None:
    worker = await bench.registered(slots=2)
    await bench.submit(cpus=2)
    await worker.running()
    await adopt(bench, spec={"cpus": 3})
    await confirmed(worker)
    waits = await bench.submit()
    answer = await worker.poll()

    assert answer.deliveries == []
    assert (await bench.client.worker_list()).workers[0].slots.used == 5
    assert await bench.state(waits) == "queued"


@pytest.mark.parametrize(("spec", "exclusive", "fits"), [({}, True, False), ({"vram_gb": 4}, None, True)])
@pytest.mark.guarantee("G43")
async def test_the_devices_on_which_it_was_seen_are_reserved_for_it(bench, spec, exclusive, fits) -> None:
    worker = await with_gpus(bench, gpu(A, (None, 4)))  # its process has pid 100
    job = await adopt(bench, pid=100, spec=spec)
    await confirmed(worker)
    shown = await device(bench)
    await bench.submit(vram_gb=8)
    answer = await worker.poll()

    assert (await bench.client.job_get(job)).gpus == [A]
    assert (shown.jobs, shown.exclusive) == ([f"{job}.1"], exclusive)
    assert bool(answer.deliveries) is fits


async def test_device_memory_can_not_be_given_to_one_that_has_none(bench) -> None:
    await with_gpus(bench)
    refused = await refusal(bench, spec={"vram_gb": 4})
    assert (refused.code, refused.field) == (ProblemCode.INVALID_SPEC, "spec.vram_gb")


@pytest.mark.parametrize("when_over", ["deny", "hold"])
@pytest.mark.guarantee("G43")
async def test_one_that_is_over_a_quota_is_denied_and_no_job(make_bench, when_over: str) -> None:
    quota = Quota.model_validate({"running": 1, "when_over": when_over})
    bench = await make_bench(projects={"p": Project(quota=quota)})
    worker = await bench.registered()
    await adopt(bench, 1000, spec={"project": "p"})
    refused = await refusal(bench, pid=1001, spec={"project": "p"})

    assert refused.code is ProblemCode.QUOTA_EXCEEDED
    assert "project p may have 1 job that runs: it has 1, and this needs 1" in refused.detail
    assert (await bench.client.job_list()).total == 1
    assert len((await worker.poll()).deliveries) == 1


async def test_the_same_process_is_adopted_once_and_a_later_one_with_its_id_may_be(bench) -> None:
    await bench.registered()
    job = await adopt(bench, start=f"{HERE}:5")
    for start in (None, f"{HERE}:5"):
        refused = await refusal(bench, start=start)
        assert (refused.code, str(job) in refused.detail) == (ProblemCode.ALREADY_ADOPTED, True)
    assert await adopt(bench, start=f"{HERE}:6") > job


async def test_which_worker_is_told_or_clear_by_the_machine_or_the_only_one(bench) -> None:
    assert (await refusal(bench)).code is ProblemCode.UNKNOWN_WORKER
    await bench.registered("w1")
    await bench.registered("w2", machine="other:boot")
    refused = await refusal(bench)
    assert (refused.code, refused.field) == (ProblemCode.UNKNOWN_WORKER, "worker")
    assert (await refusal(bench, start="third:boot:5")).code is ProblemCode.UNKNOWN_WORKER
    assert (await refusal(bench, worker="w3")).code is ProblemCode.UNKNOWN_WORKER

    by_machine, by_name = await adopt(bench, start="other:boot:5"), await adopt(bench, worker="w1")
    assert [(await bench.client.job_get(job)).worker for job in (by_machine, by_name)] == ["w2", "w1"]


async def test_a_start_that_was_read_on_another_machine_says_nothing_of_this_ones_process(bench) -> None:
    worker = await bench.registered()
    await adopt(bench, worker="w1", start="elsewhere:boot:5")
    assert (await worker.one()).adopt.start is None


async def test_a_worker_of_a_version_that_knows_of_no_adoption_is_asked_for_none(bench) -> None:
    worker = bench.worker()
    older = Registration(name="w1", epoch=1, machine=HERE, host="h", version="0", protocol=PROTOCOL - 1, slots=4)
    await bench.client.register(worker.id, older)
    refused = await refusal(bench)
    assert refused.code is ProblemCode.UNKNOWN_WORKER
    assert "of a version that can't adopt" in refused.detail


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"command": "true"}, "spec.command"),
        ({"gpus": 1}, "spec.gpus"),
        ({"on_worker_lost": "requeue"}, "spec.on_worker_lost"),
        ({"nmae": "x"}, "spec.nmae"),
        ({"max_wall_s": -1}, "spec.max_wall_s"),
        ({"cpus": "many"}, "spec.cpus"),
    ],
)
async def test_what_means_nothing_for_what_runs_already_is_refused_and_named(bench, spec, field: str) -> None:
    await bench.registered()
    refused = await refusal(bench, spec=spec)
    assert (refused.code, refused.field) == (ProblemCode.INVALID_SPEC, field)
    assert (await bench.client.job_list()).total == 0


@pytest.mark.parametrize("start", ["5", "m:b:x", f"m:b:{1 << 63}", "m:b:-1"])
async def test_a_start_that_can_not_be_one_is_refused(bench, start: str) -> None:
    await bench.registered()
    with pytest.raises(ValueError, match="MACHINE:BOOT:START"):
        AdoptRequest(pid=1, start=start)


async def test_the_worker_hears_whether_its_silence_was_limited_by_who_named_it(bench) -> None:
    worker = await bench.registered()
    await adopt(bench, spec={"idle_timeout_s": 5})
    delivery = await worker.one()
    assert (delivery.adopt.follow, delivery.spec.idle_timeout_s) == (True, 5)


@pytest.mark.guarantee("G43")
async def test_the_database_itself_lets_none_of_them_wait(bench) -> None:
    await bench.registered()
    job = await adopt(bench)
    with closing(sqlite3.connect(bench.directory / "jobd.sqlite3")) as connection:
        for wrong in ("state = 'queued'", "state = 'assigned'", "policy = 'requeue'", "on_preempt = 'requeue'"):
            with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
                connection.execute(f"UPDATE jobs SET {wrong} WHERE id = {job}")


async def test_a_list_that_shows_it_as_running_confirms_it(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await worker.one()
    worker.hold(delivery, Phase.RUNNING)
    await worker.poll(accept=False)
    assert await bench.assignments(job) == ["started"]


async def test_its_end_overtaking_its_start_counts(bench) -> None:
    worker = await bench.registered()
    job = await adopt(bench)
    delivery = await worker.one()
    final = Final(outcome=Outcome.EXITED, exit_code=0)
    worker.held[job, 1] = Held(job=job, attempt=1, token=delivery.token, phase=Phase.ENDED, final=final)
    await worker.poll(accept=False)
    assert await bench.state(job) == "completed"
