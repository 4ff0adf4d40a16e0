"""A worker process, a real broker on its socket, and real jobs: deaths, restarts, outages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, Job, JobSpec
from broker.wire.settings import BrokerSettings
from broker.wire.states import JobState
from support.processes import processes_of
from support.waiting import eventually

SETTINGS = BrokerSettings(lease_s=4, sweep_s=0.2, heartbeat_s=0.3, poll_s=2)
ENDED = {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.ORPHANED}


class Machine:
    """A broker in this process and a worker in its own, on one state directory; both can be ended and started."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.client = BrokerClient(f"unix://{state}/broker.sock")
        self.worker: subprocess.Popen[bytes] | None = None
        self._broker = contextlib.AsyncExitStack()

    async def start_broker(self) -> None:
        await self._broker.enter_async_context(run_broker(SETTINGS, self.state, {"HOME": str(self.state)}))

    async def stop_broker(self) -> None:
        await self._broker.aclose()

    def start_worker(self, **environ: str) -> subprocess.Popen[bytes]:
        """With nothing in its environment but where the state is."""
        with open(self.state / "worker.log", "ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-I", "-m", "worker", "jobd", "worker"],
                env={"JOBD_STATE_DIR": str(self.state)} | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.worker

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait(10)

    async def submit(self, command: str, **fields: object) -> int:
        submitted = await self.client.job_submit(JobSpec(command=command, **fields))
        assert submitted.id is not None
        return submitted.id

    async def reach(self, job: int, *states: JobState, within_s: float = 20) -> Job:
        async def there() -> Job | None:
            found = await self.client.job_get(job, detail="full")
            return found if found.state in states else None

        return await eventually(there, within_s=within_s)

    async def output(self, job: int) -> bytes:
        """The whole log, once the broker says that it is complete."""

        async def complete() -> bool:
            found = await self.client.job_get(job, detail="full")
            return bool(found.assignments and found.assignments[-1].log_complete)

        await eventually(complete, within_s=20)
        return b"".join([piece async for piece in self.client.job_output(job)])

    async def events(self, job: int) -> list[EventType]:
        return [event.type for event in (await self.client.job_events(job=job, limit=500)).events]


@pytest.fixture
async def machine(state_dir: Path) -> AsyncIterator[Machine]:
    state_dir.mkdir()
    machine = Machine(state_dir)
    await machine.start_broker()
    machine.start_worker()
    yield machine
    if machine.worker is not None and machine.worker.poll() is None:
        machine.worker.send_signal(signal.SIGTERM)
        machine.worker.wait(10)
    await machine.client.aclose()
    await machine.stop_broker()


@pytest.mark.guarantee("G11")
async def test_after_kill_9_of_the_worker_the_job_goes_on_and_its_real_end_and_whole_output_arrive(
    machine: Machine,
) -> None:
    job = await machine.submit(
        f"echo ran >> {machine.state}/marks; for i in $(seq 1 200); do echo line $i; sleep 0.01; done; exit 42"
    )
    await machine.reach(job, JobState.RUNNING)
    machine.kill_worker()
    await asyncio.sleep(0.3)
    machine.start_worker()
    ended = await machine.reach(job, JobState.FAILED)
    assert ended.exit_code == 42
    assert await machine.output(job) == b"".join(b"line %d\n" % i for i in range(1, 201))
    assert (machine.state / "marks").read_text() == "ran\n"
    events = await machine.events(job)
    assert events.count(EventType.JOB_STARTED) == 1
    assert EventType.ASSIGNMENT_EXPIRED not in events
    assert ended.attempt == 1


