"""The life of an assignment: real shims and processes, and a broker that says what a test tells it to say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.client import Unreachable
from broker.wire.jobs import JobSpec, Progress
from broker.wire.outcomes import OutcomeLimits
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import OnWorkerLost
from broker.wire.workers import (
    PROTOCOL,
    Delivery,
    Outcome,
    Phase,
    Registration,
    Report,
    ReportAnswer,
    Stop,
    Verdict,
    VerdictWord,
)
from support.processes import processes_of
from support.scripted_broker import REGISTERED, ScriptedBroker, accept_all, verdict_on
from support.waiting import eventually
from worker.admission import Ground
from worker.agent import EXIT_MUST_END, Agent, Setup
from worker.environment import User, login_environment
from worker.home import Home
from worker.shims import Shims

LOGIN = login_environment(User.of_this_process())


@dataclass
class Bench:
    """A worker in this process that can be ended and started again on the same directory."""

    state: Path
    broker: ScriptedBroker = field(default_factory=ScriptedBroker)
    agent: Agent | None = None
    running: asyncio.Task[int] | None = None
    held: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self) -> None:
        home = self.held.enter_context(Home.take(self.state / "worker"))
        shims = Shims(home.directory)
        shims.start()
        self.held.push_async_callback(shims.aclose)
        setup = Setup(
            Registration(name="w", epoch=home.epoch, machine="m", host="h", version="0", protocol=PROTOCOL, slots=4),
            Ground(host="h", login=LOGIN, state=home.directory),
            self.state / "checkpoints",
            linger_s=1,
            log_cap=1 << 30,
        )
        self.agent = Agent(home, shims, self.broker, setup)
        self.running = asyncio.create_task(self.agent.run())

    async def die(self) -> None:
        """End at once, without a word to anybody, as a killed worker does."""
        assert self.running is not None
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running
        await self.held.aclose()

    async def submit(self, command: str, job: int = 1, **fields: object) -> None:
        spec = JobSpec(command=command, **fields)
        self.broker.deliver(Delivery(job=job, attempt=1, token="t", spec=spec, lease_s=1, restarts=0))

    async def ended(self, job: int = 1, within_s: float = 15):
        return await eventually(lambda: self.broker.final(job), within_s=within_s)

    async def cleared(self, job: int = 1) -> None:
        await eventually(lambda: not (self.state / "worker" / "assignments" / f"{job}.1").exists())

    def marks(self) -> list[str]:
        """What jobs wrote into the file `marks`: each execution leaves a line."""
        path = self.state / "marks"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
async def bench(state_dir: Path) -> AsyncIterator[Bench]:
    state_dir.mkdir()
    bench = Bench(state_dir)
    yield bench
    await bench.die()


def answering(kind: str, words: Callable[[int], VerdictWord], *, bench: Bench):
    """A broker that answers transitions of one kind with these words, counted from 0, and accepts the rest."""
    count = 0

    async def answer(report: Report) -> ReportAnswer:
        nonlocal count
        verdicts = []
        for transition in report.transitions:
            word = VerdictWord.ACCEPTED
            if transition.kind == kind:
                word = words(count)
                count += 1
            verdicts.append(verdict_on(transition, word))
        return ReportAnswer(verdicts=verdicts)

    bench.broker.on_report = answer


def held_verdict(word: VerdictWord, *, when: Callable[[Report], bool]):
    """A broker that accepts transitions and says this of each entry of the list, when that holds."""

    async def answer(report: Report) -> ReportAnswer:
        base = await accept_all(report)
        held = [Verdict(kind="held", job=h.job, attempt=h.attempt, verdict=word) for h in report.held if when(report)]
        return ReportAnswer(verdicts=[*(v for v in base.verdicts if v.kind != "held"), *held])

    return answer


async def test_a_job_runs_once_and_its_output_and_end_arrive(bench: Bench) -> None:
    await bench.start()
    await bench.submit(f"echo out; echo err >&2; echo ran >> {bench.state}/marks; exit 7")
    final = await bench.ended()
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 7)
    # A job this short may have ended before its start was looked at: its end implies it.
    assert [kind for kind in bench.broker.kinds(1) if kind != "start"] == ["ack", "finish"]
    await bench.cleared()
    assert sorted(bytes(bench.broker.kept[1, "log"]).splitlines()) == [b"err", b"out"]
    assert len(bench.broker.kept[1, "index"]) == final.final_index_size > 0
    assert bench.marks() == ["ran"]
    await eventually(lambda: not list((bench.state / "worker" / "scratch").iterdir()))


@pytest.mark.guarantee("G3")
async def test_nothing_is_executed_before_the_ack_was_accepted(bench: Bench) -> None:
    gate = asyncio.Event()

    async def slow(report: Report) -> ReportAnswer:
        if report.transitions:
            await gate.wait()
        return await accept_all(report)

    bench.broker.on_report = slow
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    await eventually(lambda: "ack" in bench.broker.kinds(1))
    assert bench.marks() == []
    assert all(held.phase is Phase.PREPARING for poll in bench.broker.polls for held in poll.held)
    gate.set()
    await bench.ended()
    assert bench.marks() == ["ran"]


@pytest.mark.guarantee("G3")
async def test_an_ack_that_is_stale_closes_the_shim_and_nothing_runs(bench: Bench) -> None:
    answering("ack", lambda count: VerdictWord.STALE_ASSIGNMENT, bench=bench)
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    await eventually(lambda: bench.broker.kinds(1))
    await bench.cleared()
    assert bench.marks() == []
    assert bench.broker.final(1) is None


async def test_an_ack_that_was_lost_with_its_lease_proves_that_nothing_ran(bench: Bench) -> None:
    answering("ack", lambda count: VerdictWord.LEASE_LOST, bench=bench)
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    final = await bench.ended()
    assert final.outcome is Outcome.NEVER_EXECUTED
    assert bench.marks() == []
    await bench.cleared()


async def test_an_ack_without_an_answer_within_the_pending_lease_is_given_up(bench: Bench) -> None:
    async def lost(report: Report) -> ReportAnswer:
        if any(transition.kind == "ack" for transition in report.transitions):
            raise Unreachable("lost")
        return await accept_all(report)

    bench.broker.on_report = lost
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    assert (await bench.ended()).outcome is Outcome.NEVER_EXECUTED
    assert bench.marks() == []


async def test_an_ack_whose_answer_comes_after_its_lease_is_asked_again(bench: Bench) -> None:
    bench.broker.registered = REGISTERED.model_copy(update={"lease_s": 0.4})
    acks = 0

    async def late_once(report: Report) -> ReportAnswer:
        nonlocal acks
        if any(transition.kind == "ack" for transition in report.transitions):
            acks += 1
            if acks == 1:
                await asyncio.sleep(0.6)
        return await accept_all(report)

    bench.broker.on_report = late_once
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    assert (await bench.ended()).outcome is Outcome.EXITED
    assert acks >= 2
    assert bench.marks() == ["ran"]


@pytest.mark.guarantee("G14")
async def test_a_stop_that_comes_before_the_ack_is_answered_prevents_the_start(bench: Bench) -> None:
    stop = Stop(job=1, attempt=1, id="s1", why="cancelled", grace_s=1)

    async def stop_with_the_ack(report: Report) -> ReportAnswer:
        answer = await accept_all(report)
        if report.held and not any(held.stopping for held in report.held):
            return ReportAnswer(verdicts=[v for v in answer.verdicts if v.kind != "ack"], stops=[stop])
        return answer

    bench.broker.on_report = stop_with_the_ack
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    assert (await bench.ended()).outcome in (Outcome.NEVER_EXECUTED, Outcome.STOPPED)
    assert bench.marks() == []


async def test_a_stop_is_listed_until_the_tree_is_gone_and_its_end_says_which(bench: Bench) -> None:
    await bench.start()
    await bench.submit("trap '' TERM; echo up; while :; do sleep 0.1; done")
    await eventually(lambda: bench.broker.kept[1, "log"])
    bench.agent.stop(Stop(job=1, attempt=1, id="s1", why="cancelled by ada", grace_s=0.3))
    await eventually(lambda: any(held.stopping == "s1" for report in bench.broker.reports for held in report.held))
    final = await bench.ended()
    assert (final.outcome, final.stop, final.signal) == (Outcome.STOPPED, "s1", "SIGKILL")
    await bench.cleared()


@pytest.mark.guarantee("G5")
async def test_what_the_broker_gave_up_is_stopped_and_listed_until_it_is_gone(bench: Bench) -> None:
    await bench.start()
    await bench.submit("trap '' TERM; echo up; while :; do sleep 0.1; done")
    await eventually(lambda: bench.broker.kept[1, "log"])
    bench.broker.on_report = held_verdict(VerdictWord.STALE_ASSIGNMENT, when=lambda report: True)
    await bench.cleared()
    assert bench.broker.final(1) is None
    await eventually(lambda: not bench.broker.reports[-1].held)


async def test_after_a_lost_lease_a_running_process_goes_on_and_is_listed(bench: Bench) -> None:
    await bench.start()
    await bench.submit(f"echo up; while [ ! -e {bench.state}/go ]; do sleep 0.05; done; exit 3")
    await eventually(lambda: bench.broker.kinds(1) == ["ack", "start"])
    bench.broker.on_report = held_verdict(VerdictWord.LEASE_LOST, when=lambda report: True)
    count = len(bench.broker.reports)
    await eventually(lambda: len(bench.broker.reports) > count + 3)
    assert bench.broker.reports[-1].held[0].phase is Phase.RUNNING
    bench.broker.on_report = accept_all
    (bench.state / "go").touch()
    assert (await bench.ended()).exit_code == 3


async def test_a_finish_that_is_refused_for_a_lost_lease_is_listed_with_its_end_until_accepted(bench: Bench) -> None:
    answering("finish", lambda count: VerdictWord.LEASE_LOST if count < 2 else VerdictWord.DUPLICATE, bench=bench)
    await bench.start()
    await bench.submit("exit 5")
    await eventually(lambda: bench.broker.kinds(1))
    await bench.cleared()
    listed = [held for report in bench.broker.reports for held in report.held if held.phase is Phase.ENDED]
    assert listed
    assert all(held.final is not None and held.final.exit_code == 5 for held in listed)


@pytest.mark.guarantee("G15")
async def test_nothing_is_removed_before_the_output_is_durable(bench: Bench) -> None:
    bench.broker.durable_lag = 1
    await bench.start()
    await bench.submit("echo hello")
    await bench.ended()
    count = len(bench.broker.chunks)
    await eventually(lambda: len(bench.broker.chunks) > count + 2)
    assert (bench.state / "worker" / "assignments" / "1.1" / "out").exists()
    assert not bench.broker.reports[-1].held  # its end is known: no resources are held by it
    bench.broker.durable_lag = 0
    await bench.cleared()


@pytest.mark.guarantee("G4", "G11")
async def test_a_new_epoch_finds_a_running_job_and_nothing_starts_twice(bench: Bench) -> None:
    await bench.start()
    await bench.submit(
        f"echo one; echo ran >> {bench.state}/marks; while [ ! -e {bench.state}/go ]; do sleep 0.05; done; echo two; exit 9"
    )
    await eventually(lambda: bench.broker.kept[1, "log"] == b"one\n")
    await bench.die()
    (bench.state / "go").touch()
    await bench.start()
    final = await bench.ended()
    assert final.exit_code == 9
    await bench.cleared()
    assert bench.broker.kept[1, "log"] == b"one\ntwo\n"
    assert bench.marks() == ["ran"]
    first_of_epoch_2 = next(message for message in [*bench.broker.polls, *bench.broker.reports] if message.epoch == 2)
    assert first_of_epoch_2.recovered
    assert [(held.job, held.attempt) for held in first_of_epoch_2.held] == [(1, 1)]


async def test_a_new_epoch_closes_what_was_never_executed_and_says_so(bench: Bench) -> None:
    async def no_verdicts(report: Report) -> ReportAnswer:
        return ReportAnswer()

    bench.broker.on_report = no_verdicts
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks")
    await eventually(lambda: "ack" in bench.broker.kinds(1))
    await bench.die()
    bench.broker.on_report = accept_all
    await bench.start()
    assert (await bench.ended()).outcome is Outcome.NEVER_EXECUTED
    await bench.cleared()
    assert bench.marks() == []


async def test_a_job_that_ended_while_no_worker_was_there_is_reported_with_its_code(bench: Bench) -> None:
    await bench.start()
    await bench.submit(f"while [ ! -e {bench.state}/go ]; do sleep 0.02; done; echo last; exit 4")
    await eventually(lambda: "start" in bench.broker.kinds(1))
    await bench.die()
    (bench.state / "go").touch()
    await eventually((bench.state / "worker" / "assignments" / "1.1" / "exit.json").exists)
    await bench.start()
    assert (await bench.ended()).exit_code == 4
    await bench.cleared()
    assert bench.broker.kept[1, "log"] == b"last\n"


async def test_a_job_without_a_worker_is_stopped_by_its_shim_after_a_lease(bench: Bench) -> None:
    bench.broker.registered = REGISTERED.model_copy(update={"lease_s": 0.5})
    await bench.start()
    await bench.submit("sleep 60", checkpoint_grace_s=0.2)
    await eventually(lambda: "start" in bench.broker.kinds(1))
    await bench.die()
    await eventually((bench.state / "worker" / "assignments" / "1.1" / "exit.json").exists)
    await bench.start()
    assert (await bench.ended()).outcome is Outcome.LEASE_ENDED


@pytest.mark.guarantee("G8")
async def test_an_orphan_policy_lets_the_job_go_on_without_a_worker(bench: Bench) -> None:
    bench.broker.registered = REGISTERED.model_copy(update={"lease_s": 0.3})
    await bench.start()
    await bench.submit(
        f"while [ ! -e {bench.state}/go ]; do sleep 0.02; done; exit 6", on_worker_lost=OnWorkerLost.ORPHAN
    )
    await eventually(lambda: "start" in bench.broker.kinds(1))
    await bench.die()
    await asyncio.sleep(0.8)  # longer than the lease: nothing may happen
    (bench.state / "go").touch()
    await bench.start()
    assert (await bench.ended()).exit_code == 6


async def cut(message: object) -> ReportAnswer:
    raise Unreachable("cut off")


async def test_without_the_network_a_requeue_job_goes_on_and_spools(bench: Bench) -> None:
    bench.broker.registered = REGISTERED.model_copy(update={"lease_s": 0.4})
    await bench.start()
    await bench.submit(f"while [ ! -e {bench.state}/go ]; do sleep 0.02; done; echo after; exit 2")
    await eventually(lambda: "start" in bench.broker.kinds(1))
    bench.broker.on_report = bench.broker.on_poll = cut
    await asyncio.sleep(1.2)  # three leases without the broker
    assert processes_of(bench.state)
    (bench.state / "go").touch()
    bench.broker.on_report, bench.broker.on_poll = accept_all, None
    assert (await bench.ended()).exit_code == 2


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("lease_s", [0.4, 600], ids=["longer than a lease", "shorter than a lease"])
async def test_without_the_network_an_exclusive_job_is_stopped_at_the_end_of_its_exclusive_lease(
    bench: Bench, lease_s: float
) -> None:
    bench.broker.registered = REGISTERED.model_copy(update={"lease_s": lease_s, "exclusive_lease_s": 1.0})
    await bench.start()
    await bench.submit("sleep 60", on_worker_lost=OnWorkerLost.REQUEUE_EXCLUSIVE, checkpoint_grace_s=0.1)
    await eventually(lambda: "start" in bench.broker.kinds(1))
    count = len(bench.broker.reports)
    await eventually(lambda: len(bench.broker.reports) > count + 12)  # renewed for longer than one exclusive lease
    assert bench.broker.final(1) is None
    bench.broker.on_report = bench.broker.on_poll = cut
    await eventually((bench.state / "worker" / "assignments" / "1.1" / "exit.json").exists, within_s=10)
    bench.broker.on_report, bench.broker.on_poll = accept_all, None
    assert (await bench.ended()).outcome is Outcome.LEASE_ENDED


@pytest.mark.guarantee("G9")
async def test_a_lease_that_was_renewed_before_the_shim_listened_still_ends(bench: Bench) -> None:
    bench.broker.registered = REGISTERED.model_copy(update={"exclusive_lease_s": 5.0})
    await bench.start()
    forkers = [process.pid for process in processes_of(bench.state)]
    for pid in forkers:
        os.kill(pid, signal.SIGSTOP)
    await bench.submit("sleep 60", on_worker_lost=OnWorkerLost.REQUEUE_EXCLUSIVE, checkpoint_grace_s=0.1)
    await eventually(lambda: sum(bool(report.held) for report in bench.broker.reports) > 1)
    bench.broker.on_report = bench.broker.on_poll = cut
    for pid in forkers:
        os.kill(pid, signal.SIGCONT)
    await eventually((bench.state / "worker" / "assignments" / "1.1" / "running").exists)
    await eventually((bench.state / "worker" / "assignments" / "1.1" / "exit.json").exists, within_s=20)
    bench.broker.on_report, bench.broker.on_poll = accept_all, None
    assert (await bench.ended()).outcome is Outcome.LEASE_ENDED


async def test_a_missing_cwd_is_refused_without_an_ack(bench: Bench) -> None:
    await bench.start()
    await bench.submit("true", cwd="/no/such/place")
    final = await bench.ended()
    assert (final.outcome, final.reason_code) == (Outcome.REFUSED, "cwd_missing")
    assert bench.broker.kinds(1) == ["finish"]


@pytest.mark.parametrize(
    ("spec", "outcome", "exit_code"),
    [
        ({"argv": ["/no/such/program"]}, Outcome.LAUNCH_FAILED, None),
        ({"argv": ["/etc/passwd"]}, Outcome.LAUNCH_FAILED, None),
        ({"command": "exit 127"}, Outcome.EXITED, 127),
        ({"command": "exit 126"}, Outcome.EXITED, 126),
    ],
)
@pytest.mark.guarantee("G16")
async def test_launch_errors_are_told_from_the_programs_own_codes(
    bench: Bench, spec: dict[str, object], outcome: Outcome, exit_code: int | None
) -> None:
    await bench.start()
    delivery = Delivery(job=1, attempt=1, token="t", spec=JobSpec(**spec), lease_s=1, restarts=0)
    bench.broker.deliver(delivery)
    final = await bench.ended()
    assert (final.outcome, final.exit_code) == (outcome, exit_code)
    if outcome is Outcome.LAUNCH_FAILED:
        assert spec["argv"][0] in final.reason


@pytest.mark.guarantee("G4")
async def test_a_delivery_that_is_repeated_runs_once(bench: Bench) -> None:
    await bench.start()
    await bench.submit(f"echo ran >> {bench.state}/marks; sleep 0.3")
    await eventually(lambda: "ack" in bench.broker.kinds(1))
    await bench.submit(f"echo ran >> {bench.state}/marks; sleep 0.3")
    await bench.ended()
    await bench.cleared()
    assert bench.marks() == ["ran"]


@pytest.mark.trial("B101")
async def test_many_jobs_at_once_each_end_with_their_own_code_and_output(bench: Bench) -> None:
    await bench.start()
    for job in range(1, 21):
        await bench.submit(f"echo job {job}; exit {job}", job=job)
    for job in range(1, 21):
        assert (await bench.ended(job)).exit_code == job
        await bench.cleared(job)
        assert bench.broker.kept[job, "log"] == b"job %d\n" % job


@pytest.mark.trial("B101")
async def test_the_environment_of_a_job_is_its_own_and_its_descriptors_are_three(bench: Bench) -> None:
    await bench.start()
    await bench.submit("ls /proc/self/fd | tr '\\n' ' '; env | sort", env={"MINE": "1"})
    await bench.ended()
    await bench.cleared()
    text = bytes(bench.broker.kept[1, "log"]).decode()
    descriptors, _, rest = text.partition("\n") if "\n" in text.split("_=")[0] else (text, "", text)
    assert descriptors.split()[:4] == ["0", "1", "2", "3"]  # 3 is the directory that ls itself opened
    assert "MINE=1" in rest
    assert "JOBD_JOB_ID=1" in text
    assert "JOBD_TOKEN" not in text
    assert f"JOBD_JOB_DIR={bench.state}/worker/scratch/1.1" in text


async def test_a_superseded_worker_ends_and_leaves_its_jobs_alone(bench: Bench) -> None:
    async def refuse(report: Report) -> ReportAnswer:
        raise Refused(ProblemCode.SUPERSEDED, "epoch 2 is here")

    await bench.start()
    await bench.submit(f"while [ ! -e {bench.state}/go ]; do sleep 0.02; done; exit 8")
    await eventually(lambda: "start" in bench.broker.kinds(1))
    bench.broker.on_report = refuse
    assert await asyncio.wait_for(bench.running, 10) == EXIT_MUST_END
    await bench.held.aclose()
    assert not (bench.state / "worker" / "assignments" / "1.1" / "exit.json").exists()
    bench.broker.on_report = accept_all
    (bench.state / "go").touch()
    await bench.start()
    assert (await bench.ended()).exit_code == 8


# ---- what it leaves

KEEPS = REGISTERED.model_copy(
    update={"outcomes": OutcomeLimits(artifact_bytes=1 << 30, artifacts_bytes=1 << 30, artifacts=100)}
)


@pytest.mark.guarantee("G44")
async def test_what_it_leaves_arrives_and_its_end_does_not_wait_for_files(bench: Bench) -> None:
    bench.broker.registered = KEEPS
    gate = asyncio.Event()

    def hold(name: str, offset: int) -> None:
        if not gate.is_set():
            raise Unreachable("not yet")

    bench.broker.before_piece = hold
    await bench.start()
    await bench.submit(
        "echo '{\"a\": 1}' > $JOBD_RESULT_FILE; printf '0.5 half' >> $JOBD_PROGRESS_FILE; echo hi > $JOBD_ARTIFACTS_DIR/f"
    )
    final = await bench.ended()
    assert bench.broker.results == {1: b'{"a":1}'}
    assert final.progress == Progress(fraction=0.5, message="half")
    assert (final.left.artifacts, final.left.artifacts_bytes) == (1, 3)
    await eventually(lambda: bench.broker.pieces)
    assert not bench.broker.artifacts[1, "f"]

    await bench.die()
    gate.set()
    await bench.start()
    await bench.cleared()
    assert bytes(bench.broker.artifacts[1, "f"]) == b"hi\n"
    await eventually(lambda: not list((bench.state / "worker" / "outbox").iterdir()))


async def test_what_ended_while_no_worker_was_there_is_looked_at_once_the_broker_says_that_it_keeps_it(
    bench: Bench,
) -> None:
    bench.broker.registered = KEEPS
    await bench.start()
    await bench.submit(
        "echo up; until [ -e $JOBD_JOB_DIR/gate ]; do sleep 0.02; done; echo hi > $JOBD_ARTIFACTS_DIR/f; echo 7 > $JOBD_RESULT_FILE"
    )
    gate = bench.state / "worker" / "scratch" / "1.1" / "gate"
    await eventually(lambda: bytes(bench.broker.kept[1, "log"]) == b"up\n")
    await bench.die()
    gate.write_text("go\n")
    assert bench.broker.final(1) is None
    bench.broker.register_s = 0.5
    await bench.start()
    final = await bench.ended()
    assert final.left is not None
    assert final.left.artifacts == 1
    await bench.cleared()
    assert (bytes(bench.broker.artifacts[1, "f"]), bench.broker.results) == (b"hi\n", {1: b"7"})


async def test_a_result_that_can_not_be_taken_now_follows_its_end(bench: Bench) -> None:
    bench.broker.registered = KEEPS

    def full(job: int) -> None:
        if bench.broker.final(job) is None:
            raise Refused(ProblemCode.LEASE_LOST, "lost")

    bench.broker.before_result = full
    await bench.start()
    await bench.submit("echo 7 > $JOBD_RESULT_FILE; exit 3")
    assert (await bench.ended()).exit_code == 3
    await bench.cleared()
    assert bench.broker.results == {1: b"7"}


@pytest.mark.guarantee("G44")
async def test_many_lines_of_progress_are_no_reports(bench: Bench) -> None:
    bench.broker.registered = KEEPS.model_copy(update={"heartbeat_s": 0.4})
    await bench.start()
    await bench.submit(
        f"for i in $(seq 0 999); do echo 0.$i step $i >> $JOBD_PROGRESS_FILE; done; touch {bench.state}/written; "
        f"while [ ! -e {bench.state}/go ]; do sleep 0.05; done"
    )
    await eventually((bench.state / "written").exists)

    def told() -> list[float]:
        said = (held.progress for report in bench.broker.reports for held in report.held if held.progress)
        return sorted({progress.fraction for progress in said})

    await eventually(lambda: 0.999 in told())
    assert len(told()) < 50
    (bench.state / "go").touch()
    await bench.ended()


async def test_a_broker_that_knows_nothing_of_it_is_told_nothing(bench: Bench) -> None:
    await bench.start()
    await bench.submit("echo 7 | tee $JOBD_RESULT_FILE $JOBD_PROGRESS_FILE > $JOBD_ARTIFACTS_DIR/f")
    final = await bench.ended()
    await bench.cleared()
    assert (final.progress, final.left) == (None, None)
    assert (bench.broker.results, bench.broker.pieces) == ({}, [])
    assert all(held.progress is None for report in bench.broker.reports for held in report.held)
