"""Who submits jobs, cancels them, and asks: by the real client, over the same network, with the same losses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from broker.client import BrokerClient, Unreachable
from broker.wire.jobs import CancelRequest, JobSpec, RetryRequest, Submission, Submitted
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import DependencyPolicy, OnPreempt, OnWorkerLost, RetriedMembers
from broker.wire.workers import WorkerUpdate
from simulation.hosts import URL
from simulation.loop import Machine, Process, VirtualLoop
from simulation.network import Link, Network
from simulation.oracle import Oracle
from simulation.programs import Plan

# What a client may be told that is no fault of the broker's.
_EXPECTED = {
    ProblemCode.DEPENDENCY_UNSATISFIABLE,
    ProblemCode.CONFIRMATION_NEEDED,
    ProblemCode.UNKNOWN_ATTEMPT,
    ProblemCode.NOT_PREEMPTIBLE,
    ProblemCode.NOT_RUNNING,
    ProblemCode.ALREADY_TERMINAL,
    ProblemCode.NOT_TERMINAL,
    ProblemCode.ALREADY_RETRIED,
    ProblemCode.NOT_RETRYABLE,
}
MOST_TRIES = 6


class Client:
    """One actor. It remembers what it was promised, and says so to the oracle."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        network: Network,
        oracle: Oracle,
        chance: random.Random,
        tell: Callable[[str, str], None],
        workers: list[str],
    ) -> None:
        self.link = Link(name)
        self.process = Process(loop, name, Machine(name))
        self._client = BrokerClient(URL, line=network.line(self.link))
        self._loop, self._oracle, self._chance, self._workers = loop, oracle, chance, workers
        self._tell = tell
        self.jobs: list[int] = []
        self.arrays: list[int] = []
        self._keys = 0

    def live(self, until: float, pause_s: float) -> None:
        self.process.spawn(self._live(until, pause_s))

    async def _live(self, until: float, pause_s: float) -> None:
        acts = [self._submit] * 6 + [
            self._submit_under_a_key,
            self._submit_under_a_key,
            self._retry,
            self._submit_and_cancel,
            self._cancel,
            self._preempt,
            self._get,
            self._get,
            self._wait,
            self._read,
        ]
        while self._loop.time() < until:
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))
            act = self._chance.choice(acts) if self.jobs else self._submit
            try:
                await act()
            except Unreachable:
                continue
            except Refused as refusal:
                if refusal.code not in _EXPECTED and not refusal.retryable:
                    self._oracle.wrong(3, f"{self.process} was refused: {refusal.code}: {refusal.detail}")

    async def submit(self, spec: JobSpec) -> int:
        return self._promised(await self._client.job_submit(spec))

    def _promised(self, answer: Submitted) -> int:
        first, count = (answer.id, 1) if answer.id is not None else (answer.array, answer.count)
        assert first is not None and count is not None
        if answer.repeated and first in self.jobs:
            return first
        self._tell(str(self.process), f"submitted {first} and {count - 1} more")
        self._oracle.submitted(range(first, first + count))
        self.arrays += [answer.array] if answer.array is not None else []
        self.jobs += range(first, first + count)
        return first

    async def update(self, worker: str, request: WorkerUpdate) -> bool:
        """Whether the broker took it."""
        try:
            await self._client.worker_update(worker, request)
        except (Unreachable, Refused) as error:
            self._tell(str(self.process), f"{request} of {worker}: {error}")
            return isinstance(error, Refused) and error.code is ProblemCode.UNKNOWN_WORKER
        self._tell(str(self.process), f"{request} of {worker}")
        return True

    async def resume(self, worker: str) -> None:
        for _ in range(30):
            if await self.update(worker, WorkerUpdate(resume=True)):
                return
            await asyncio.sleep(1)

    async def _submit(self) -> None:
        await self.submit(self._spec())

    async def _submit_under_a_key(self) -> None:
        """As agents do: the same again after a lost answer, and sometimes after one that came."""
        key = self._next_key()
        said = {**self._spec().model_dump(exclude_unset=True), "idempotency_key": key}
        request = Submission.model_validate(said)
        await self._until_answered(key, lambda: self._client.job_submit(request))

    async def _retry(self) -> None:
        """Of a job that has ended, if one has; under a key, or as a person does."""
        ended = [job for job in self.jobs if self._oracle.state_of(job) not in (None, "queued", "assigned", "running")]
        if not ended:
            return
        job = self._chance.choice(ended[-8:])
        self._oracle.retried(job)
        if self._chance.random() < 0.5:
            self._promised(await self._client.job_retry(job, RetryRequest(members=RetriedMembers.ONE)))
            return
        key = self._next_key()
        request = RetryRequest(members=RetriedMembers.ONE, idempotency_key=key)
        await self._until_answered(key, lambda: self._client.job_retry(job, request))

    def _next_key(self) -> str:
        self._keys += 1
        return f"{self.process}-{self._keys}"

    async def _until_answered(self, key: str, ask: Callable[[], Awaitable[Submitted]]) -> None:
        answers = 0
        for _ in range(MOST_TRIES):
            try:
                answer = await ask()
            except Unreachable:
                await asyncio.sleep(self._chance.expovariate(1.0))
                continue
            job = self._promised(answer)
            self._oracle.done_under_key(key, job)
            answers += 1
            if answers > 1 or self._chance.random() < 0.5:
                return

    async def _submit_and_cancel(self) -> None:
        """The cancel comes while it is being claimed, acknowledged, started, or ends: as a person never could, we look."""
        job = await self.submit(self._spec())
        while self._oracle.state_of(job) == "queued" and self._chance.random() < 0.999:
            await asyncio.sleep(0.005)
        await asyncio.sleep(self._chance.expovariate(1 / 0.03))
        await self._cancel_some(CancelRequest(job=[job]))

    async def _cancel(self) -> None:
        chance = self._chance
        alive = [job for job in self.jobs if self._oracle.state_of(job) in ("assigned", "running")]
        job = chance.choice(alive if alive and chance.random() < 0.7 else self.jobs)
        which = CancelRequest(job=[job]) if chance.random() < 0.9 else CancelRequest(project="default", state="queued")
        if self.arrays and chance.random() < 0.1:
            which = CancelRequest(array=chance.choice(self.arrays))
        await self._cancel_some(which)

    async def _cancel_some(self, which: CancelRequest) -> None:
        self._oracle.cancel_asked(which.job or (), which.array)
        answer = await self._client.job_cancel(which)
        self._tell(str(self.process), f"cancelled {[(one.id, one.note.split(':')[0]) for one in answer.jobs]}")
        for one in answer.jobs:
            if one.note.startswith(("cancelled", "stopping")) or "may still run" in one.note:
                self._oracle.cancelled(one.id, one.state.value)

    async def _preempt(self) -> None:
        alive = [job for job in self.jobs if self._oracle.state_of(job) in ("assigned", "running")]
        job = self._chance.choice(alive or self.jobs)
        answer = await self._client.job_preempt(job)
        self._tell(str(self.process), f"preempted {job}: {answer.note}")

    async def _get(self) -> None:
        job, asked_at = self._chance.choice(self.jobs), self._loop.time()
        detail = await self._client.job_get(job, detail="full" if self._chance.random() < 0.3 else "concise")
        self._oracle.answered(job, detail.state.value, asked_at)

    async def _wait(self) -> None:
        some, asked_at = self._chance.sample(self.jobs, min(3, len(self.jobs))), self._loop.time()
        answer = await self._client.job_wait(some, mode=self._chance.choice(("all", "any")), timeout_s=8)
        for one in answer.jobs:
            self._oracle.answered(one.id, one.state.value, asked_at)
        if answer.done != (not answer.pending) and not answer.jobs:
            self._oracle.wrong(3, f"a wait says {answer.done} with {answer.pending}")

    async def _read(self) -> None:
        job = self._chance.choice(self.jobs)
        read = b"".join([piece async for piece in self._client.job_output(job, attempt=1)])
        execution = self._oracle.executions.get((job, 1))
        wrote = bytes(execution.tree.wrote) if execution is not None else b""
        if not wrote.startswith(read):
            self._oracle.wrong(8, f"what a client read of {job}.1 is not what was written")

    def _spec(self) -> JobSpec:
        chance = self._chance
        plan = Plan(
            run_s=chance.choice((0.0, 0.05, chance.random() * 4, chance.random() * 30, chance.random() * 30)),
            lines=chance.choice((0, 1, 5, 20)),
            exit=chance.choice((0, 0, 0, 1)),
            term_s=chance.choice((0.0, 0.0, chance.random() * 6, None)),
            term_exit=chance.choice((None, 0, 143)),
            stray_s=chance.choice((0.0, 0.0, 0.0, chance.random() * 6)),
            no_program=chance.random() < 0.03,
            refused_on=chance.choice(self._workers[1:]) if self._workers[1:] and chance.random() < 0.08 else None,
        )
        recent = self.jobs[-4:] if chance.random() < 0.8 else self.jobs  # so that there are chains
        parents = chance.sample(recent, min(chance.choice((1, 1, 2)), len(recent))) if chance.random() < 0.5 else None
        count = chance.choice((2, 4, 6)) if chance.random() < 0.12 else None
        return JobSpec(
            command=plan.command,
            priority=chance.choice((0, 0, 5, -5)),
            cpus=chance.choice((1, 1, 1, 2)),
            depends_on=parents or None,
            dependency_policy=chance.choice(tuple(DependencyPolicy)),
            on_worker_lost=chance.choice(tuple(OnWorkerLost)),
            max_wall_s=chance.choice((None, None, None, 4.0, 20.0)),
            idle_timeout_s=chance.choice((None, None, None, 6.0)),
            first_output_timeout_s=chance.choice((None, None, None, 3.0)),
            scheduling_timeout_s=chance.choice((None, None, None, 30.0)),
            preemptible=chance.random() < 0.6,
            on_preempt=chance.choice(tuple(OnPreempt)),
            checkpoint_grace_s=chance.choice((0.0, 1.0, 3.0)),
            count=count,
            max_parallel=chance.choice((None, 1, 2)) if count else None,
            max_failures=chance.choice((None, None, 1, 2)) if count else None,
            depends_on_array=[chance.choice(self.arrays)] if self.arrays and chance.random() < 0.15 else None,
            retries=chance.choice((0, 0, 1, 2)),
            retry_delay_s=chance.choice((0.0, 1.0, 4.0)),
            not_before=chance.choice((None, None, None, 5.0)),
        )