@pytest.mark.guarantee("G15")
async def test_a_broker_that_is_away_for_five_seconds_loses_no_byte(machine: Machine) -> None:
    job = await machine.submit("for i in $(seq 1 300); do echo line $i; sleep 0.02; done; head -c 300000 /dev/zero")
    await machine.reach(job, JobState.RUNNING)
    await machine.stop_broker()
    await asyncio.sleep(5)  # the outage itself, not a wait for something
    await machine.start_broker()
    ended = await machine.reach(job, JobState.COMPLETED, within_s=40)
    assert ended.attempt == 1
    expected = b"".join(b"line %d\n" % i for i in range(1, 301)) + bytes(300_000)
    assert await machine.output(job) == expected


async def test_a_worker_takes_work_again_soon_after_the_broker_came_back(machine: Machine) -> None:
    await machine.reach(await machine.submit("true"), JobState.COMPLETED)
    for _ in range(2):
        await machine.stop_broker()
        await machine.start_broker()
        await machine.reach(await machine.submit("true"), JobState.COMPLETED, within_s=10)


async def test_a_worker_that_is_told_to_end_goes_at_once_and_its_jobs_go_on(machine: Machine) -> None:
    job = await machine.submit(f"while [ ! -e {machine.state}/go ]; do sleep 0.02; done; echo done; exit 5")
    await machine.reach(job, JobState.RUNNING)
    machine.worker.send_signal(signal.SIGTERM)
    assert machine.worker.wait(5) == 0
    assert processes_of(machine.state)
    (machine.state / "go").touch()
    machine.start_worker()
    assert (await machine.reach(job, JobState.FAILED)).exit_code == 5
    assert await machine.output(job) == b"done\n"


@pytest.mark.trial("B09")
async def test_a_job_that_died_with_its_worker_and_shim_is_queued_again_by_the_next_epoch(machine: Machine) -> None:
    job = await machine.submit(
        f"if [ $JOBD_ATTEMPT = 1 ]; then touch {machine.state}/up; sleep 60; fi; echo attempt $JOBD_ATTEMPT $JOBD_RESTARTS"
    )
    await machine.reach(job, JobState.RUNNING)
    await eventually((machine.state / "up").exists)
    machine.kill_worker()
    for process in processes_of(machine.state):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: not processes_of(machine.state))
    machine.start_worker()
    ended = await machine.reach(job, JobState.COMPLETED)
    assert ended.attempt == 2
    assert await machine.output(job) == b"attempt 2 1\n"
    assert EventType.ASSIGNMENT_EXPIRED in await machine.events(job)


@pytest.mark.trial("B23")
@pytest.mark.guarantee("G13")
async def test_cancel_ends_the_whole_tree_also_after_a_restart_of_the_worker(machine: Machine) -> None:
    job = await machine.submit(
        "trap '' TERM; (setsid sleep 71 &) ; echo up; while :; do sleep 0.1; done", checkpoint_grace_s=0.3
    )
    await machine.reach(job, JobState.RUNNING)
    machine.kill_worker()
    machine.start_worker()
    await machine.client.job_cancel(CancelRequest(job=[job]))
    await machine.reach(job, JobState.CANCELLED)
    shown = [process.command for process in processes_of(machine.state)]
    assert not any("sleep" in command or "trap" in command for command in shown)


@pytest.mark.trial("B28")
async def test_a_silent_job_hears_of_its_cancel_within_a_second_of_the_grace(machine: Machine) -> None:
    job = await machine.submit("sleep 72")
    await machine.reach(job, JobState.RUNNING)
    await machine.client.job_cancel(CancelRequest(job=[job]))
    await machine.reach(job, JobState.CANCELLED, within_s=5)


@pytest.mark.guarantee("G16")
async def test_a_missing_cwd_makes_the_job_wait_and_says_why(machine: Machine) -> None:
    job = await machine.submit("true", cwd="/no/such/place")

    async def refused() -> bool:
        return EventType.ASSIGNMENT_REFUSED in await machine.events(job)

    await eventually(refused)
    found = await machine.reach(job, JobState.QUEUED)
    assert found.waiting is not None
    assert "/no/such/place" in found.waiting.message


