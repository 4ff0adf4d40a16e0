"""Stops with real processes: cancel, time limits and preemption, down to the last process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import broker
from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, Job
from support.fleet import Fleet, ended, output_of, submit
from support.processes import processes_of
from support.waiting import eventually

# A lease that is not over while a worker is away: nothing here is about losses.
PATIENT = {"lease_s": "120", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": "3"}
WAYS = ("cancel", "max_wall", "idle_timeout", "first_output_timeout", "preempt")
STATE_AND_REASON = {
    "cancel": ("cancelled", "stopped"),
    "max_wall": ("failed", "max_wall"),
    "idle_timeout": ("failed", "idle_timeout"),
    "first_output_timeout": ("failed", "first_output_timeout"),
    "preempt": ("preempted", "preempted"),
}


def config(fleet: Fleet, text: str) -> None:
    path = fleet.directory / "jobd.toml"
    path.write_text(text)
    fleet.settings["config"] = str(path)


@pytest.fixture
def patient(fleet: Fleet) -> Fleet:
    fleet.settings |= PATIENT
    return fleet


async def started(client: BrokerClient, job: int, mark: Path) -> None:
    """It runs so far that it has left its mark."""
    await eventually(mark.exists, within_s=30)

    async def is_told() -> bool:
        return (await client.job_get(job)).state.value not in ("queued", "assigned")

    await eventually(is_told, within_s=30)


async def stop(client: BrokerClient, job: int, how: str) -> None:
    """By hand, where the way is not a limit that comes by itself."""
    if how == "cancel":
        await client.job_cancel(CancelRequest(job=[job]))
    if how == "preempt":
        await client.job_preempt(job)


def limits(how: str, seconds: float) -> dict[str, object]:
    return {} if how in ("cancel", "preempt") else {f"{how}_s": seconds}


def check(got: Job, how: str) -> None:
    assert got.reason is not None
    assert (got.state.value, got.reason.code) == STATE_AND_REASON[how]
    if how not in ("cancel", "preempt"):
        assert got.reason.seen_s is not None and got.reason.limit_s is not None
        assert got.reason.seen_s >= got.reason.limit_s


TRAINER = """
import os, sys, time, pathlib
while True:
    (pathlib.Path(sys.argv[1]) / str(os.getpid())).write_text(str(time.time()))
    time.sleep(0.05)
"""


@pytest.mark.trial("B01")
@pytest.mark.parametrize("how", ["cancel", "max_wall", "preempt"])
@pytest.mark.guarantee("G13", "G25", "G26")
async def test_a_stop_reaches_the_real_program_below_two_scripts(patient: Fleet, how: str) -> None:
    """Trial B01."""
    place = patient.directory
    pids = place / "pids"
    pids.mkdir()
    (place / "train.py").write_text(TRAINER)
    (place / "inner.sh").write_text(
        f"#!/bin/bash\necho $$ > {pids}/$$\npython3 -I {place}/train.py {pids}\necho never\n"
    )
    (place / "outer.sh").write_text(f"#!/bin/bash\necho $$ > {pids}/$$\nbash {place}/inner.sh\necho never\n")
    await patient.start_broker()
    await patient.start_worker()
    async with patient.client() as client:
        command = f"bash {place}/outer.sh"
        job = await submit(client, command, preemptible=True, checkpoint_grace_s=5, **limits(how, 6))
        await eventually(lambda: len(list(pids.iterdir())) == 3, within_s=30)
        await stop(client, job, how)

        got = await ended(client, job)

        assert [path.name for path in pids.iterdir() if os.path.exists(f"/proc/{path.name}")] == []
        check(got, how)
        assert await output_of(client, job) == b""


SAVES = "exec 2>/dev/null; trap 'echo saved > {mark}.saved; exit 0' TERM; touch {mark}; while :; do sleep 0.05; done"
IGNORES = (
    "exec 2>/dev/null; trap 'touch {mark}.term' TERM; touch {mark}; while :; do touch {mark}.alive; sleep 0.05; done"
)
# Whose grace counts, of floor, project and job; the others say another one.
GRACES = {"floor": (2, None, None), "project": (3600, 2, None), "job": (3600, 7200, 2)}


@pytest.mark.trial("B25")
@pytest.mark.parametrize("level", GRACES)
@pytest.mark.guarantee("G13", "G25")
async def test_every_way_to_stop_sends_term_waits_for_the_most_specific_grace_and_kills(
    patient: Fleet, level: str
) -> None:
    """Trial B25. That the kill comes neither at once nor never is what is looked at: the shim's tests are closer."""
    floor, project, own = GRACES[level]
    table = f"[projects._default]\ncheckpoint_grace_s = {floor}\n"
    config(patient, table + (f"[projects.p]\ncheckpoint_grace_s = {project}\n" if project else ""))
    await patient.start_broker()
    await patient.start_worker(slots=20)
    fields = {"project": "p", "preemptible": True} | ({"checkpoint_grace_s": own} if own else {})
    async with patient.client() as client:
        jobs: dict[tuple[str, str], int] = {}
        for how in WAYS:
            for name, command in (("saves", SAVES), ("ignores", IGNORES)):
                mark = patient.directory / f"{how}-{name}"
                jobs[how, name] = await submit(client, command.format(mark=mark), **fields, **limits(how, 4))
        for (how, name), job in jobs.items():
            await started(client, job, patient.directory / f"{how}-{name}")
            await stop(client, job, how)

        for (how, name), job in jobs.items():
            got = await ended(client, job)
            check(got, how)
            if name == "saves":
                assert (patient.directory / f"{how}-saves.saved").read_text() == "saved\n"
                assert got.exit_code == 0
            else:
                assert got.assignments is not None and got.assignments[-1].signal == "SIGKILL"
                assert lived_after_term_s(patient.directory / f"{how}-ignores") >= 1


