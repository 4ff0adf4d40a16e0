"""What only time brings out: jobs longer than a lease, a worker that has run many, orphans under pid 1, other zones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest, JobSpec
from support.fleet import Fleet, ended, output_of, starts_in, submit
from support.processes import processes_of
from support.requirements import require
from support.waiting import eventually

SMALL = {"lease_s": "2", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": "3"}


async def in_state(client: BrokerClient, job: int, state: str) -> None:
    async def check() -> bool:
        return (await client.job_get(job)).state.value == state

    await eventually(check, within_s=30)


@pytest.mark.trial("B06")
@pytest.mark.guarantee("G4")
async def test_a_job_of_several_leases_is_started_once_however_many_workers_are_idle(fleet: Fleet) -> None:
    fleet.settings |= SMALL
    await fleet.start_broker()
    for name in ("a", "b", "c"):
        await fleet.start_worker(name)
    async with fleet.client() as client:
        long = await submit(client, f"echo + >> {fleet.directory}/long; sleep 7; echo whole")
        waits = await submit(client, f"echo + >> {fleet.directory}/waits; echo then", depends_on=[long])
        await in_state(client, long, "running")
        held = await client.job_get(waits, detail="full")

        done = await ended(client, long)
        after = await ended(client, waits)

        assert held.assignments == [], "a job that waits is in nobody's hands"
        assert [a.state.value for a in [*(done.assignments or []), *(after.assignments or [])]] == ["succeeded"] * 2
    assert starts_in(fleet.directory / "long") == starts_in(fleet.directory / "waits") == 1


@pytest.mark.trial("B28")
@pytest.mark.guarantee("G13")
async def test_a_silent_job_hears_of_its_cancel_beside_one_that_never_stops_talking(fleet: Fleet) -> None:
    """Its worker has more output to send than it ever can."""
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        noisy = [
            await submit(client, "exec yes 'a long line that says nothing at all, again and again'") for _ in range(2)
        ]
        silent = await submit(client, f"trap 'echo TERM > {fleet.directory}/told; exit' TERM; sleep 600 & wait")
        for job in (*noisy, silent):
            await in_state(client, job, "running")
        await eventually(lambda: _log_bytes(client, noisy[0]), within_s=30)

        await client.job_cancel(CancelRequest(job=[silent]))
        done = await ended(client, silent)

        assert done.state.value == "cancelled"
        assert (fleet.directory / "told").read_text() == "TERM\n"
        assert [(await client.job_get(job)).state.value for job in noisy] == ["running"] * 2
        await client.job_cancel(CancelRequest(job=noisy))
        for job in noisy:
            await ended(client, job)


async def _log_bytes(client: BrokerClient, job: int) -> bool:
    return ((await client.job_get(job)).log_bytes or 0) > 1 << 20


@pytest.mark.trial("B85")
async def test_a_hundred_jobs_of_every_kind_leave_no_file_thread_or_directory_open(fleet: Fleet) -> None:
    await fleet.start_broker()
    await fleet.start_worker("a", slots=8)
    async with fleet.client() as client:
        await many_jobs(client)
        early = await eventually(lambda: at_rest(fleet, None), within_s=30)
        for _ in range(3):
            await many_jobs(client)
        late = await eventually(lambda: at_rest(fleet, early), within_s=30)

    assert late


async def many_jobs(client: BrokerClient) -> None:
    """Good ones, bad ones, cancelled ones, some that can't be executed; followed by readers who leave early."""
    commands = ["echo good", "echo bad; exit 3", "sleep 60", "no-such-program-at-all"]
    jobs = []
    for number in range(32):
        command = commands[number % 4]
        if number % 4 == 3:
            jobs.append((await client.job_submit(JobSpec(argv=[command]))).id or 0)
        else:
            jobs.append(await submit(client, command))
    for job in jobs[2::4]:
        await in_state(client, job, "running")
        stream = client.job_output(job)
        async for _ in stream:
            break
        await stream.aclose()
    await client.job_cancel(CancelRequest(job=jobs[2::4], force=True))
    for job in jobs:
        await ended(client, job)


def at_rest(fleet: Fleet, before: dict[str, int] | None) -> dict[str, int] | None:
    """Open files and threads of both programs, and what the worker keeps; None while it is not as it was `before`."""
    assert fleet.broker is not None
    found: dict[str, int] = {}
    for name, pid in (("broker", fleet.broker.pid), ("worker", fleet.workers["a"].pid)):
        found[f"{name} files"] = len(os.listdir(f"/proc/{pid}/fd"))
        found[f"{name} threads"] = len(os.listdir(f"/proc/{pid}/task"))
    home = fleet.directory / "a" / "workers" / "a"
    found["directories"] = sum(len(list((home / name).iterdir())) for name in ("assignments", "scratch"))
    found["processes"] = len(processes_of(fleet.directory))
    if found["directories"]:
        return None
    if before is not None and any(found[name] > before[name] + 5 for name in found):
        raise AssertionError(f"{before} has become {found}")
    return found