async def test_a_program_that_does_not_exist_fails_with_its_path_and_no_exit_code(machine: Machine) -> None:
    submitted = await machine.client.job_submit(JobSpec(argv=["/no/such/program"]))
    ended = await machine.reach(submitted.id, JobState.FAILED)
    assert ended.exit_code is None
    assert ended.reason.code == "launch_failed"
    assert "/no/such/program" in ended.reason.message


@pytest.mark.guarantee("G19")
@pytest.mark.trial("B69")
async def test_no_credential_reaches_a_job_and_its_environment_is_the_users(machine: Machine) -> None:
    machine.worker.send_signal(signal.SIGTERM)
    machine.worker.wait(10)
    machine.start_worker(JOBD_TOKEN="jobd_secret_1", OTHER_SECRET="secret_2")
    job = await machine.submit("env; cat /proc/$PPID/environ; ls -l /proc/$$/fd; pwd", env={"MINE": "yes"})
    await machine.reach(job, JobState.COMPLETED)
    text = (await machine.output(job)).decode()
    assert "secret" not in text
    assert "JOBD_TOKEN" not in text
    lines = text.splitlines()
    assert "MINE=yes" in lines
    assert f"JOBD_JOB_ID={job}" in lines
    assert "JOBD_ATTEMPT=1" in lines
    assert "CUDA_VISIBLE_DEVICES=" in lines
    assert any(line.startswith("HOME=/") for line in lines)
    assert any(line.startswith("PATH=") and "/usr/bin" in line for line in lines)
    descriptors = [line.split(" -> ")[0].split()[-1] for line in lines if " -> " in line]
    assert sorted(descriptors) == ["0", "1", "2"]
    assert lines[-1] == str(machine.state / "worker" / "scratch" / f"{job}.1")


async def test_the_checkpoint_directory_is_kept_over_attempts_and_the_scratch_directory_is_not(
    machine: Machine,
) -> None:
    job = await machine.submit(
        f'ls "$JOBD_CHECKPOINT_DIR" "$JOBD_JOB_DIR"; touch "$JOBD_CHECKPOINT_DIR/saved" "$JOBD_JOB_DIR/scratched";'
        f" if [ $JOBD_ATTEMPT = 1 ]; then touch {machine.state}/up; sleep 60; fi"
    )
    await eventually((machine.state / "up").exists)
    machine.kill_worker()
    for process in processes_of(machine.state):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    machine.start_worker()
    assert (await machine.reach(job, JobState.COMPLETED)).attempt == 2
    text = (await machine.output(job)).decode()
    assert "saved" in text
    assert "scratched" not in text


async def test_a_second_worker_on_the_same_state_is_refused(machine: Machine) -> None:
    await machine.reach(await machine.submit("true"), JobState.COMPLETED)
    second = subprocess.run(
        [sys.executable, "-I", "-m", "worker", "jobd", "worker"],
        env={"JOBD_STATE_DIR": str(machine.state)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 4
    assert b"another worker" in second.stderr


async def test_two_workers_with_names_of_their_own_share_a_machine(machine: Machine) -> None:
    other = subprocess.Popen(
        [sys.executable, "-I", "-m", "worker", "jobd", "worker"],
        env={"JOBD_STATE_DIR": str(machine.state), "JOBD_WORKER_NAME": "second"},
        stderr=subprocess.DEVNULL,
    )
    try:
        job = await machine.submit("echo here", worker="second")
        assert (await machine.reach(job, JobState.COMPLETED)).worker == "second"
    finally:
        other.terminate()
        assert other.wait(10) == 0


async def test_an_unknown_setting_ends_the_worker_with_a_suggestion(state_dir: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-I", "-m", "worker", "jobd", "worker"],
        env={"JOBD_STATE_DIR": str(state_dir), "JOBD_WORKER_SLOT": "3"},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert b"JOBD_WORKER_SLOTS" in ended.stderr
    assert b"Traceback" not in ended.stderr
