"""`job lease`, the real command, on devices that are files: a real broker, a real worker, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, Job
from broker.wire.leases import LeaseState
from broker.wire.states import JobState
from support.fleet import Fleet, ended, submit
from support.gpu_scenarios import RTX, A
from support.hardware import Hardware
from support.waiting import eventually

SETTINGS = {
    "heartbeat_s": "0.2",
    "lease_s": "20",
    "poll_s": "2",
    "probe_s": "0.1",
    "sweep_s": "0.3",
    "lease_idle_s": "1",
}
JOB = Path(sys.executable).parent / "job"


@pytest.fixture
def fleet(short_dir: Path, hardware: Hardware) -> Iterator[Fleet]:
    hardware.is_now(RTX)
    fleet = Fleet(short_dir, settings=dict(SETTINGS), within={"w1": hardware.words})
    yield fleet
    fleet.close()


async def ready(fleet: Fleet, client: BrokerClient) -> None:
    await fleet.start_worker("w1", slots=16)

    async def shown() -> bool:
        [worker] = (await client.worker_list()).workers
        return [gpu.health.value for gpu in worker.gpus or ()] == ["ok"]

    await eventually(shown, within_s=40)


def lease(fleet: Fleet, *words: str) -> subprocess.Popen[bytes]:
    """`job lease WORDS`, in a group of its own; what it says goes to files, of stdout the newest."""
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(fleet.directory), "JOBD_URL": fleet.url}
    if "PYTHONPATH" in os.environ:  # a copy with a planted bug
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    with (fleet.directory / "lease.out").open("wb") as out, (fleet.directory / "lease.err").open("ab") as err:
        return subprocess.Popen(
            [str(JOB), "lease", *words],
            env=environ,
            cwd=fleet.directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            process_group=0,
        )


def said(fleet: Fleet) -> str:
    return (fleet.directory / "lease.err").read_text()


def code_of(command: subprocess.Popen[bytes], within_s: float = 30) -> int:
    return command.wait(within_s)


def out_of(fleet: Fleet, command: subprocess.Popen[bytes]) -> str:
    command.wait(30)
    return (fleet.directory / "lease.out").read_text()


async def the_lease(client: BrokerClient, state: JobState = JobState.RUNNING) -> Job:
    """The one lease that there is, once its job is in this state."""

    async def found() -> Job | None:
        leases = [job for job in (await client.job_list()).jobs if job.kind == "lease" and job.state is state]
        return leases[0] if leases else None

    return await eventually(found, within_s=30)


@pytest.mark.guarantee("G34")
async def test_a_lease_waits_for_a_job_sees_its_devices_and_ends_with_its_command(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        first = await submit(client, "sleep 900", gpus=1)
        await eventually(lambda: client_state(client, first, JobState.RUNNING), within_s=30)
        words = 'echo "$CUDA_VISIBLE_DEVICES/$CUDA_DEVICE_ORDER/$JOBD_LEASE"; exit 7'
        command = lease(fleet, "--gpus", "1", "--", "sh", "-c", words)
        waiting = await the_lease(client, JobState.QUEUED)
        assert waiting.command is not None and waiting.command.startswith("sh -c ")
        await eventually(lambda: "waits" in said(fleet) and "GPU" in said(fleet), within_s=20)
        await client.job_cancel(CancelRequest(job=[first]))

        assert out_of(fleet, command) == f"{A}/PCI_BUS_ID/{waiting.id}\n"
        assert code_of(command) == 7
        done = await ended(client, waiting.id)
        assert (done.state, done.gpus) == (JobState.COMPLETED, [A])
        assert done.reason is not None and done.reason.code == "lease_released"
        assert (await ended(client, await submit(client, "exit 0", gpus=1))).state is JobState.COMPLETED


async def client_state(client: BrokerClient, job: int, state: JobState) -> bool:
    return (await client.job_get(job)).state is state


@pytest.mark.guarantee("G34")
async def test_when_job_lease_is_killed_the_lease_expires_and_its_device_is_free(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        ended_too = fleet.directory / "ended"
        script = f"trap 'touch {ended_too}; exit' TERM; touch {fleet.directory}/started; while :; do sleep 0.1; done"
        command = lease(fleet, "--gpus", "1", "--ttl", "2s", "--", "sh", "-c", script)
        held = await the_lease(client)
        await eventually((fleet.directory / "started").exists, within_s=20)
        waits = await submit(client, "exit 0", gpus=1)
        command.kill()
        command.wait()
        await eventually(ended_too.exists, within_s=20)

        done = await ended(client, held.id)

        assert done.reason is not None and (done.state, done.reason.code) == (JobState.CANCELLED, "lease_expired")
        assert (await ended(client, waits)).state is JobState.COMPLETED
        kinds = [event.type for event in (await client.job_events(job=held.id)).events]
        assert EventType.LEASE_EXPIRED in kinds and EventType.LEASE_RELEASED not in kinds


async def test_a_lease_goes_on_while_broker_and_worker_are_away(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        go = fleet.directory / "go"
        command = lease(
            fleet, "--gpus", "1", "--ttl", "3s", "--", "sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done; exit 5"
        )
        held = await the_lease(client)
        fleet.kill_broker()
        await eventually(lambda: "can't be renewed now" in said(fleet), within_s=20)
        await fleet.start_broker()
        fleet.kill_worker("w1")
        await ready(fleet, client)
        assert (await client.job_get(held.id)).state is JobState.RUNNING
        go.touch()
        assert code_of(command) == 5
        assert (await ended(client, held.id)).state is JobState.COMPLETED


@pytest.mark.guarantee("G34")
@pytest.mark.parametrize("how", ["cancel", "preempt"])
async def test_a_stop_ends_the_command_before_the_device_is_given_away(fleet: Fleet, how: str) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        gone, started = fleet.directory / "gone", fleet.directory / "started"
        script = f"trap 'sleep 1; touch {gone}; exit 3' TERM; touch {started}; while :; do sleep 0.1; done"
        command = lease(fleet, "--gpus", "1", "--preemptible", "--", "sh", "-c", script)
        held = await the_lease(client)
        await eventually(started.exists, within_s=20)
        after = await submit(client, f"test -e {gone}", gpus=1)

        if how == "cancel":
            await client.job_cancel(CancelRequest(job=[held.id], reason="enough"))
        else:
            await client.job_preempt(held.id, reason="enough")

        assert code_of(command) == 125
        assert "enough" in said(fleet)
        assert (await ended(client, held.id)).state is (JobState.CANCELLED if how == "cancel" else JobState.PREEMPTED)
        assert (await ended(client, after)).state is JobState.COMPLETED, "it was given away under the command"


async def test_what_ignores_the_end_of_its_lease_is_killed(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        started = fleet.directory / "started"
        script = f"trap '' TERM; touch {started}; while :; do sleep 0.1; done"
        command = lease(fleet, "--gpus", "1", "--grace-s", "1", "--", "sh", "-c", script)
        held = await the_lease(client)
        await eventually(started.exists, within_s=20)
        await client.job_cancel(CancelRequest(job=[held.id]))
        assert code_of(command) == 125
        assert (await ended(client, held.id)).state is JobState.CANCELLED


@pytest.mark.guarantee("G34")
@pytest.mark.trial("B125")
async def test_the_lessees_memory_is_the_leases_and_is_counted_once(fleet: Fleet, hardware: Hardware) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        pid = fleet.directory / "pid"
        command = lease(
            fleet, "--vram-gb", "10", "--", "sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 900"
        )
        held = await the_lease(client)
        await eventually(pid.exists, within_s=20)
        hardware.is_now(f"{RTX}\nprocess 0 {pid.read_text().strip()} 10240 compute\nprocess 0 1 1024 compute")

        async def seen() -> bool:
            [worker] = (await client.worker_list()).workers
            [gpu] = worker.gpus or ()
            assert gpu.vram_gb is not None
            foreign = [process.pid for process in gpu.foreign or ()]
            return (gpu.vram_gb.free or 99) < 13 and gpu.jobs == [f"{held.id}.1"] and foreign == [1]

        await eventually(seen, within_s=20)
        # 24 GiB less the driver, 10 of the lease, 1 of a stranger and a margin: twelve fit, if the ten count once.
        assert (await ended(client, await submit(client, "exit 0", vram_gb=11.5))).state is JobState.COMPLETED
        command.terminate()
        assert code_of(command) == 128 + signal.SIGTERM


async def test_an_idle_lease_says_so_and_is_left_alone(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        command = lease(fleet, "--vram-gb", "4", "--", "sleep", "900")
        held = await the_lease(client)
        await eventually(lambda: f"lease {held.id} lies idle: nothing of it is on {A}" in said(fleet), within_s=30)
        assert (await client.lease_get(held.id)).state is LeaseState.GRANTED
        command.send_signal(signal.SIGINT)
        assert code_of(command) == 128 + signal.SIGINT


async def test_a_shell_takes_a_lease_by_eval_renews_and_releases_it(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        out = out_of(fleet, lease(fleet, "--gpus", "1", "--ttl", "30s", "--pid", str(os.getpid())))
        held = await the_lease(client)
        shell = f'{out}\necho "$CUDA_VISIBLE_DEVICES $JOBD_LEASE"'
        done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, check=True, text=True)
        assert done.stdout == f"{A} {held.id}\n"
        assert "is granted" in out_of(fleet, lease(fleet, "renew", str(held.id)))
        both = json.loads(out_of(fleet, lease(fleet, "--cpus", "1", "--json")))
        assert (both["state"], both["worker"]) == ("granted", "w1")
        out_of(fleet, lease(fleet, "release", str(both["job"])))
        # The shell lives on; a release does not wait for it.
        assert f"lease {held.id} is" in out_of(fleet, lease(fleet, "release", str(held.id)))
        assert (await ended(client, held.id)).state is JobState.COMPLETED


async def test_ctrl_c_in_the_queue_leaves_it_and_a_word_that_is_no_command_is_refused(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        command = lease(fleet, "--", "true")
        assert code_of(command) == 125
        assert "no worker runs on the machine" in said(fleet) and "job up" in said(fleet)
        assert code_of(lease(fleet, "pytest")) != 0
        assert "stands behind --" in said(fleet)
        await ready(fleet, client)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            command = lease(fleet, "--gpus", "3", "--", "true")
            waits = await the_lease(client, JobState.QUEUED)
            await eventually(lambda job=waits.id: f"lease {job} waits" in said(fleet), within_s=20)
            command.send_signal(number)
            assert code_of(command) == code
            done = await ended(client, waits.id)
            assert done.reason is not None and (done.state, done.reason.code) == (JobState.CANCELLED, "lease_released")


async def test_who_wants_to_wait_no_longer_leaves_with_the_code_of_a_time_limit(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        command = lease(fleet, "--gpus", "3", "--scheduling-timeout-s", "0.5", "--", "true")
        assert code_of(command) == 124
        assert "was not granted: no worker had started it 0.5 s after" in said(fleet)


async def test_a_command_that_is_not_there_gives_its_lease_back(fleet: Fleet) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client)
        assert code_of(lease(fleet, "--gpus", "1", "--", "no-such-program")) == 127
        [job] = (await client.job_list()).jobs
        assert (await ended(client, job.id)).state is JobState.COMPLETED
        assert json.loads(out_of(fleet, lease(fleet, "release", str(job.id), "--json")))["state"] == "ended"
