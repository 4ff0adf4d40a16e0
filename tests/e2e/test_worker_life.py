"""How a worker ends, and what arrives all the same: SIGTERM in its forms, service managers, brokers that are away."""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.states import JobState
from broker.wire.workers import WorkerState, WorkerUpdate
from support.fleet import Fleet, ended, output_of, submit
from support.processes import processes_of
from support.requirements import ROOT, require
from support.waiting import eventually

UNITS = ROOT / "examples" / "systemd"
# A shim whose worker is away stops its tree after a lease: a loaded machine must have started the next worker by then.
QUICK = {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.3", "poll_s": "2"}


@pytest.fixture
async def quick(fleet: Fleet) -> Fleet:
    fleet.settings |= QUICK
    await fleet.start_broker()
    return fleet


def until(path: Path, then: str) -> str:
    """A command that waits for a file."""
    return f"echo up; while [ ! -e {path} ]; do sleep 0.05; done; {then}"


async def running(client: BrokerClient, job: int) -> bool:
    return (await client.job_get(job)).state is JobState.RUNNING


async def worker_state(client: BrokerClient, name: str = "w1") -> WorkerState:
    return next(worker.state for worker in (await client.worker_list()).workers if worker.name == name)


def said(fleet: Fleet, name: str = "w1") -> str:
    return (fleet.directory / f"{name}.log").read_text()


# ---- SIGTERM


@pytest.mark.guarantee("G29")
async def test_a_worker_that_finishes_takes_nothing_new_and_ends_after_its_last_job(quick: Fleet) -> None:
    go = quick.directory / "go"
    async with quick.client() as client:
        await quick.start_worker(slots=2, on_term="finish")
        jobs = [await submit(client, until(go, f"echo done; exit {code}")) for code in (0, 7)]
        for job in jobs:
            await eventually(lambda job=job: running(client, job))

        quick.workers["w1"].send_signal(signal.SIGTERM)
        await eventually(lambda: _is_paused(client))
        later = await submit(client, "true", cpus=0.1)
        assert "a second signal ends at once" in said(quick)
        await eventually(lambda: f'"assignments": ["{jobs[0]}.1", "{jobs[1]}.1"]' in said(quick))
        go.touch()

        assert await asyncio.to_thread(quick.workers["w1"].wait, 30) == 0
        assert [(await ended(client, job)).exit_code for job in jobs] == [0, 7]
        assert [await output_of(client, job) for job in jobs] == [b"up\ndone\n"] * 2
        assert (await client.job_get(later)).state is JobState.QUEUED
        assert "all has ended" in said(quick)
    assert processes_of(quick.directory / "w1") == []


async def _is_paused(client: BrokerClient) -> bool:
    return await worker_state(client) is WorkerState.PAUSED


@pytest.mark.trial("B99")
async def test_a_second_signal_ends_a_finishing_worker_at_once_and_the_next_one_takes_up(quick: Fleet) -> None:
    go = quick.directory / "go"
    async with quick.client() as client:
        await quick.start_worker(on_term="finish")
        job = await submit(client, until(go, "exit 5"))
        await eventually(lambda: running(client, job))
        worker = quick.workers["w1"]
        worker.send_signal(signal.SIGTERM)
        await eventually(lambda: "waiting for" in said(quick))

        worker.send_signal(signal.SIGTERM)

        assert await asyncio.to_thread(worker.wait, 20) == 0
        assert (await client.job_get(job)).state is JobState.RUNNING
        await quick.start_worker()
        go.touch()
        assert (await ended(client, job)).exit_code == 5
        assert await _attempts(client, job) == 1


async def test_a_finishing_worker_waits_for_the_broker_too(quick: Fleet) -> None:
    """The last job ends while the broker is away: the worker goes once its report and output have arrived."""
    go = quick.directory / "go"
    async with quick.client() as client:
        await quick.start_worker(on_term="finish")
        job = await submit(client, until(go, "echo done; exit 4"))
        await eventually(lambda: running(client, job))
        worker = quick.workers["w1"]
        worker.send_signal(signal.SIGTERM)
        await eventually(lambda: "waiting for" in said(quick))
        quick.kill_broker()
        go.touch()
        record = quick.directory / "w1" / "workers" / "w1" / "assignments" / f"{job}.1" / "exit.json"
        await eventually(record.exists, within_s=30)
        assert worker.poll() is None

        await quick.start_broker()

        assert await asyncio.to_thread(worker.wait, 30) == 0
        assert (await ended(client, job)).exit_code == 4
        assert await output_of(client, job) == b"up\ndone\n"


CHECKPOINTS = """
trap 'echo saved > $JOBD_CHECKPOINT_DIR/state; exit 0' TERM
if [ -e $JOBD_CHECKPOINT_DIR/state ]; then echo resumed; exit 0; fi
echo up; while :; do sleep 0.05; done
"""


async def test_a_worker_that_ends_with_checkpoints_has_its_jobs_saved_and_gone_on_elsewhere(quick: Fleet) -> None:
    """But not one that must never run twice: it goes on in its shim, and the worker does not wait for it."""
    go, checkpoints = quick.directory / "go", str(quick.directory / "checkpoints")
    async with quick.client() as client:
        await quick.start_worker(on_term="checkpoint", checkpoint_root=checkpoints)
        job = await submit(client, CHECKPOINTS)
        orphan = await submit(client, until(go, "exit 7"), on_worker_lost="orphan")
        for id_ in (job, orphan):
            await eventually(lambda id_=id_: running(client, id_))
        await eventually(lambda: _has_output(client, job))

        quick.workers["w1"].send_signal(signal.SIGTERM)

        assert await asyncio.to_thread(quick.workers["w1"].wait, 30) == 0
        assert '"left_to_their_shims": 1' in said(quick)
        got = await client.job_get(job, detail="full")
        assert (got.state, got.reason.code) == (JobState.QUEUED, "preempted")
        assert (await client.job_get(orphan)).state is JobState.RUNNING
        await quick.start_worker("w2", checkpoint_root=checkpoints)
        assert (await ended(client, job)).exit_code == 0
        assert await output_of(client, job) == b"resumed\n"
        await quick.start_worker("w1")
        go.touch()
        assert (await ended(client, orphan)).exit_code == 7


async def _has_output(client: BrokerClient, job: int) -> bool:
    return "up" in await client.job_logs(job)


async def _attempts(client: BrokerClient, job: int) -> int:
    return len((await client.job_get(job, detail="full")).assignments or [])


# ---- drain


@pytest.mark.guarantee("G29")
async def test_a_drain_survives_kills_of_broker_and_worker_and_ends_with_the_last_job(quick: Fleet) -> None:
    go = quick.directory / "go"
    async with quick.client() as client:
        await quick.start_worker()
        job = await submit(client, until(go, "exit 3"))
        await eventually(lambda: running(client, job))
        assert (await client.worker_update("w1", WorkerUpdate(drain=True))).state is WorkerState.DRAINING

        quick.kill_broker()
        quick.kill_worker("w1")
        await quick.start_broker()
        assert (await quick.start_worker()).state is WorkerState.DRAINING
        later = await submit(client, "true")
        go.touch()

        assert (await ended(client, job)).exit_code == 3
        await eventually(lambda: _drained(client))
        assert (await client.job_get(later)).waiting.code == "workers_cordoned"
        assert await _attempts(client, job) == 1
        await client.worker_update("w1", WorkerUpdate(resume=True))
        assert (await ended(client, later)).state is JobState.COMPLETED
        assert len((await client.job_events(type=EventType.WORKER_DRAINED)).events) == 1


async def _drained(client: BrokerClient) -> bool:
    return await worker_state(client) is WorkerState.DRAINED


# ---- service managers


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / f"jobd-{name}.service").read_text())
    return parser["Service"]


