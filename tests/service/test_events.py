"""Events are complete and in order: folding them over nothing gives the tables. And they grow with changes only."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from broker.client import BrokerClient
from broker.service import retention
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Delivery, Final, Held, Outcome, Phase, VerdictWord, WorkerUpdate
from support.folding import differences_in, fold
from support.scripted_worker import ScriptedWorker

STEPS = 250
SEEDS = range(6)


@dataclass
class History:
    """Clients and workers that do anything at any time, right or wrong; only the seed decides what."""

    bench: object
    chance: random.Random
    workers: list[ScriptedWorker] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    env: dict[int, object] = field(default_factory=dict)

    async def begin(self) -> None:
        for n in range(3):
            self.workers.append(await self.bench.registered(f"w{n}", machine=f"m{n}:boot"))

    async def step(self) -> None:
        does: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (5, self.submit),
            (8, self.poll),
            (6, self.ack),
            (6, self.start),
            (7, self.finish),
            (3, self.cancel),
            (3, self.preempt),
            (1, self.kill_fails),
            (3, self.time_passes),
            (2, self.restart),
            (2, self.forget),
            (1, self.operate),
        ]
        (chosen,) = self.chance.choices([act for _, act in does], [weight for weight, _ in does])
        try:
            await chosen()
        except Refused as refused:  # what is refused must not show in the events
            if refused.code is ProblemCode.UNKNOWN_WORKER:
                await self.register_again()

    async def register_again(self) -> None:
        """Workers that were forgotten, or superseded, do what a worker does."""
        for worker in self.workers:
            with contextlib.suppress(Refused):
                await worker.register()

    async def submit(self) -> None:
        fields: dict[str, object] = {"on_worker_lost": self.chance.choice(["requeue", "requeue", "orphan"])}
        if self.jobs and self.chance.random() < 0.5:
            fields["depends_on"] = self.chance.sample(self.jobs, min(len(self.jobs), self.chance.randint(1, 2)))
            fields["dependency_policy"] = self.chance.choice(["success", "any_exit", "failure"])
        elif self.chance.random() < 0.2:
            fields["count"] = 3
        if self.chance.random() < 0.3:
            fields["cwd"] = "/nowhere"
        fields["env"] = {"MARK": str(self.chance.random())}
        fields |= {"preemptible": True, "on_preempt": self.chance.choice(["stop", "requeue"])}
        fields |= {"max_wall_s": self.chance.choice([20, "none"]), "checkpoint_grace_s": 1}
        fields["scheduling_timeout_s"] = self.chance.choice([40, "none"])
        first = await self.bench.submit(**fields)
        members = range(first, first + int(fields.get("count", 1)))
        self.jobs += members
        self.env |= dict.fromkeys(members, fields["env"])

    async def poll(self) -> None:
        worker = self.chance.choice(self.workers)
        answer = await worker.poll(process=self.chance.random() < 0.9)  # or the answer is lost on the way
        for delivery in answer.deliveries:
            assert delivery.spec.env == self.env[delivery.job], "a job that may run has its environment"
        self.deliveries.setdefault(worker.id, []).extend(answer.deliveries)

    def _one(self) -> tuple[ScriptedWorker, Delivery] | None:
        worker = self.chance.choice(self.workers)
        known = self.deliveries.get(worker.id, [])
        return (worker, self.chance.choice(known[-6:])) if known else None

    async def ack(self) -> None:
        if (one := self._one()) is not None:
            await one[0].ack(one[1])

    async def start(self) -> None:
        if (one := self._one()) is not None:
            await one[0].start(one[1])

    async def finish(self) -> None:
        if (one := self._one()) is None:
            return
        outcome = self.chance.choice([Outcome.EXITED] * 4 + list(Outcome))
        code = self.chance.choice([0, 0, 3]) if outcome is Outcome.EXITED else None
        said = {"exit_code": code} if code is not None else {}
        if self.chance.random() < 0.5:
            await one[0].finish(one[1], outcome, **said)
        else:  # or its list tells of the end
            final = Final.model_validate({"outcome": outcome, **said})
            held = Held(job=one[1].job, attempt=one[1].attempt, token=one[1].token, phase=Phase.ENDED, final=final)
            one[0].held[one[1].job, one[1].attempt] = held
            for verdict in (await one[0].report()).verdicts:
                if verdict.ended or verdict.verdict is VerdictWord.STALE_ASSIGNMENT:
                    one[0].held.pop((verdict.job, verdict.attempt), None)

    async def cancel(self) -> None:
        if self.jobs:
            await self.bench.client.job_cancel(CancelRequest(job=[self.chance.choice(self.jobs)]))

    async def preempt(self) -> None:
        if self.jobs:
            await self.bench.client.job_preempt(self.chance.choice(self.jobs))

    async def kill_fails(self) -> None:
        """A list tells of processes that don't end, or no longer."""
        worker = self.chance.choice(self.workers)
        for key in sorted(worker.held):
            left = self.chance.choice([None, "7:D"])
            worker.held[key] = worker.held[key].model_copy(update={"kill_failed": left})
        await worker.report()

    async def time_passes(self) -> None:
        await self.bench.sweep(after_s=self.chance.choice([1, 10, 16, 61]))
        await retention.prune(self.bench.broker)

    async def restart(self) -> None:
        n = self.chance.randrange(len(self.workers))
        old = self.workers[n]
        new = old.restarted()
        if self.chance.random() < 0.7:
            new.held = dict(old.held)  # its records survived
        await new.register()
        self.workers[n] = new

    async def forget(self) -> None:
        """It loses one assignment from its list: absence is evidence."""
        worker = self.chance.choice(self.workers)
        if worker.held:
            worker.held.pop(self.chance.choice(sorted(worker.held)))
        await worker.report()

    async def operate(self) -> None:
        """An operator changes, or forgets, a worker."""
        name = self.chance.choice(self.workers).name
        change = self.chance.choice(["cordon", "drain", "resume", "resume", "resume", "tags", "remove"])
        if change == "remove":
            await self.bench.client.worker_remove(name)
        else:
            said = {"tags": [self.chance.choice("ab")]} if change == "tags" else {change: True}
            await self.bench.client.worker_update(name, WorkerUpdate.model_validate(said))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.guarantee("G2")
