"""A newer program and an older broker, and the other way round."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace

import httpx
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from jobd_mcp.local import alive
from support import releases
from support.installation import Installation, broker_pid
from support.ports import port_that_was_free
from support.processes import processes_of
from support.running_job import begin_job, end_well
from support.waiting import eventually_sync


def brokers(installation: Installation) -> list[int]:
    return [process.pid for process in processes_of(installation.directory) if " jobd broker" in process.command]


def log_of(installation: Installation) -> str:
    return (installation.state / "broker.log").read_text()


def online(installation: Installation, version: str) -> bool:
    [worker] = installation.ask("/v1/workers").json()["workers"]
    return (worker["state"], worker["version"]) == ("online", version)


@pytest.mark.guarantee("G23")
def test_a_newer_program_takes_over_what_runs_goes_on_and_there_is_no_way_back(use, older, newer) -> None:
    port = port_that_was_free()
    before = replace(use(older), settings={"JOBD_LISTEN": f"127.0.0.1:{port}"})
    first = broker_pid(before)
    job = begin_job(before)
    after = use(newer)
    second = after.submit("--", "true")
    up = after.good("up", "--json").json()
    assert (up["version"], up["started"]) == ("0.2.0", False)
    assert up["pid"] != first
    eventually_sync(lambda: not alive(first))
    eventually_sync(lambda: online(after, "0.2.0"), within_s=60)
    # The one that took over was started by a program without that setting: it has its predecessor's.
    assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=20, trust_env=False).status_code == 200
    assert after.job("wait", str(second)).code == 0
    end_well(after, job)
    # The older program uses the newer broker, and starts none of its own on the newer schema.
    back = use(older)
    assert back.job("run", "--", "true").code == 0
    assert broker_pid(back) == up["pid"]
    back.good("down")
    refused = back.job("up")
    assert refused.code == 125
    assert "it was used by a newer version; install that version" in refused.err


@pytest.mark.guarantee("G23")
def test_a_broker_that_was_killed_is_followed_by_a_newer_one_with_a_worker_of_its_own(use, older, newer) -> None:
    before = use(older)
    first = broker_pid(before)
    job = begin_job(before)
    os.kill(first, signal.SIGKILL)
    eventually_sync(lambda: not alive(first))
    after = use(newer)
    assert after.good("up", "--json").json()["version"] == "0.2.0"
    eventually_sync(lambda: online(after, "0.2.0"), within_s=60)
    end_well(after, job)


@pytest.mark.guarantee("G23")
async def test_five_newer_clients_at_once_make_one_hand_over_and_an_open_session_goes_on(use, older, newer) -> None:
    before = use(older)
    first = await asyncio.to_thread(broker_pid, before)
    job = await asyncio.to_thread(begin_job, before)

    def session(release: releases.Release) -> Client:
        return Client(
            StdioServerParameters(command=release.command("jobd-mcp"), args=[], env=dict(before.environ)), mode="auto"
        )

    async def one() -> int:
        async with session(newer) as client:
            return (await client.call_tool("job_submit", {"command": "true"})).structured_content["id"]

    async with session(older) as open_since_before:
        assert (await open_since_before.call_tool("job_get", {"job": job})).structured_content["state"] == "running"
        ids = await asyncio.gather(*(one() for _ in range(5)))
        assert len(set(ids)) == 5
        got = await open_since_before.call_tool("job_get", {"job": max(ids)})
        assert got.structured_content["id"] == max(ids)
    after = use(newer)
    eventually_sync(lambda: not alive(first))
    assert await asyncio.to_thread(brokers, after) == [await asyncio.to_thread(broker_pid, after)]
    assert log_of(after).count('"event": "listening"') == 2
    assert "already" not in log_of(after)
    await asyncio.to_thread(end_well, after, job)


def test_a_broker_that_somebody_runs_in_the_foreground_is_left_alone(use, older, newer) -> None:
    before, after = use(older), use(newer)
    foreground = subprocess.Popen([before.program, "broker"], env=before.environ, stderr=subprocess.DEVNULL)
    try:
        eventually_sync(lambda: before.job("list").code == 0, within_s=60)
        submitted = after.good("submit", "--", "true")
        [line] = submitted.err.splitlines()
        assert line.startswith("jobd-mcp 0.2.0: the broker here is of version 0.1.0 and stays: it was not started by")
        assert foreground.poll() is None
        assert after.good("list").err == ""  # what only looks says nothing
    finally:
        foreground.terminate()
        foreground.wait(30)


@pytest.mark.guarantee("G23")
def test_a_successor_that_cannot_start_leaves_the_older_broker_at_work(use, older, newer) -> None:
    before = use(older)
    first = broker_pid(before)
    job = begin_job(before)
    wrong = replace(use(newer), settings={"JOBD_LISTEN": "everywhere"})
    submitted = wrong.good("submit", "--json", "--", "true")
    assert "stays: its successor did not start: JOBD_LISTEN" in submitted.err.replace("\n", " ")
    assert broker_pid(before) == first
    assert before.job("wait", str(submitted.json()["id"])).code == 0
    end_well(before, job)
