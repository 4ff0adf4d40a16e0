"""What the broker wants confirmed: the client's user is asked where the client can, and never a dead end where it can't."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
from mcp.types import ElicitResult

from broker.client import BrokerClient
from support.scripted_worker import ScriptedWorker

SOMEBODY = ["submit"]
ERAS = ("auto", "legacy")


class User:
    """Answers each question so, and keeps it."""

    def __init__(self, action: str, **content: object) -> None:
        self.action, self.content = action, content
        self.asked: list[str] = []

    async def __call__(self, context, params) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action=self.action, content=self.content or None)


@pytest.fixture
async def worker(broker) -> AsyncIterator[ScriptedWorker]:
    async with BrokerClient(f"unix://{broker.sockets[0]}") as client:
        one = ScriptedWorker(client, f"w-{secrets.token_hex(4)}")
        await one.register()
        yield one


async def running(holder, worker: ScriptedWorker) -> int:
    """Somebody else's job, which runs."""
    async with holder("owner", SOMEBODY) as owner:
        job = (await owner.call_tool("job_submit", {"command": "true", "preemptible": True})).structured_content["id"]
    delivery = await worker.running()
    assert delivery.job == job
    return job


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("tool", ["job_cancel", "job_preempt"])
async def test_a_user_who_confirms_is_asked_once_and_it_is_done(holder, worker, era: str, tool: str) -> None:
    user = User("accept", confirm=True)
    job = await running(holder, worker)
    async with holder("other", SOMEBODY, era=era, asks=user) as client:
        done = await client.call_tool(tool, {"job": [job] if tool == "job_cancel" else job})

    assert not done.is_error, done.content
    assert len(user.asked) == 1
    assert f"Job {job} is running and belongs to owner" in user.asked[0]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "user", [User("accept", confirm=False), User("decline"), User("cancel")], ids=lambda user: user.action
)
async def test_a_user_who_does_not_confirm_changes_nothing(holder, worker, era: str, user: User) -> None:
    job = await running(holder, worker)
    async with holder("other", SOMEBODY, era=era, asks=user) as client:
        said = await client.call_tool("job_cancel", {"job": [job]})
        state = (await client.call_tool("job_get", {"job": job})).structured_content
        await client.call_tool("job_cancel", {"job": [job], "force": True})

    assert said.is_error
    assert said.content[0].text.startswith("declined: ")
    assert (state["state"], "stopping" in state) == ("running", False)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_ask_hears_what_to_do_instead(holder, worker, era: str) -> None:
    job = await running(holder, worker)
    async with holder("other", SOMEBODY, era=era) as client:
        said = await client.call_tool("job_cancel", {"job": [job]})
        forced = await client.call_tool("job_cancel", {"job": [job], "force": True})

    assert said.is_error
    assert "confirmation_needed" in said.content[0].text
    assert "force=true" in said.content[0].text
    assert not forced.is_error


async def test_to_stop_ones_own_work_nobody_is_asked(holder, worker) -> None:
    user = User("decline")
    async with holder("owner", SOMEBODY, asks=user) as client:
        job = (await client.call_tool("job_submit", {"command": "true"})).structured_content["id"]
        await worker.running()
        said = await client.call_tool("job_cancel", {"job": [job]})

    assert not said.is_error
    assert user.asked == []
