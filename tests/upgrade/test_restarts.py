"""Broker and worker are killed and stopped again and again while twenty jobs run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest

from jobd_mcp.local import alive
from support.installation import Installation, broker_pid
from support.processes import processes_of
from support.waiting import eventually_sync

JOBS, LINES = 20, 200
AT_ONCE = 7


def worker_pids(installation: Installation) -> list[int]:
    return [process.pid for process in processes_of(installation.directory) if " jobd worker" in process.command]


def kill_broker(installation: Installation) -> None:
    pid = broker_pid(installation)
    os.kill(pid, signal.SIGKILL)
    eventually_sync(lambda: not alive(pid))
    broker_pid(installation)


def stop_broker(installation: Installation) -> None:
    installation.good("down", "--keep-jobs")
    broker_pid(installation)


def kill_worker(installation: Installation) -> None:
    """Its broker starts another one."""
    [pid] = eventually_sync(lambda: worker_pids(installation), within_s=60)
    os.kill(pid, signal.SIGKILL)
    eventually_sync(lambda: worker_pids(installation) not in ([], [pid]), within_s=60)


def started(installation: Installation) -> list[str]:
    try:
        return (installation.directory / "starts").read_text().split()
    except FileNotFoundError:
        return []


def has_started(installation: Installation, count: int) -> bool:
    return len(started(installation)) >= count


@pytest.mark.guarantee("G4", "G11", "G15")
def test_of_twenty_jobs_none_is_lost_and_none_runs_twice(use, newer) -> None:
    installation: Installation = use(newer)
    installation.settings["JOBD_WORKER_SLOTS"] = str(AT_ONCE)
    directory = installation.directory
    broker_pid(installation)
    # Each goes on to the end of the phase that it was started in, so every disturbance meets running jobs.
    script = (
        f"echo $JOBD_ARRAY_INDEX >> {directory}/starts; for i in $(seq {LINES}); do echo $JOBD_ARRAY_INDEX.$i; done; "
        f"until test -e {directory}/go.$((JOBD_ARRAY_INDEX / {AT_ONCE})); do sleep 0.05; done; exit $JOBD_ARRAY_INDEX"
    )
    submitted = installation.good("submit", "--json", "--count", str(JOBS), "--", "bash", "-c", script).json()
    first = int(str(submitted["ids"]).partition("..")[0])
    disturbances: list[Callable[[Installation], None]] = [kill_broker, kill_worker, stop_broker]
    for phase, disturb in enumerate(disturbances):
        running = min(JOBS, AT_ONCE * (phase + 1))
        eventually_sync(partial(has_started, installation, running), within_s=60)
        disturb(installation)
        (directory / f"go.{phase}").touch()
    installation.job("wait", f"{first}..{first + JOBS - 1}")
    assert sorted(map(int, started(installation))) == list(range(JOBS))
    for index in range(JOBS):
        told = installation.ask(f"/v1/jobs/{first + index}").json()
        assert (told.get("exit_code"), told["attempt"]) == (index, 1)
        written = installation.ask(f"/v1/jobs/{first + index}/log", raw=True, cursor=0).text
        assert written.splitlines() == [f"{index}.{line}" for line in range(1, LINES + 1)]
