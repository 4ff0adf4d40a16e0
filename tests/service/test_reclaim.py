"""Leases, losses, and the way back: the truth in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.app import open_broker, run_broker
from broker.client import BrokerClient
from broker.service import sweeps
from broker.store.contract import StorageFailed
from broker.wire.jobs import JobSpec
from broker.wire.settings import BrokerSettings
from broker.wire.workers import Ack, Held, Outcome, Phase, VerdictWord
from support.scripted_worker import ScriptedWorker, SteppedClock

W = VerdictWord


@pytest.mark.guarantee("G7")
async def test_a_silent_workers_job_is_queued_again_and_visibly(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()

    await bench.sweep(after_s=61)

    got = await bench.client.job_get(job, detail="full")
    assert got.state.value == "queued"
    assert got.reason.code == "worker_lost"
    assert got.assignments[0].state.value == "expired"
    assert got.assignments[0].expired_at is not None
    assert (await bench.kinds(job))[-2:] == ["assignment_expired", "job_requeued"]
    assert (await bench.client.worker_list()).workers[0].state == "lost"


@pytest.mark.trial("B06")
async def test_a_lease_that_is_renewed_lasts_as_long_as_the_job(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()

    for _ in range(10):
        await bench.sweep(after_s=30)
        await worker.report()

    assert await bench.state(job) == "running"
    assert await bench.assignments(job) == ["started"]


@pytest.mark.trial("B14")
@pytest.mark.guarantee("G8")
async def test_a_job_that_must_not_run_twice_is_orphaned(bench) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    await worker.running()

    await bench.sweep(after_s=61)

    assert await bench.state(job) == "orphaned"


@pytest.mark.guarantee("G9")
async def test_an_exclusive_job_stays_running_until_its_old_copy_must_be_gone(make_bench) -> None:
    bench = await make_bench(exclusive_lease_s=100, exclusive_margin_s=30)
    job = await bench.submit(on_worker_lost="requeue_exclusive", checkpoint_grace_s=10)
    worker = await bench.registered()
    await worker.running()

    await bench.sweep(after_s=139)
    before = await bench.state(job)
    await bench.sweep(after_s=2)

    assert (before, await bench.state(job)) == ("running", "queued")


@pytest.mark.guarantee("G7")
async def test_a_job_that_keeps_losing_its_worker_is_not_queued_for_ever(bench) -> None:
    job = await bench.submit()
    for n in range(3):
        worker = await bench.registered(f"w{n}")
        await worker.running()
        await bench.sweep(after_s=61)

    assert await bench.state(job) == "orphaned"
    assert await bench.assignments(job) == ["expired"] * 3


@pytest.mark.guarantee("G12")
async def test_a_lost_job_that_is_still_running_comes_back_to_life(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "queued"

    answer = await worker.poll()  # its first word after the silence is its list

    assert answer.deliveries == []  # it was not handed out before it came back
    assert await bench.state(job) == "running"
    assert "job_resurrected" in await bench.kinds(job)
    assert await worker.finish(delivery, exit_code=0) is W.ACCEPTED
    assert await bench.assignments(job) == ["succeeded"]


@pytest.mark.guarantee("G8", "G12")
async def test_an_orphan_whose_worker_returns_comes_back_to_life(bench) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    await worker.running()
    await bench.sweep(after_s=61)

    await worker.report()

    got = await bench.client.job_get(job)
    assert got.state.value == "running"
    assert got.ended_at is None and got.reason is None


@pytest.mark.parametrize("policy", ["requeue", "orphan"])
@pytest.mark.parametrize(("exit_code", "state"), [(0, "completed"), (4, "failed")])
@pytest.mark.guarantee("G12")
async def test_work_that_finished_during_the_silence_is_not_thrown_away(
    bench, policy: str, exit_code: int, state: str
) -> None:
    job = await bench.submit(on_worker_lost=policy)
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)

    verdict = await worker.finish(delivery, exit_code=exit_code, final_size=3)
    size = await worker.write(delivery, b"abc")

    assert (verdict, size) == (W.ACCEPTED, 3)
    got = await bench.client.job_get(job)
    assert (got.state.value, got.exit_code) == (state, exit_code)
    assert got.duration_s is not None


async def test_an_ended_entry_of_the_list_is_a_final_report(bench) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    worker.held[delivery.job, 1] = Held(
        job=delivery.job,
        attempt=1,
        token=delivery.token,
        phase=Phase.ENDED,
        final={"outcome": "exited", "exit_code": 0},
    )

    answer = await worker.poll()

    assert answer.verdicts[0].verdict is W.ACCEPTED
    assert await bench.state(job) == "completed"


@pytest.mark.guarantee("G12")
async def test_a_lost_job_that_another_worker_has_does_not_come_back(bench) -> None:
    job = await bench.submit()
    a = await bench.registered("a")
    old = await a.running()
    await bench.sweep(after_s=61)
    b = await bench.registered("b")
    await b.running()

    answer = await a.poll()

    assert [verdict.verdict for verdict in answer.verdicts] == [W.STALE_ASSIGNMENT]
    assert await bench.state(job) == "running"
    assert await a.finish(old, Outcome.STOPPED) is W.STALE_ASSIGNMENT


@pytest.mark.guarantee("G17")
async def test_a_stale_process_takes_room_until_it_is_gone(bench) -> None:
    await bench.submit(cpus=1)
    a = await bench.registered("a", slots=1)
    await a.running()
    await bench.sweep(after_s=61)
    b = await bench.registered("b", slots=1)
    await b.running()
    await bench.submit(cpus=1)

    full = await a.poll()  # lists the stale process: nothing fits beside it
    a.held.clear()  # gone
    free = await a.poll()

    assert full.deliveries == []
    assert len(free.deliveries) == 1


async def test_a_lost_unexecuted_assignment_is_closed_first_and_then_queued(bench) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "orphaned"

    listed = await worker.report()
    proof = await worker.finish(delivery, Outcome.NEVER_EXECUTED)

    assert listed.verdicts[0].verdict is W.LEASE_LOST
    assert proof is W.ACCEPTED
    assert await bench.state(job) == "queued"


@pytest.mark.trial("B11")
@pytest.mark.guarantee("G10")
async def test_silence_counts_only_while_the_broker_was_listening(make_bench) -> None:
    bench = await make_bench(sweep_s=5)
    jobs = [await bench.submit() for _ in range(3)]
    worker = await bench.registered()
    answer = await worker.poll()
    for delivery in answer.deliveries:
        await worker.ack(delivery)
        await worker.start(delivery)

    await bench.sweep(after_s=3 * 60)  # frozen, or asleep, for three leases

    assert [await bench.state(job) for job in jobs] == ["running"] * 3
    events = [event.type.value for event in (await bench.client.job_events(limit=500)).events]
    assert "reclaim_suppressed" in events
    for _ in range(13):
        await bench.sweep(after_s=5)  # now it listens, and hears nothing
    assert [await bench.state(job) for job in jobs] == ["queued"] * 3


@pytest.mark.trial("B113")
@pytest.mark.guarantee("G10")
async def test_clock_jumps_reclaim_nothing(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()
    for jump_ms in (2 * 3_600_000, -4 * 3_600_000):
        bench.clock.wall += jump_ms
        await bench.sweep()

    assert await bench.state(job) == "running"


@pytest.mark.guarantee("G10")
async def test_a_broker_that_keeps_crashing_still_reclaims_in_the_end(short_dir: Path) -> None:
    settings, clock, state = BrokerSettings(lease_s=60, sweep_s=5), SteppedClock(), short_dir / "state"
    async with run_broker(settings, state, {}, clock=clock), BrokerClient(f"unix://{state}/broker.sock") as client:
        job = (await client.job_submit(JobSpec(command="true"))).id
        worker = ScriptedWorker(client)
        await worker.register()
        await worker.running()

    rounds = 0
    states = ["running"]
    while states[-1] == "running" and rounds < 30:
        clock.pass_s(100)  # down
        async with open_broker(settings, state, clock) as broker:
            clock.pass_s(5)
            await sweeps.expire_leases(broker)
            states.append(await broker.store.read(lambda tx: tx.one("job", job=job)["state"]))
        rounds += 1

    assert states[-1] == "queued"
    assert rounds == 12  # a lease of 60 s in lives of 5 s


async def test_a_restarted_broker_says_once_how_long_nobody_listened(short_dir: Path) -> None:
    settings, clock, state = BrokerSettings(lease_s=60, sweep_s=5), SteppedClock(), short_dir / "state"
    gaps = []
    state.mkdir()
    for down_s in (0, 500, 1):  # the last one is not worth a word
        clock.pass_s(down_s)
        async with open_broker(settings, state, clock) as broker:
            for _ in range(2):
                clock.pass_s(5)
                await sweeps.expire_leases(broker)
            said = await broker.store.read(lambda tx: tx.all("events_between", since=0, until=100))
            gaps = [row["data"] for row in said if row["type"] == "reclaim_suppressed"]

    assert gaps == ['{"gap_s":500.0}']


@pytest.mark.trial("B09")
@pytest.mark.guarantee("G7")
async def test_a_worker_that_comes_back_without_a_job_loses_it_at_once(bench) -> None:
    job = await bench.submit()
    old = await bench.registered()
    await old.running()
    new = old.restarted()
    await new.register()

    new.recovered = False
    await new.report()
    not_yet = await bench.state(job)
    new.recovered = True
    await new.report()

    assert (not_yet, await bench.state(job)) == ("running", "queued")
    assert (await bench.client.job_get(job)).reason.code == "worker_lost_it"


@pytest.mark.guarantee("G7")
async def test_absence_is_no_evidence_while_the_answer_may_be_on_its_way(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    answer = await worker.poll(process=False)  # lost on the way
    assert len(answer.deliveries) == 1

    await worker.report()  # seen = 0: it does not list what it never got

    assert await bench.state(job) == "assigned"


async def test_an_answer_that_was_lost_is_put_again_whole_with_the_same_token(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    lost = (await worker.poll(process=False)).deliveries[0]

    again = (await worker.poll()).deliveries[0]

    assert (again.job, again.attempt, again.token) == (job, 1, lost.token)
    assert await worker.ack(again) is W.ACCEPTED
    assert await bench.assignments(job) == ["acked"]


@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("acknowledged", [False, True])
async def test_a_delivery_that_was_told_twice_takes_no_room_once_its_worker_has_dropped_it(
    bench, acknowledged: bool
) -> None:
    """The later answer was lost: the worker's `seen` will never cover it, but it had the delivery from the earlier one."""
    await bench.submit()
    worker = await bench.registered(slots=1)
    earlier = await worker.poll(process=False)
    await worker.poll(process=False)
    worker.process(earlier)
    if acknowledged:
        assert await worker.ack(earlier.deliveries[0]) is W.ACCEPTED
    else:
        await bench.sweep(after_s=16)
        assert (await worker.report()).verdicts[0].verdict is W.STALE_ASSIGNMENT
    worker.held.clear()

    assert [delivery.attempt for delivery in (await worker.poll()).deliveries] == [2]


