"""A client comes and goes, the broker comes and goes: jobs go on. Everything here is real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from jobd_mcp import local
from support.waiting import eventually


def environ_of(state: Path) -> dict[str, str]:
    return {"JOBD_STATE_DIR": str(state), "PATH": os.environ["PATH"], "HOME": str(state)}


@pytest.fixture
def state(state_dir: Path) -> Iterator[Path]:
    yield state_dir
    local.down(environ_of(state_dir), "stop")


@asynccontextmanager
async def client(state: Path) -> AsyncIterator[Client]:
    script = str(Path(sys.executable).with_name("jobd-mcp"))
    async with Client(StdioServerParameters(command=script, args=[], env=environ_of(state))) as one:
        yield one


async def running(one: Client, job: int) -> bool:
    return (await one.call_tool("job_get", {"job": job})).structured_content["state"] == "running"


@pytest.mark.guarantee("G20")
async def test_a_second_client_sees_the_jobs_of_the_first_finish(state: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f'read -t 1 line; echo "read: $? [$line]"; until test -e {gate}; do sleep 0.05; done; echo done; exit 3'
    async with client(state) as first:
        job = (await first.call_tool("job_submit", {"command": command})).structured_content["id"]
        await eventually(lambda: running(first, job), within_s=30)
        assert not (await first.call_tool("job_list", {})).is_error  # the job reads no byte of the protocol
    async with client(state) as second:
        gate.touch()
        waited = await second.call_tool("job_wait", {"job": job, "timeout_s": 30})
        [end] = waited.structured_content["jobs"]
        assert (end["state"], end["exit_code"]) == ("failed", 3)
        shown = (await second.call_tool("job_logs", {"job": job})).content[0].text
        assert "read: 1 []" in shown
        assert "done" in shown


async def test_down_refuses_names_keeps_or_stops_what_runs(state: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    environ = environ_of(state)
    async with client(state) as one:
        job = await one.call_tool("job_submit", {"command": f"until test -e {gate}; do sleep 0.05; done; exit 7"})
        job = job.structured_content["id"]
        await eventually(lambda: running(one, job), within_s=30)
    with pytest.raises(local.RunningJobs, match=f"1 job is running: {job}") as refused:
        local.down(environ)
    assert refused.value.ids == [job]
    assert local.find(local.here(environ)) is not None

    assert local.down(environ, "keep")
    gate.touch()  # it ends while nobody listens, and the next worker tells how
    async with client(state) as one:
        waited = await one.call_tool("job_wait", {"job": job, "timeout_s": 30})
        assert waited.structured_content["jobs"][0]["exit_code"] == 7
        events = (await one.call_tool("job_events", {"job": job})).structured_content["events"]
        assert [event["type"] for event in events].count("job_started") == 1

        gate.unlink()
        second = (await one.call_tool("job_submit", {"command": "sleep 1000"})).structured_content["id"]
        await eventually(lambda: running(one, second), within_s=30)
        assert local.down(environ, "stop")
    async with client(state) as one:
        stopped = (await one.call_tool("job_get", {"job": second})).structured_content
        assert stopped["state"] == "cancelled"