def lived_after_term_s(mark: Path) -> float:
    term, alive = Path(f"{mark}.term"), Path(f"{mark}.alive")
    return alive.stat().st_mtime - term.stat().st_mtime


@pytest.mark.guarantee("G25")
@pytest.mark.trial("B65")
async def test_limits_hold_while_worker_and_broker_are_away_and_are_told_when_they_return(patient: Fleet) -> None:
    """Trial B65: by the specification, and by a project's defaults."""
    config(patient, "[projects.silent]\nidle_timeout_s = 6\n[projects.mute]\nfirst_output_timeout_s = 6\n")
    await patient.start_broker()
    await patient.start_worker("w1", slots=4)
    command = "touch {mark}; while :; do sleep 0.05; done"
    wanted = {
        "max_wall": {"max_wall_s": 6},
        "idle_timeout": {"project": "silent"},
        "first_output_timeout": {"project": "mute"},
    }
    async with patient.client() as client:
        jobs = {}
        for name, fields in wanted.items():
            mark = patient.directory / name
            jobs[name] = await submit(client, command.format(mark=mark), **fields)
            await started(client, jobs[name], mark)
        patient.kill_worker("w1")
        patient.kill_broker()
        assert len(loops(patient)) == 3

        await eventually(lambda: not loops(patient), within_s=60)

    await patient.start_broker()
    await patient.start_worker("w1", slots=4)
    async with patient.client() as client:
        for name, job in jobs.items():
            got = await ended(client, job)
            check(got, name)
            assert got.attempt == 1
        sources = (await client.job_get(jobs["idle_timeout"], detail="full")).sources
        assert sources is not None
        assert (sources["idle_timeout_s"], sources["max_wall_s"]) == ("project", "floor")


@pytest.mark.guarantee("G25")
async def test_a_limit_that_was_set_before_a_restart_stops_the_job_after_it(patient: Fleet) -> None:
    """Trial B65: the worker is killed and restarted in mid-job, and the job survives."""
    await patient.start_broker()
    await patient.start_worker("w1")
    mark = patient.directory / "mark"
    async with patient.client() as client:
        job = await submit(client, f"touch {mark}; while :; do echo x; sleep 0.05; done", max_wall_s=8)
        await started(client, job, mark)
        patient.kill_worker("w1")
        await patient.start_worker("w1")

        got = await ended(client, job)

        check(got, "max_wall")
        assert got.attempt == 1


def loops(fleet: Fleet) -> list[str]:
    return [process.command for process in processes_of(fleet.directory) if "while :" in process.command]


RESUMES = """
import os, pathlib, signal, sys, time
place = pathlib.Path(os.environ["JOBD_CHECKPOINT_DIR"])
steps = place / "steps"
def save(*_):
    (place / "saved").write_text("yes")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("restarts", os.environ["JOBD_RESTARTS"], "saved", (place / "saved").exists(), flush=True)
pathlib.Path(sys.argv[1] + os.environ["JOBD_RESTARTS"]).touch()
while os.environ["JOBD_RESTARTS"] == "0":
    time.sleep(0.05)
"""


