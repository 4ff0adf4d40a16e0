"""Wake-ups only hurry: a broker that drops every one of them still does all that it promised, within a poll."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import broker
from broker.wire.jobs import CancelRequest
from support.fleet import Fleet, ended, submit
from support.waiting import eventually

POLL_S = 2


def deaf(directory: Path) -> Path:
    """The code of this broker, without ears: nothing that is committed wakes anybody."""
    source = directory / "deaf"
    shutil.copytree(Path(broker.__file__).parents[1], source, ignore=shutil.ignore_patterns("__pycache__"))
    wake = source / "broker" / "service" / "wake.py"
    text, changed = re.subn(r"(def heard\(self, [^\n]*\) -> None:\n)", r"\1        return\n", wake.read_text())
    assert changed == 1
    wake.write_text(text)
    return source


async def test_with_every_wake_dropped_jobs_start_stop_and_end_within_polls(fleet: Fleet) -> None:
    fleet.settings |= {"poll_s": str(POLL_S), "lease_s": "4", "sweep_s": "0.5"}
    fleet.source["broker"] = deaf(fleet.directory)
    await fleet.start_broker()
    await fleet.start_worker("a")
    async with fleet.client() as client:
        long = await submit(client, "sleep 1000")
        short = await submit(client, "exit 3")

        async def runs() -> bool:
            return (await client.job_get(long)).state.value == "running"

        await eventually(runs, within_s=20 * POLL_S)
        assert (await ended(client, short)).exit_code == 3
        await client.job_cancel(CancelRequest(job=[long]))
        done = await ended(client, long)

        assert (done.state.value, len(done.assignments)) == ("cancelled", 1)