def test_systemd_finds_nothing_wrong_in_the_units(short_dir: Path) -> None:
    require("systemd-analyze", shutil.which("systemd-analyze"), how="install systemd")
    program = short_dir / ".local" / "bin" / "job"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(sys.executable).parent / "job")
    environ = {**os.environ, "HOME": str(short_dir), "XDG_RUNTIME_DIR": str(short_dir)}

    for file in sorted(UNITS.glob("*.service")):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(file)], env=environ, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), file.name
    assert len(list(UNITS.glob("*.service"))) == 2


@pytest.mark.trial("B99")
async def test_a_service_managers_restart_of_the_worker_is_no_event_for_its_job(quick: Fleet) -> None:
    """A stand-in for systemd, which does to the worker's processes what the unit's KillMode says."""
    settings = unit("worker")
    assert settings["ExecStart"].endswith("/job worker")
    go = quick.directory / "go"
    async with quick.client() as client:
        await quick.start_worker()
        job = await submit(client, until(go, "exit 6"))
        await eventually(lambda: running(client, job))

        await asyncio.to_thread(_stop_as_systemd, quick, settings)
        assert (await client.job_get(job)).state is JobState.RUNNING
        await quick.start_worker()
        go.touch()

        assert (await ended(client, job)).exit_code == 6
        assert await _attempts(client, job) == 1


