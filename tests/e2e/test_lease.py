"""`job lease` beside the other commands of an installation."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.installation import JOB, Installation
from support.terminal import InTerminal
from support.waiting import eventually_sync


def test_a_lease_brings_the_broker_up_and_is_no_job_that_down_stops_unasked(installation: Installation) -> None:
    ready = installation.directory / "ready"
    command = installation.start("lease", "--cpus", "1", "--", "sh", "-c", f"touch {ready}; exec sleep 900")
    try:
        eventually_sync(ready.exists, within_s=40)
        [job] = [as_dict(job) for job in installation.ids("jobs", ["list"])]
        assert (job["kind"], job["state"]) == ("lease", "running")
        assert "lease: sh -c" in installation.good("list").text
        drained = installation.good("workers", "drain", str(job["worker"]), "--json").json()
        assert (drained["state"], drained["running"]) == ("draining", [f"{job['id']}.1"])

        refused = installation.job("down")
        assert refused.code == 125 and f"{job['id']} (a lease)" in refused.err
        assert command.poll() is None
        installation.good("down", "--stop-jobs")

        _, err = command.communicate(timeout=20)
        assert command.returncode == 125
        assert b"is over (job down --stop-jobs)" in err and b"the lease was lost" in err
    finally:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            command.communicate()


def test_the_terminal_is_the_commands_and_ctrl_c_reaches_it_once(installation: Installation) -> None:
    heard, over = installation.directory / "heard", installation.directory / "over"
    script = (
        f"trap 'echo INT >> {heard}' INT; [ -t 0 ] && [ -t 1 ] && read word && echo got $word; "
        f"while [ ! -e {over} ]; do sleep 0.1; done; exit 9"
    )
    seen = InTerminal([JOB, "lease", "--", "sh", "-c", script], installation.environ, installation.directory)
    try:
        seen.until_text("lease 1 on", within_s=40)
        seen.type("hello\n")
        seen.until_text("got hello")
        seen.type("\x03")
        eventually_sync(heard.exists)
        over.touch()
        assert seen.ended() == 9, seen.screen.text
        assert heard.read_text() == "INT\n"
    finally:
        seen.close()


def test_what_a_lease_is_given_wrong_is_told_before_anything_waits(installation: Installation, tmp_path: Path) -> None:
    for words, why in (
        (["--ttl", "soon", "--", "true"], "90s, 20m, 2h"),
        (["--"], "nothing stands behind --"),
        (["--json", "--", "true"], "--json is for a lease without a command"),
        (["--pid", "1", "--", "true"], "--pid is for a lease without a command"),
        (["--pid", "999999999"], "there is no process 999999999"),
    ):
        done = installation.job("lease", *words)
        assert done.code != 0 and why in done.err, done.err
    assert not installation.state.exists(), "a broker was started for nothing"


def as_dict(job: object) -> dict[str, object]:
    assert isinstance(job, dict)
    return job
