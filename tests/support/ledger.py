"""What was asked of a fleet, what its jobs really did by their own record, and whether the broker says the same."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker.client import BrokerClient, Unreachable
from broker.wire.jobs import Assignment, CancelRequest, Job, JobSpec
from broker.wire.problems import Refused
from broker.wire.states import JobState
from support.fleet import Fleet
from support.folding import differences_in
from support.processes import Process, processes_of
from support.waiting import eventually

AGAIN_S = 0.05
SILENCE = ("worker_lost", "lease_ended")
"""Why what was executed, and not killed, may be given up: one of both sides heard nothing for a whole lease."""


@dataclass(frozen=True)
class Asked:
    """A job whose submit was answered, and how it ends if it is left alone."""

    id: int
    lines: int
    exit_code: int
    policy: str = "requeue"

    @property
    def output(self) -> bytes:
        return b"".join(b"line %d\n" % number for number in range(1, self.lines + 1))


@dataclass
class Ledger:
    """Jobs append to `record`: `start 7.1`, a `beat 7.1` with each line, and `end 7.1 CODE` as their last act."""

    record: Path
    asked: list[Asked] = field(default_factory=list)
    cancelled: dict[int, list[str]] = field(default_factory=dict)
    """Jobs whose cancel was answered, with the attempts that had been executed by then."""
    _names: int = 0

    async def submit(
        self, client: BrokerClient, *, lines: int = 1, pause_s: float = 0.0, exit_code: int = 0, **fields: object
    ) -> Asked:
        """Ask until it is answered. What was not answered may have been taken: then it is found by its name."""
        self._names += 1
        name = f"job-{self._names}"
        command = self._command(lines, pause_s, exit_code)
        spec = JobSpec.model_validate({"command": command, "name": name, **fields})
        while True:
            try:
                found = (await client.job_list(name=name)).jobs
                job = found[0].id if found else (await client.job_submit(spec)).id
                break
            except Unreachable:
                await client_pause()
            except Refused as refusal:
                if not refusal.retryable:
                    raise
                await client_pause()
        assert job is not None
        asked = Asked(job, lines, exit_code, spec.on_worker_lost.value)
        self.asked.append(asked)
        return asked

    def _command(self, lines: int, pause_s: float, exit_code: int) -> str:
        record, me = shlex.quote(str(self.record)), "$JOBD_JOB_ID.$JOBD_ATTEMPT"
        wait = f"sleep {pause_s:g}; " if pause_s else ""
        return (
            f"echo start {me} >> {record}; "
            f"for i in $(seq {lines}); do echo line $i; echo beat {me} >> {record}; {wait}done; "
            f"echo end {me} {exit_code} >> {record}; exit {exit_code}"
        )

    async def cancel(self, client: BrokerClient, asked: Asked) -> None:
        """Ask until it is answered."""
        while True:
            try:
                await client.job_cancel(CancelRequest(job=[asked.id]))
                break
            except Unreachable:
                await client_pause()
        self.cancelled[asked.id] = self.started(asked)

    def lines(self, kind: str) -> list[str]:
        """What the jobs wrote of this kind, in order: `7.1`, and for an end `7.1 CODE`."""
        text = self.record.read_text() if self.record.exists() else ""
        return [line.partition(" ")[2] for line in text.splitlines() if line.startswith(kind + " ")]

    def started(self, asked: Asked) -> list[str]:
        """Its attempts that were executed, in order."""
        return [name for name in self.lines("start") if name.startswith(f"{asked.id}.")]

    async def all_ended(self, client: BrokerClient, *, within_s: float = 60) -> None:
        """Wait until every job that was asked for has ended, whoever dies meanwhile."""

        async def done() -> bool:
            try:
                return all([(await client.job_wait([a.id], timeout_s=0)).done for a in self.asked])
            except Unreachable:
                return False

        await eventually(done, within_s=within_s, every_s=AGAIN_S)

    async def differences(
        self, client: BrokerClient, database: Path, hurt: frozenset[int] = frozenset(), *, workers: bool = True
    ) -> list[str]:
        """A line for each thing that is not as it must be. `hurt`: jobs whose shim or machine was killed.

        `workers`: events tell all of them; those of the first release told less.
        """
        found: list[str] = []
        names = Counter(job.name for job in await every_job(client))
        found += [f"{name} was submitted {count} times" for name, count in names.items() if count > 1]
        for asked in self.asked:
            job = await client.job_get(asked.id, detail="full")
            found += [f"job {asked.id} ({asked.policy}): {said}" for said in self._of_job(asked, job, hurt)]
            found += [f"job {asked.id}: {said}" for said in await self._of_output(client, asked, job)]
        return found + [line for line in differences_in(database) if workers or not line.startswith("workers:")]

    def _of_job(self, asked: Asked, job: Job, hurt: frozenset[int]) -> Iterator[str]:
        attempts = {f"{asked.id}.{a.attempt}": a for a in job.assignments or []}
        started = self.started(asked)
        ends = dict(line.split() for line in self.lines("end") if line.startswith(f"{asked.id}."))
        yield from self._of_end(asked, job, hurt)
        for name, times in Counter(started).items():
            if times > 1:
                yield f"{name} was executed {times} times"
            if name not in attempts:
                yield f"{name} was executed, and the broker knows nothing of it"
        for name, attempt in attempts.items():
            if attempt.exit_code is not None and ends.get(name) != str(attempt.exit_code) and not stopped(attempt):
                yield f"{name} has exit code {attempt.exit_code}, and its process said {ends.get(name)}"
        given_up = [name for name in started if name in attempts and attempts[name].state.value == "expired"]
        for name in given_up if asked.id not in hurt else []:
            reason = attempts[name].reason
            if reason is None or reason.code not in SILENCE:
                yield f"{name} was given up because of {reason}"
        if len(started) - len(given_up) > 1:
            yield f"executed as {started}, of which only {given_up} were given up"
        if asked.policy == "orphan" and len(started) > 1:
            yield f"executed as {started}"
        if asked.policy == "requeue_exclusive" and (mixed := self._mixed(asked.id)):
            yield f"two copies at once: {mixed}"

    def _of_end(self, asked: Asked, job: Job, hurt: frozenset[int]) -> Iterator[str]:
        by_itself = JobState.COMPLETED if asked.exit_code == 0 else JobState.FAILED
        if job.state is by_itself:
            if job.exit_code != asked.exit_code:
                yield f"ended with exit code {job.exit_code} instead of {asked.exit_code}"
            if asked.id in self.cancelled and f"{asked.id}.{job.attempt}" not in self.cancelled[asked.id]:
                yield f"attempt {job.attempt} was executed after the cancel, and ended by itself"
        elif (job.state is JobState.CANCELLED and asked.id in self.cancelled) or (
            job.state is JobState.ORPHANED and asked.policy == "orphan" and asked.id in hurt
        ):
            pass
        else:
            yield f"is {job.state} ({job.reason}) with exit code {job.exit_code}"

    def _mixed(self, job: int) -> list[str]:
        """Beats in the order in which they came, if an earlier attempt's came after a later one's."""
        beats = [int(name.split(".")[1]) for name in self.lines("beat") if name.startswith(f"{job}.")]
        return [] if beats == sorted(beats) else [f"{job}.{attempt}" for attempt in beats]

    async def _of_output(self, client: BrokerClient, asked: Asked, job: Job) -> list[str]:
        """All of the last attempt's output if it ended by itself, and of every other one a beginning."""
        found = []
        for attempt in job.assignments or []:
            whole = attempt.attempt == job.attempt and job.state in (JobState.COMPLETED, JobState.FAILED)
            kept = b"".join([part async for part in client.job_output(asked.id, attempt=attempt.attempt)])
            if whole and not attempt.log_complete:
                found.append(f"attempt {attempt.attempt}: its output is not said to be whole")
            if kept != asked.output if whole else not asked.output.startswith(kept):
                found.append(f"attempt {attempt.attempt} printed {kept[-80:]!r} ({len(kept)} bytes), instead of "
                             f"{asked.output[-80:]!r} ({len(asked.output)})")  # fmt: skip
        return found

    async def settled(self, client: BrokerClient) -> None:
        """Wait until the output of what ended is whole; what is too long by then will not get better."""

        async def whole() -> bool:
            for asked in self.asked:
                try:
                    job = await client.job_get(asked.id, detail="full")
                except Unreachable:
                    return False  # it was killed a moment ago, and is being started again
                last = (job.assignments or [None])[-1]
                ran = last is not None and job.state in (JobState.COMPLETED, JobState.FAILED)
                if ran and not last.log_complete and (last.log_bytes or 0) <= len(asked.output):
                    return False
            return True

        await eventually(whole, within_s=20, every_s=AGAIN_S)


async def client_pause() -> None:
    import anyio

    await anyio.sleep(AGAIN_S)


async def every_job(client: BrokerClient) -> list[Job]:
    page = await client.job_list(limit=100)
    jobs = list(page.jobs)
    while page.next_cursor:
        page = await client.job_list(limit=100, cursor=page.next_cursor)
        jobs += page.jobs
    return jobs


def stopped(attempt: Assignment) -> bool:
    """Its process was ended by a stop, with whatever exit code."""
    return attempt.state.value in ("cancelled", "expired")


def jobs_processes(fleet: Fleet) -> list[Process]:
    """What runs of jobs: all that belongs to the fleet and is none of our own programs."""
    return [process for process in processes_of(fleet.directory) if " jobd " not in f"{process.command} "]


def kept_assignments(fleet: Fleet) -> list[Path]:
    """What living workers still keep of assignments."""
    living = [name for name, process in fleet.workers.items() if process.poll() is None]
    return [path for name in living for path in fleet.directory.glob(f"{name}/workers/*/assignments/*")]