@pytest.mark.trial("B100")
async def test_a_worker_that_is_pid_1_collects_what_its_jobs_leave_and_nobody_elses_exit_code(fleet: Fleet) -> None:
    require("unshare", shutil.which("unshare"), how="apt-get install util-linux")
    require("a pid namespace", os.geteuid() == 0, how="run as root")
    fleet.within["a"] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    await fleet.start_broker()
    await fleet.start_worker("a", slots=8)
    async with fleet.client() as client:
        jobs = [
            await submit(
                client, f"(setsid sh -c '(sleep 0.2; exit 5) & (sleep 0.3; exit 6) &' &) ; sleep 0.1; exit {n % 7}"
            )
            for n in range(60)
        ]
        codes = [(await ended(client, job)).exit_code for job in jobs]

        assert codes == [n % 7 for n in range(60)]
        await eventually(lambda: len(defunct_of(fleet.workers["a"].pid)) <= 5)
    fleet.kill_worker("a")  # pid 1 takes its whole namespace along


def defunct_of(root: int) -> list[str]:
    """Zombies among the descendants of a process."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
            except OSError:
                continue
            children.setdefault(int(parent), []).append(int(entry.name))
            states[int(entry.name)] = state
    found, looked_at = [], [root]
    while looked_at:
        for child in children.get(looked_at.pop(), []):
            looked_at.append(child)
            if states[child] == "Z":
                found.append(str(child))
    return found


SKEW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

/* The wall clock of this program, and of no other, is SKEW_S seconds off. */
int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, now);
  if (!failed && id == CLOCK_REALTIME && getenv("SKEW_S")) now->tv_sec += atoi(getenv("SKEW_S"));
  return failed;
}
"""


@pytest.fixture
def skewed(tmp_path: Path) -> Callable[[int], list[str]]:
    """The words before a command that shift its wall clock."""
    require("cc", shutil.which("cc"), how="install a C compiler")
    source, library = tmp_path / "skew.c", tmp_path / "skew.so"
    source.write_text(SKEW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return lambda seconds: ["env", f"LD_PRELOAD={library}", f"SKEW_S={seconds}"]


@pytest.mark.trial("B114")
@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("off_s", [600, -600])
async def test_a_worker_whose_clock_is_off_keeps_its_leases_and_limits_and_moves_no_time(
    fleet: Fleet, skewed: Callable[[int], list[str]], off_s: int
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    fleet.settings |= SMALL
    fleet.within["a"] = skewed(off_s)
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        long = await submit(client, f"echo + >> {fleet.directory}/starts; sleep 5")
        endless = await submit(client, "sleep 600", max_wall_s=1, checkpoint_grace_s=1)
        whole, stopped = await ended(client, long), await ended(client, endless)
    after = datetime.now(UTC) + timedelta(seconds=1)

    written = re.findall(r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d", (fleet.directory / "a.log").read_text())
    off = datetime.fromisoformat(written[-1] + "+00:00") - after
    assert abs(off.total_seconds() - off_s) < 300, "the clock of the worker was not off"
    assert (whole.state.value, [a.state.value for a in whole.assignments or []]) == ("completed", ["succeeded"])
    assert (stopped.state.value, stopped.reason.code if stopped.reason else None) == ("failed", "max_wall")
    for job in (whole, stopped):
        assert job.created_at and job.started_at and job.ended_at
        assert before <= job.created_at <= job.started_at <= job.ended_at <= after
    assert starts_in(fleet.directory / "starts") == 1


@pytest.mark.trial("B115")
async def test_times_are_told_with_their_zone_and_are_no_hour_off_wherever_broker_and_worker_think_they_are(
    fleet: Fleet,
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    fleet.within = {"broker": ["env", "TZ=America/New_York"], "a": ["env", "TZ=Asia/Kathmandu"]}
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        job = await submit(client, "date +%z; echo $TZ")
        done = await ended(client, job)
        events = (await client.job_events(job=job)).events
        await output_of(client, job)
    after = datetime.now(UTC) + timedelta(seconds=1)

    times = [done.created_at, done.started_at, done.ended_at, *(event.at for event in events)]
    assert all(at is not None and at.utcoffset() == timedelta(0) and before <= at <= after for at in times)
    said = re.findall(r'"at":"([^"]+)"', "".join(event.model_dump_json() for event in events))
    assert said and all(text.endswith("Z") for text in said)