async def test_folding_the_events_of_any_history_gives_the_tables(make_bench, seed: int) -> None:
    bench = await make_bench(start_limit_s=30, keep_env_s=20, keep_logs_s=60, keep_jobs_s=150)
    history = History(bench, random.Random(seed))
    await history.begin()
    database = bench.directory / "jobd.sqlite3"

    for done in range(STEPS):
        await history.step()
        if done % 25 == 0:
            assert differences_in(database) == []

    assert differences_in(database) == []
    kinds = {event.type for event in await all_events(bench.client)}
    assert len(history.jobs) >= 8 and len(kinds) >= 8, kinds


async def test_the_fold_sees_an_event_that_is_missing(bench) -> None:
    """The comparison itself: without any one event of a job's life it must speak up."""
    job = await bench.submit()
    worker = await bench.registered()
    delivery = await worker.running()
    await bench.sweep(after_s=61)
    await worker.report()
    await worker.finish(delivery, exit_code=3)
    events = await all_events(bench.client)
    whole = fold(events)

    of_the_job = [event for event in events if event.job == job and event.type is not EventType.JOB_SUBMITTED]
    unseen = [
        event.type.value
        for event in of_the_job
        if fold_or_none([other for other in events if other is not event]) == whole
    ]

    # That it was queued in between is gone from the tables too, once it came back to life.
    assert len(of_the_job) >= 7
    assert unseen == ["job_requeued"]


@pytest.mark.trial("B111")
async def test_jobs_that_fit_nowhere_make_no_events_however_often_workers_poll(make_bench) -> None:
    """jobd's storm: 4 workers, 1,000 jobs that can't be placed, 500 polls. Events grow with changes, never with polls."""
    bench = await make_bench()
    workers = [await bench.registered(f"w{n}", machine=f"m{n}:boot") for n in range(4)]
    await bench.submit(count=1000, needs=["gpu-of-another-world"])
    before = len(await all_events(bench.client))

    for _ in range(125):
        for worker in workers:
            assert (await worker.poll()).deliveries == []
    await bench.sweep(after_s=1)

    assert before == 4 + 1  # an array is submitted with one
    assert len(await all_events(bench.client)) == before


async def all_events(client: BrokerClient) -> list:
    events, since = [], 0
    while page := (await client.job_events(since=since, limit=500)).events:
        events += page
        since = page[-1].seq
    return events


def fold_or_none(events: list) -> object:
    try:
        return fold(events)
    except (AssertionError, KeyError):
        return None
