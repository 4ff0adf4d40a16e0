"""The three gates: a worker that lost its claim changes nothing, not one byte."""

from __future__ import annotations

from functools import partial

import pytest

from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Finish, Outcome, Phase, Start, VerdictWord

W = VerdictWord


async def test_the_whole_path_of_a_job(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()

    delivery = await worker.running()
    size = await worker.write(delivery, b"hello\n")
    verdict = await worker.finish(delivery, final_size=6)

    assert (size, verdict) == (6, W.ACCEPTED)
    assert await bench.state(job) == "completed"
    assert await bench.kinds(job) == [
        "job_submitted",
        "job_assigned",
        "assignment_acked",
        "job_started",
        "job_completed",
    ]


@pytest.mark.trial("B05")
@pytest.mark.guarantee("G5")
async def test_a_stale_worker_can_write_nothing_into_a_job_that_another_has(bench) -> None:
    job = await bench.submit()
    a, b = await bench.registered("a"), await bench.registered("b")
    old = await a.running()
    await bench.sweep(after_s=61)  # a is silent for a lease
    new = await b.running()
    a.recovered = True

    verdicts = [
        await a.ack(old),
        (await a.report(Start(kind="start", job=job, attempt=1, token=old.token))).verdicts[0].verdict,
        await a.finish(old, exit_code=0),
    ]
    with pytest.raises(Refused) as refused:
        await a.write(old, b"late")

    assert set(verdicts) == {W.STALE_ASSIGNMENT}
    assert refused.value.code is ProblemCode.STALE_ASSIGNMENT
    assert await bench.state(job) == "running"
    assert bench.broker.logs.size(job, 1) == 0
    assert await b.finish(new) is W.ACCEPTED
    assert await bench.assignments(job) == ["expired", "succeeded"]


@pytest.mark.parametrize("wrong", ["token", "worker", "attempt"])
@pytest.mark.guarantee("G5")
async def test_a_write_with_a_wrong_name_is_stale(bench, wrong: str) -> None:
    job = await bench.submit()
    worker, stranger = await bench.registered("a"), await bench.registered("b")
    delivery = await worker.running()

    forged = delivery.model_copy(
        update={"token": "guess"} if wrong == "token" else {"attempt": 2} if wrong == "attempt" else {}
    )
    by = stranger if wrong == "worker" else worker

    assert await by.finish(forged) is W.STALE_ASSIGNMENT
    with pytest.raises(Refused) as refused:
        await by.write(forged, b"x")
    assert refused.value.code is ProblemCode.STALE_ASSIGNMENT
    assert await bench.state(job) == "running"


@pytest.mark.guarantee("G6")
async def test_a_repeat_by_the_same_owner_is_a_duplicate_and_changes_nothing(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()

    acks = [await worker.ack(delivery), await worker.ack(delivery)]
    starts = [await worker.start(delivery), await worker.start(delivery)]
    ends = [await worker.finish(delivery, exit_code=3), await worker.finish(delivery, exit_code=0)]

    assert acks == starts == ends == [W.ACCEPTED, W.DUPLICATE]
    assert (await bench.client.job_get(job)).exit_code == 3


@pytest.mark.guarantee("G4")
async def test_an_ack_permits_only_the_shim_that_asked_first(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()

    assert await worker.ack(delivery, shim="one") is W.ACCEPTED
    assert await worker.ack(delivery, shim="two") is W.STALE_ASSIGNMENT
    assert await worker.ack(delivery, shim="one") is W.DUPLICATE


@pytest.mark.guarantee("G4")
async def test_an_ack_of_something_started_never_permits_a_second_start(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()

    assert await worker.ack(delivery) is W.STALE_ASSIGNMENT


@pytest.mark.guarantee("G6")
async def test_a_late_start_after_the_own_final_report_drops_nothing(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    finish = await worker.finish(delivery, final_size=4)

    late = (await worker.report(Start(kind="start", job=delivery.job, attempt=1, token=delivery.token))).verdicts[0]

    assert finish is W.ACCEPTED
    assert (late.verdict, late.ended) == (W.DUPLICATE, True)
    assert await worker.write(delivery, b"tail") == 4


@pytest.mark.trial("B77")
@pytest.mark.guarantee("G5")
async def test_the_tail_of_a_finished_log_is_taken_up_to_its_declared_size_and_no_further(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await worker.write(delivery, b"12345")
    await worker.finish(delivery, final_size=10)

    assert (await bench.client.job_get(job, detail="full")).assignments[0].log_complete is False
    assert await worker.write(delivery, b"67890", offset=5) == 10
    with pytest.raises(Refused):
        await worker.write(delivery, b"!", offset=10)
    assert (await bench.client.job_get(job, detail="full")).assignments[0].log_complete is True


@pytest.mark.guarantee("G15")
async def test_the_tail_is_durable_before_its_holder_may_drop_it(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()

    early = await bench.client.put_log(worker.id, delivery.job, 1, delivery.token, 1, "log", 0, b"ab")
    await worker.finish(delivery, final_size=2)
    again = await bench.client.put_log(worker.id, delivery.job, 1, delivery.token, 1, "log", 2, b"")

    assert (early.size, early.durable) == (2, 0)
    assert (again.size, again.durable) == (2, 2)


@pytest.mark.guarantee("G15")
async def test_what_a_power_cut_took_from_the_worker_and_the_broker_has_is_kept_and_made_durable(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await worker.write(delivery, b"12345")
    await worker.finish(delivery, final_size=3)

    asked = await bench.client.put_log(worker.id, delivery.job, 1, delivery.token, 1, "log", 5, b"")

    assert (asked.size, asked.durable) == (5, 5)
    assert (await bench.client.job_get(job, detail="full")).assignments[0].log_complete is True


@pytest.mark.guarantee("G15")
async def test_what_power_cuts_took_from_both_is_told_as_missing_and_not_waited_for(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await worker.write(delivery, b"12")
    await worker.finish(delivery, final_size=5, final_index_size=0)
    rest = partial(bench.client.put_log, worker.id, delivery.job, 1, delivery.token, 1, "log")

    early = await rest(0, b"", 3)
    whole = await rest(2, b"3", 3)
    again = await rest(3, b"", 3)

    assert [(answer.size, answer.durable) for answer in (early, whole, again)] == [(2, 0), (3, 3), (3, 3)]
    attempt = (await bench.client.job_get(job, detail="full")).assignments[0]
    assert (attempt.log_complete, attempt.dropped_bytes) == (True, 2)


@pytest.mark.guarantee("G3")
async def test_nothing_may_be_executed_before_the_ack_was_accepted(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()

    assert await worker.start(delivery) is W.STALE_ASSIGNMENT
    assert await worker.finish(delivery) is W.STALE_ASSIGNMENT
    assert await bench.state(job) == "assigned"


async def test_a_final_report_implies_its_start(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)

    assert await worker.finish(delivery, exit_code=0) is W.ACCEPTED
    assert (await bench.kinds(job))[-2:] == ["job_started", "job_completed"]


@pytest.mark.guarantee("G3")
async def test_an_ack_after_the_pending_lease_is_stale_never_lost(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await bench.sweep(after_s=16)  # a pending lease is a quarter

    assert await bench.state(job) == "queued"
    assert await worker.ack(delivery) is W.STALE_ASSIGNMENT
    assert await bench.assignments(job) == ["expired"]


async def test_a_list_does_not_renew_a_pending_lease(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.one()
    for _ in range(4):
        bench.clock.pass_s(5)
        await worker.report()

    await bench.sweep()

    assert await bench.state(job) == "queued"


@pytest.mark.guarantee("G5")
async def test_an_older_epoch_is_told_that_it_is_superseded(bench) -> None:
    await bench.submit()
    old = await bench.registered()
    delivery = await old.running()
    new = old.restarted()
    await new.register()

    with pytest.raises(Refused) as refused:
        await old.finish(delivery)
    with pytest.raises(Refused) as refused_log:
        await old.write(delivery, b"x")

    assert refused.value.code is refused_log.value.code is ProblemCode.SUPERSEDED


async def test_a_new_epoch_may_finish_what_an_older_one_started(bench) -> None:
    job = await bench.submit()
    old = await bench.registered()
    delivery = await old.running()
    new = old.restarted()
    await new.register()
    new.hold(delivery, Phase.RUNNING)
    await new.report()

    assert await new.finish(delivery, exit_code=0) is W.ACCEPTED
    assert await bench.assignments(job) == ["succeeded"]


@pytest.mark.guarantee("G5")
@pytest.mark.trial("B121")
async def test_two_workers_never_share_a_name_or_an_id(bench) -> None:
    first = await bench.registered("box")

    with pytest.raises(Refused) as same_name:
        await bench.worker("box").register()
    clone = bench.worker("other", id=first.id, epoch=9, machine="another:boot")
    with pytest.raises(Refused) as same_id:
        await clone.register()
    with pytest.raises(Refused) as older:
        await bench.worker("box", id=first.id, epoch=1, machine="another:boot").register()

    assert same_name.value.code is same_id.value.code is ProblemCode.WORKER_NAME_TAKEN
    assert older.value.code is ProblemCode.SUPERSEDED


async def test_a_name_is_free_once_its_worker_is_lost(bench) -> None:
    await bench.registered("box")
    await bench.sweep(after_s=61)

    await bench.worker("box").register()

    states = [(worker.name, worker.state) for worker in (await bench.client.worker_list()).workers]
    assert sorted(states) == [("box", "lost"), ("box", "online")]


async def test_a_repeated_registration_is_answered_the_same(bench) -> None:
    worker = bench.worker()

    assert await worker.register() == await worker.register()


async def test_a_report_of_an_unknown_worker_says_to_register(bench) -> None:
    with pytest.raises(Refused) as refused:
        await bench.worker().report()

    assert refused.value.code is ProblemCode.UNKNOWN_WORKER


@pytest.mark.guarantee("G15")
async def test_bytes_with_a_wrong_checksum_or_a_gap_are_refused(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()

    with pytest.raises(Refused) as gap:
        await worker.write(delivery, b"x", offset=5)

    assert (gap.value.code, gap.value.size) == (ProblemCode.OFFSET_GAP, 0)


async def test_a_transition_that_the_table_does_not_know_stops_no_other(bench) -> None:
    first, second = await bench.submit(), await bench.submit()
    worker = await bench.registered()
    answer = await worker.poll()
    one, two = answer.deliveries
    for delivery in (one, two):
        await worker.ack(delivery)
        await worker.start(delivery)

    answer = await worker.report(
        Finish(kind="finish", job=99, attempt=1, token="x", final={"outcome": "exited", "exit_code": 0}),
        Finish(kind="finish", job=one.job, attempt=1, token=one.token, final={"outcome": "exited", "exit_code": 0}),
        Finish(
            kind="finish", job=two.job, attempt=1, token=two.token, final={"outcome": Outcome.EXITED, "exit_code": 1}
        ),
    )

    assert [verdict.verdict for verdict in answer.verdicts[:3]] == [W.STALE_ASSIGNMENT, W.ACCEPTED, W.ACCEPTED]
    assert [await bench.state(first), await bench.state(second)] == ["completed", "failed"]