def _stop_as_systemd(fleet: Fleet, settings: configparser.SectionProxy) -> None:
    """SIGTERM to whom KillMode names, SIGKILL to the same after the timeout."""
    main = fleet.workers["w1"]
    whole_group = settings.get("KillMode", "control-group") != "process"
    reached = [process.pid for process in processes_of(fleet.directory / "w1")] if whole_group else [main.pid]
    for pid in reached:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    try:
        main.wait(float(settings["TimeoutStopSec"]))
    except subprocess.TimeoutExpired:
        main.kill()
    if whole_group:
        for pid in reached:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    main.wait()


def test_the_units_do_not_restart_what_a_restart_can_not_mend() -> None:
    from jobd_mcp import daemon
    from worker import __main__ as program
    from worker import agent, run

    broker = {daemon.EXIT_USAGE, daemon.EXIT_STORE, daemon.EXIT_LOCKED}
    assert {int(code) for code in unit("broker")["RestartPreventExitStatus"].split()} == broker
    worker = {program.EXIT_USAGE, agent.EXIT_MUST_END, run.EXIT_HOME_TAKEN}
    assert {int(code) for code in unit("worker")["RestartPreventExitStatus"].split()} == worker


# ---- final reports and brokers that are away


LEASE_S = 4.0


@pytest.mark.trial("B13")
@pytest.mark.parametrize("variant", ["worker stays", "worker is told to end", "worker is killed"])
async def test_an_end_while_the_broker_is_away_arrives_once_with_its_whole_output(fleet: Fleet, variant: str) -> None:
    """Also longer than a lease, and also if the worker is restarted before the broker is back."""
    fleet.settings |= QUICK | {"lease_s": str(LEASE_S)}
    await fleet.start_broker()
    quick, go = fleet, fleet.directory / "go"
    record = quick.directory / "w1" / "workers" / "w1" / "assignments"
    async with quick.client() as client:
        await quick.start_worker()
        job = await submit(client, until(go, "seq 1 20000; exit 9"))
        await eventually(lambda: running(client, job))
        quick.kill_broker()
        if variant == "worker is told to end":
            quick.workers["w1"].send_signal(signal.SIGTERM)  # in the same moment as the job ends
        elif variant == "worker is killed":
            quick.kill_worker("w1")
        go.touch()
        await eventually((record / f"{job}.1" / "exit.json").exists, within_s=30)
        await asyncio.sleep(LEASE_S * 1.5)  # the outage itself, longer than a lease
        assert (record / f"{job}.1" / "exit.json").exists()

        if variant == "worker stays":
            await quick.start_broker()
        else:
            await asyncio.to_thread(quick.workers["w1"].wait, 20)
            starting = asyncio.create_task(_start_before_the_broker(quick))
            await quick.start_broker()
            await starting

        got = await ended(client, job)
        assert (got.state, got.exit_code) == (JobState.FAILED, 9)
        assert await output_of(client, job) == b"up\n" + b"".join(b"%d\n" % n for n in range(1, 20001))
        assert await _attempts(client, job) == 1
        ends = [event.type for event in (await client.job_events(job=job)).events if event.type is EventType.JOB_FAILED]
        assert len(ends) == 1
        await eventually(lambda: not (record / f"{job}.1").exists())


async def _start_before_the_broker(fleet: Fleet) -> None:
    with contextlib.suppress(Exception):
        await fleet.start_worker()


@pytest.fixture
def small_home(short_dir: Path) -> Iterator[Path]:
    """A worker's state directory on a disk of its own, large enough that it takes a job."""
    place = short_dir / "w1"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m,mode=700", "jobd-test", str(place)], capture_output=True, check=False
    )
    require("permission to mount", mounted.returncode == 0, how="run as root, with CAP_SYS_ADMIN")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


async def test_an_end_on_a_full_worker_disk_arrives_and_says_what_is_missing(small_home: Path, quick: Fleet) -> None:
    """The room for the record of the end was taken before the start; output that does not fit is counted."""
    go = quick.directory / "go"
    async with quick.client() as client:
        await quick.start_worker()
        job = await submit(client, until(go, "head -c 3000000 /dev/zero; exit 8"))
        await eventually(lambda: running(client, job))
        quick.kill_broker()
        with contextlib.suppress(OSError), (small_home / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(1 << 20))
                filler.flush()
        go.touch()
        record = small_home / "workers" / "w1" / "assignments" / f"{job}.1" / "exit.json"
        await eventually(record.exists, within_s=30)
        quick.kill_worker("w1")

        await quick.start_broker()
        (small_home / "filler").unlink()
        await quick.start_worker()

        got = await ended(client, job)
        assert got.exit_code == 8
        assert (got.assignments[-1].dropped_bytes or 0) > 1_000_000
        assert (await output_of(client, job)).startswith(b"up\n")