@pytest.mark.guarantee("G26")
async def test_a_preempted_job_that_wants_to_goes_on_from_its_checkpoint(patient: Fleet) -> None:
    script, mark = patient.directory / "resumes.py", patient.directory / "mark"
    script.write_text(RESUMES)
    await patient.start_broker()
    await patient.start_worker("w1", slots=1)
    async with patient.client() as client:
        fields = {"preemptible": True, "on_preempt": "requeue", "checkpoint_grace_s": 60}
        job = await submit(client, f"exec python3 -I {script} {mark}", **fields)
        await started(client, job, Path(f"{mark}0"))
        urgent = await submit(client, "echo urgent", priority=10)
        await client.job_preempt(job)

        got = await ended(client, job)

        assert (got.state.value, got.exit_code) == ("completed", 0)
        assert [a.state.value for a in got.assignments or []] == ["preempted", "succeeded"]
        assert await output_of(client, job, attempt=1) == b"restarts 0 saved False\n"
        assert await output_of(client, job, attempt=2) == b"restarts 1 saved True\n"
        first = await ended(client, urgent)
        assert first.started_at is not None and got.started_at is not None
        assert first.started_at < got.started_at  # it made room


@pytest.mark.guarantee("G40")
async def test_a_preempted_job_goes_back_to_the_worker_that_has_its_checkpoint(patient: Fleet) -> None:
    script, mark = patient.directory / "resumes.py", patient.directory / "mark"
    script.write_text(RESUMES)
    await patient.start_broker()
    await patient.start_worker("w1")
    async with patient.client() as client:
        fields = {"preemptible": True, "on_preempt": "requeue", "checkpoint_grace_s": 60}
        job = await submit(client, f"exec python3 -I {script} {mark}", **fields)
        await started(client, job, Path(f"{mark}0"))
        await patient.start_worker("w2")  # its poll is parked, and comes first
        await client.job_preempt(job)

        assert (await ended(client, job)).worker == "w1"
        assert await output_of(client, job, attempt=2) == b"restarts 1 saved True\n"


@pytest.mark.trial("B92", "B102")
@pytest.mark.guarantee("G13")
async def test_a_process_that_cannot_be_killed_is_told_on_every_surface_and_keeps_its_slot(patient: Fleet) -> None:
    """Trial B102: stuck in the kernel, as a kill that has no effect until a file says otherwise."""
    allowed = patient.directory / "allow"
    source = patient.directory / "src"
    shutil.copytree(Path(broker.__file__).parents[1], source, ignore=shutil.ignore_patterns("__pycache__"))
    shim = source / "worker" / "shim.py"
    text = shim.read_text()
    right = "        self._signal_tree(signal.SIGKILL)\n"
    assert text.count(right) == 1
    text = text.replace(right, f"        os.path.exists({str(allowed)!r}) and self._signal_tree(signal.SIGKILL)\n")
    shim.write_text(text.replace("STUCK_AFTER_S = 5.0", "STUCK_AFTER_S = 0.2"))
    groups = source / "worker" / "groups.py"
    groups.write_text(groups.read_text() + "\n\ndef usable_groups(name: str) -> str | None:\n    return None\n")
    patient.source["w1"] = source
    await patient.start_broker()
    await patient.start_worker("w1", slots=1)
    mark = patient.directory / "mark"
    async with patient.client() as client:
        job = await submit(client, f"trap '' TERM; touch {mark}; while :; do sleep 0.05; done", checkpoint_grace_s=0.2)
        await started(client, job, mark)
        waiting = await submit(client, "true")
        await client.job_cancel(CancelRequest(job=[job]))

        async def says_so() -> Job | None:
            got = await client.job_get(job)
            return got if got.warnings else None

        got = await eventually(says_so, within_s=30)

        assert got.state.value == "running"
        assert got.stopping is not None and got.stopping.kill_failed is not None
        assert got.stopping.kill_failed.split(":")[0].isdigit()
        events = (await client.job_events(job=job, type=EventType.WATCHDOG_FIRED)).events
        assert len(events) == 1
        worker = (await client.worker_list()).workers[0]
        assert (worker.slots.used, worker.running) == (1, [f"{job}.1"])
        assert (await client.job_get(waiting)).state.value == "queued"
        allowed.touch()
        assert (await ended(client, job)).state.value == "cancelled"
        assert (await ended(client, waiting)).state.value == "completed"


async def test_a_job_that_no_worker_takes_ends_when_its_time_is_over(patient: Fleet) -> None:
    """Trial B91, against a real broker: job 1 has no worker at all, and its child follows."""
    await patient.start_broker()
    async with patient.client() as client:
        job = await submit(client, "true", scheduling_timeout_s=1)
        child = await submit(client, "true", depends_on=[job])

        got, after = await ended(client, job), await ended(client, child)

        assert (got.state.value, after.state.value) == ("scheduling_timeout", "cancelled")
        assert after.reason is not None and f"job {job}" in after.reason.message