async def test_a_list_older_than_one_already_used_is_ignored(bench) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    await worker.running()
    worker.seq, held = 0, dict(worker.held)
    worker.held.clear()

    await worker.report()  # seq 1: older than what was used

    assert await bench.state(job) == "running"
    worker.held, worker.seq = held, 50


async def test_only_a_recovered_worker_may_claim(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    worker.recovered = False

    nothing = await worker.poll()
    worker.recovered = True
    something = await worker.poll()

    assert (len(nothing.deliveries), len(something.deliveries)) == (0, 1)


@pytest.mark.guarantee("G7", "G8")
async def test_time_in_which_the_store_could_not_be_written_is_not_silence(bench) -> None:
    """Nobody could be heard, whoever spoke: the first sweep after it must not come before the first report."""
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    await worker.running()
    store = bench.broker.store

    async def fails(*_: object, **__: object) -> None:
        raise StorageFailed("the disk does not write")

    object.__setattr__(bench.broker, "store", _Instead(store, run=fails))
    for _ in range(24):
        bench.clock.pass_s(5)
        with pytest.raises(StorageFailed):
            await sweeps.expire_leases(bench.broker)
    object.__setattr__(bench.broker, "store", store)
    await bench.sweep(after_s=5)

    assert await bench.state(job) == "running"
    [gap] = [event for event in (await bench.client.job_events()).events if event.type.value == "reclaim_suppressed"]
    assert gap.data["gap_s"] == pytest.approx(120, abs=1)
    await bench.sweep(after_s=56)
    assert await bench.state(job) == "orphaned"


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("outcome", [Outcome.LEASE_ENDED, Outcome.LOST])
async def test_what_its_shim_said_is_gone_is_not_brought_back_by_a_list(bench, outcome: Outcome) -> None:
    job = await bench.submit(on_worker_lost="orphan")
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    await worker.finish(delivery, outcome)
    worker.hold(delivery, Phase.RUNNING)

    await worker.report()

    assert await bench.state(job) == "orphaned"


async def test_a_proof_that_nothing_ran_takes_the_loss_back(make_bench) -> None:
    bench = await make_bench(max_losses=2)
    job = await bench.submit()
    worker = await bench.registered()
    for _ in range(3):
        delivery = await worker.one()
        await worker.ack(delivery)
        await bench.sweep(after_s=61)
        await worker.finish(delivery, Outcome.NEVER_EXECUTED)
        worker.held.clear()
    assert await bench.state(job) == "queued"


@pytest.mark.guarantee("G10")
async def test_one_whose_start_was_never_heard_of_begins_when_it_comes_back(bench) -> None:
    """Its limit is watched over from then on, and what runs later is told that it is not the first."""
    job = await bench.submit(max_wall_s=100, checkpoint_grace_s=5)
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await bench.sweep(after_s=61)
    assert await bench.state(job) == "queued"

    worker.hold(delivery, Phase.RUNNING)
    await worker.report()
    assert await bench.state(job) == "running"
    for _ in range(4):
        await bench.sweep(after_s=40)
        await worker.report()
    stop = (await bench.client.job_get(job)).stopping
    worker.held.clear()
    await bench.sweep(after_s=61)

    assert stop.why == "max_wall_s=100 is over, and its worker has not stopped it"
    assert await bench.state(job) == "failed"


async def test_one_whose_start_was_never_heard_of_counts_as_started_when_it_runs_again(bench) -> None:
    await bench.submit()
    worker = await bench.registered()
    delivery = await worker.one()
    await worker.ack(delivery)
    await bench.sweep(after_s=61)
    worker.hold(delivery, Phase.RUNNING)
    await worker.report()
    worker.held.clear()

    assert [again.restarts for again in (await worker.poll()).deliveries] == [1]


@pytest.mark.guarantee("G7")
async def test_leases_that_are_over_at_once_are_all_over_in_one_sweep_however_many(bench) -> None:
    count = sweeps.BATCH + 1
    await bench.submit(count=count)
    worker = await bench.registered(slots=count)
    while deliveries := (await worker.poll()).deliveries:
        await worker.report(
            *(Ack(kind="ack", job=one.job, attempt=1, token=one.token, shim="shim-1") for one in deliveries)
        )
    worker.held.clear()
    bench.clock.pass_s(61)

    await sweeps.expire_leases(bench.broker)

    assert (await bench.client.job_list()).counts == {"queued": count}


@pytest.mark.parametrize("meanwhile", ["ends", "is heard", "is claimed anew"])
@pytest.mark.trial("B04")
@pytest.mark.guarantee("G6")
async def test_a_late_expiry_does_not_touch_what_changed_between_its_read_and_its_write(bench, meanwhile: str) -> None:
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    bench.clock.pass_s(61)
    reads: list[object] = []
    real = bench.broker.store.read

    async def between(fn, **kwargs):
        result = await real(fn, **kwargs)
        if not reads and isinstance(result, list):
            reads.append(result)
            await happens()
        return result

    async def happens() -> None:
        match meanwhile:
            case "ends":
                await worker.finish(delivery, exit_code=0)
            case "is heard":
                await worker.report()
            case _:
                await worker.finish(delivery, Outcome.LOST)
                await worker.running()

    object.__setattr__(bench.broker, "store", _Instead(bench.broker.store, read=between))
    await sweeps.expire_leases(bench.broker)

    assert reads[0], "the sweep saw a lease that was over"
    assert await bench.state(job) == ("completed" if meanwhile == "ends" else "running")
    expected = {"ends": ["succeeded"], "is heard": ["started"], "is claimed anew": ["expired", "started"]}
    assert await bench.assignments(job) == expected[meanwhile]


class _Instead:
    """A store, with something else in the place of some of its methods."""

    def __init__(self, store, **instead) -> None:
        self.__dict__ |= {"_store": store, **instead}

    def __getattr__(self, name: str):
        return getattr(self._store, name)
