"""The examples do what they say, as they stand, against an installation of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.states import JobState
from support.fleet import Fleet, ended, output_of
from support.installation import JOB, Ended, Installation
from support.processes import processes_of
from support.waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRAINING = str(EXAMPLES / "train_with_checkpoints.py")
RUN_BY_TESTS = {"first_job.py", "first_job.sh", "sweep.sh", "recovery.sh", "train_with_checkpoints.py", "agent.py"}


def run(installation: Installation, *words: str) -> Ended:
    environ = installation.environ
    environ["PATH"] = f"{JOB.parent}:{environ['PATH']}"
    environ["TMPDIR"] = str(installation.directory / "tmp")
    (installation.directory / "tmp").mkdir()
    done = subprocess.run(
        words,
        cwd=installation.directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=90,
        check=False,
    )
    shown = Ended(done.returncode, done.stdout, done.stderr.decode())
    assert shown.code == 0, shown.text + shown.err
    return shown


def test_every_example_is_run_here_and_named_in_the_readme() -> None:
    programs = {file.name for file in EXAMPLES.iterdir() if file.suffix in (".py", ".sh")}
    assert programs == RUN_BY_TESTS
    readme = (EXAMPLES / "README.md").read_text()
    assert {name for name in programs if f"examples/{name}" not in readme} == set()


def test_a_first_job_from_python_starts_what_it_needs(installation: Installation) -> None:
    shown = run(installation, sys.executable, str(EXAMPLES / "first_job.py")).text
    assert "job 1 is queued" in shown
    assert "job 1 is completed, exit code 0" in shown
    assert "step 3 of 3" in shown


def test_a_first_job_from_the_shell_starts_what_it_needs(installation: Installation) -> None:
    shown = run(installation, "sh", str(EXAMPLES / "first_job.sh")).text
    assert "submitted job 1" in shown
    assert "step 1 of 3\nstep 2 of 3\nstep 3 of 3\n" in shown
    assert "this one fails\nthe second job exited with 3\n" in shown


def test_a_sweep_from_the_shell_tells_its_whole_and_each_member(installation: Installation) -> None:
    shown = run(installation, "sh", str(EXAMPLES / "sweep.sh")).text
    assert "array 1: one of its members exited with 1\n" in shown
    assert "1..6" in shown
    assert re.search(r"\b1 failed\b", shown)
    assert re.search(r"\b5 completed\b", shown)
    assert shown.endswith("lr=0.01 seed=2 of member 4\n")


@pytest.mark.guarantee("G7")
def test_a_job_whose_machine_was_killed_is_queued_again_and_ends_on_another_one(installation: Installation) -> None:
    shown = run(installation, "sh", str(EXAMPLES / "recovery.sh")).text
    assert "job 1 is running; now its machine dies\njob 1 is queued, its assignment:\n" in shown
    assert re.search(r"assignment_expired +1\.1 +anna +cause=lost_requeued", shown)
    resumed = re.search(r"^attempt 2 begins after step (\d+)$", shown, re.MULTILINE)
    assert resumed is not None
    assert int(resumed[1]) >= 4
    assert shown.endswith("step 12 of 12\n")
    assert "job 1 is completed" in shown
    assert not processes_of(installation.directory)
    assert not list((installation.directory / "tmp").iterdir())


def test_the_agent_mends_a_failing_job_and_cancels_what_it_does_not_want(installation: Installation) -> None:
    shown = run(installation, sys.executable, str(EXAMPLES / "agent.py")).text
    assert "job_submit" in shown.splitlines()[0]
    assert "job 1 is failed, exit code 1" in shown
    assert "JSONDecodeError" in shown
    assert "mended: completed" in shown
    assert "{'batch_size': 32}" in shown
    assert "job 3 is cancelled" in shown


async def _trains(client: BrokerClient, epochs: int, worker: str | None = None) -> int:
    spec = JobSpec(argv=[sys.executable, TRAINING, "--epochs", f"{epochs}", "--epoch-s", "0.04"], worker=worker)
    job = (await client.job_submit(spec)).id
    assert job is not None
    return job


async def _has_printed(client: BrokerClient, job: int, wanted: str) -> None:
    async def check() -> bool:
        return wanted in await client.job_logs(job)

    await eventually(check, within_s=30)


async def test_training_saves_when_it_is_stopped(fleet_with_worker: Fleet) -> None:
    async with fleet_with_worker.client() as client:
        job = await _trains(client, epochs=100_000)
        await _has_printed(client, job, "epoch 3 of")
        await client.job_cancel(CancelRequest(job=[job]))
        done = await ended(client, job)
        assert done.state is JobState.CANCELLED
        said = (await output_of(client, job)).decode().splitlines()
        assert said[-2] == "jobd-checkpoint-complete"
        stopped_after = re.fullmatch(r"stopped after epoch (\d+); .*", said[-1])
        assert stopped_after is not None
        assert said[-3].startswith(f"epoch {stopped_after[1]} of 100000")


@pytest.fixture
async def cluster(fleet: Fleet) -> Fleet:
    """Two workers that share their checkpoints, and short leases."""
    fleet.settings |= {"lease_s": "2", "sweep_s": "0.2", "heartbeat_s": "0.4", "poll_s": "3"}
    await fleet.start_broker()
    checkpoints = str(fleet.directory / "checkpoints")
    for name in ("w1", "w2"):
        await fleet.start_worker(name, checkpoint_root=checkpoints)
    return fleet


async def test_training_resumes_on_another_machine_when_its_own_has_died(cluster: Fleet) -> None:
    async with cluster.client() as client:
        job = await _trains(client, epochs=60)
        await _has_printed(client, job, "epoch 12 of 60")
        holder = (await client.job_get(job)).worker
        assert holder is not None
        cluster.kill_machine(holder)
        done = await ended(client, job)
        assert done.state is JobState.COMPLETED
        assert [assignment.state.value for assignment in done.assignments or []] == ["expired", "succeeded"]
        said = (await output_of(client, job, attempt=2)).decode().splitlines()
        resumed = re.fullmatch(r"resumed after epoch (\d+), delivery 2", said[0])
        assert resumed is not None
        assert 10 <= int(resumed[1]) < 60
        assert said[1].startswith(f"epoch {int(resumed[1]) + 1} of 60")
        assert said[-1].startswith("done: y = 2.") or said[-1].startswith("done: y = 3.")
        assert os.listdir(cluster.directory / "checkpoints")
