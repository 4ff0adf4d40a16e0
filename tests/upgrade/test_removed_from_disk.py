"""A tool's cache is cleaned, or an environment removed, under a broker and a worker that were started from it."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from jobd_mcp.local import alive
from support import releases
from support.installation import Installation, broker_pid
from support.processes import processes_of
from support.waiting import eventually_sync
from worker.process.tree import children


def processes(installation: Installation, words: str) -> list[int]:
    return [process.pid for process in processes_of(installation.directory) if words in process.command]


def is_running(installation: Installation, job: int) -> bool:
    return bool(installation.ask(f"/v1/jobs/{job}").json()["state"] == "running")


@pytest.mark.guarantee("G23")
def test_what_runs_goes_on_without_any_file_of_its_own_until_a_new_copy_takes_over(use, shelf: Path) -> None:
    gone, copy = releases.install(shelf / "gone", "0.1.0"), releases.install(shelf / "copy", "0.1.0")
    before = use(gone)
    broker = broker_pid(before)
    eventually_sync(lambda: "online" in before.ask("/v1/workers").text, within_s=60)
    [worker] = processes(before, " jobd worker")
    gone.remove()

    # Every kind of request is answered, by the broker and worker that were there.
    after = use(copy)
    asking = replace(after, settings={"JOBD_URL": f"unix://{after.state}/broker.sock"})
    job = asking.submit("--", "sh", "-c", "echo found me; echo too >&2; exit 4")
    assert asking.job("wait", str(job)).code == 4
    assert b"found me" in asking.good("logs", str(job)).out
    assert b"found me" in asking.good("logs", str(job), "--grep", "f..nd").out
    assert asking.job("logs", str(job), "--grep", "(").code == 125
    assert asking.job("status", "999").code == 125

    # What makes shims is started again, from the code that its worker has in memory, if need be on an empty directory.
    [zygote] = {*processes(before, "zygote.py jobd shim")} & {*children(worker)}
    shutil.rmtree(after.state / "worker" / "bin")
    os.kill(zygote, signal.SIGKILL)
    endless = asking.submit("--", "sleep", "1000")
    eventually_sync(lambda: is_running(asking, endless), within_s=60)
    asking.good("cancel", str(endless))
    assert asking.job("wait", str(endless)).code == 130

    # What only looks replaces nothing; what would start a broker does.
    job = asking.submit("--", "sh", "-c", f"until test -e {after.directory}/go; do sleep 0.05; done; exit 4")
    eventually_sync(lambda: is_running(asking, job), within_s=60)
    assert after.good("list").err == ""
    assert (processes(after, " jobd broker"), processes(after, " jobd worker")) == ([broker], [worker])
    assert after.job("run", "--", "true").code == 0
    eventually_sync(lambda: not alive(broker) and not alive(worker))
    (after.directory / "go").touch()
    assert after.job("wait", str(job)).code == 4
    assert after.ask(f"/v1/jobs/{job}").json()["attempt"] == 1
