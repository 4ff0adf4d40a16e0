"""The broker is killed at each point that its code names, in the middle of work, and started again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from broker.client import Unreachable
from broker.failpoint import POINTS
from broker.wire.problems import ProblemCode, Refused
from support import releases
from support.deaths import Keeper, a_bit_of_everything, everything_holds
from support.fleet import Fleet, submit
from support.ledger import Ledger
from support.requirements import ROOT
from support.waiting import eventually

SMALL = {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": "2", "max_losses": "9"}
# Nothing is written for longer than the store waits before it tidies up.
CALM = {"lease_s": "60", "sweep_s": "30", "heartbeat_s": "20", "poll_s": "30", "max_losses": "9"}


@dataclass(frozen=True)
class Story:
    """What has to happen for a point to be reached. A new point gets the common story."""

    passing: int = 1
    machine_dies: bool = False
    hands_over: bool = False
    successor_dies: bool = False
    older_database: bool = False
    settings: dict[str, str] = field(default_factory=lambda: SMALL)


FORGETTING = ("logs_forgotten", "rows_next")
STORIES = {
    "migrating": Story(passing=2, older_database=True),
    "migrated": Story(older_database=True),
    "writing": Story(passing=12),
    "committed": Story(passing=12),
    "published": Story(passing=12),
    "reported": Story(passing=4),
    "appended": Story(passing=4),
    "append_torn": Story(passing=4),
    "swept": Story(machine_dies=True, settings={**SMALL, "lease_s": "2"}),
    "expiring": Story(machine_dies=True, settings={**SMALL, "lease_s": "2"}),
    "checkpoint_next": Story(settings=CALM),
    "succession_asked": Story(hands_over=True, successor_dies=True),
    "polls_answered": Story(hands_over=True),
    "store_closed": Story(hands_over=True),
}


def test_every_point_stands_in_the_code_once_and_has_a_name() -> None:
    sources = [*(ROOT / "src" / "broker").rglob("*.py"), *(ROOT / "src" / "jobd_mcp").rglob("*.py")]
    named = [name for file in sources for name in re.findall(r'failpoint\(?,? ?"(\w+)"', file.read_text())]
    assert sorted(named) == sorted(POINTS)
    assert set(STORIES) <= set(POINTS)


@pytest.mark.trial("B51")
@pytest.mark.parametrize("point", [point for point in POINTS if point not in FORGETTING])
@pytest.mark.guarantee("G1", "G4", "G6")
async def test_a_broker_that_is_killed_there_loses_nothing_and_doubles_nothing(fleet: Fleet, point: str) -> None:
    story = STORIES.get(point, Story())
    ledger, keeper = Ledger(fleet.directory / "record"), Keeper(fleet)
    fleet.settings |= story.settings
    async with fleet.client() as client:
        if story.older_database:
            await begun_by_the_first_release(fleet, ledger, client)
        chosen = f"{point}:{story.passing}"
        if not story.successor_dies:
            fleet.failpoints["broker"] = chosen
        await keeper.start("broker")
        async with keeper.watching():
            if story.machine_dies:
                await a_machine_dies(fleet, ledger, client)
            await ledger.submit(client, lines=2)  # waits for the first poll; what follows is given to a parked one
            await keeper.start("w1")
            talker, endless = await a_bit_of_everything(ledger, client)
            await eventually(lambda: ledger.started(talker), within_s=30)
            if story.hands_over:
                if story.successor_dies:
                    fleet.failpoints["broker"] = chosen
                await keeper.hand_over()
            await ledger.cancel(client, endless)
            await ledger.all_ended(client)
            await eventually(lambda: keeper.killed, within_s=10)
            await everything_holds(fleet, ledger, once=not story.machine_dies, workers=not story.older_database)
        assert keeper.killed == ["broker"]


async def a_machine_dies(fleet: Fleet, ledger: Ledger, client) -> None:
    await fleet.start_worker("doomed")
    lost = await ledger.submit(client, lines=40, pause_s=0.05)
    await eventually(lambda: f"{lost.id}.1" in ledger.lines("beat"), within_s=30)
    fleet.kill_machine("doomed")


async def begun_by_the_first_release(fleet: Fleet, ledger: Ledger, client) -> None:
    """A database with jobs in it, one of them over, as the oldest release leaves it when it is killed."""
    first = releases.source_of(releases.FIRST, fleet.directory / "first")
    fleet.source = {"broker": first, "w0": first}
    await fleet.start_broker()
    await fleet.start_worker("w0")
    await ledger.submit(client, lines=2, exit_code=5)
    await ledger.all_ended(client)
    await ledger.settled(client)
    fleet.workers["w0"].terminate()
    fleet.workers["w0"].wait(20)
    await ledger.submit(client, lines=2)
    fleet.kill_broker()
    fleet.source = {}


@pytest.mark.parametrize("point", FORGETTING)
async def test_a_broker_that_is_killed_while_it_forgets_old_jobs_forgets_them_whole(fleet: Fleet, point: str) -> None:
    keeper = Keeper(fleet)
    fleet.settings |= {**SMALL, "keep_env_s": "1", "keep_logs_s": "2", "keep_jobs_s": "4"}
    fleet.failpoints["broker"] = point
    await keeper.start("broker")
    await keeper.start("w1")
    async with fleet.client() as client, keeper.watching():
        jobs = [await submit(client, "echo out; exit 3") for _ in range(3)]
        await eventually(lambda: keeper.killed, within_s=60)
        await eventually(lambda: all_forgotten(client, jobs), within_s=60)
        assert not list((fleet.state / "logs").glob("*/*/*"))
        later = await submit(client, "echo later")
        assert later > max(jobs)
    assert keeper.killed == ["broker"]


async def all_forgotten(client, jobs: list[int]) -> bool:
    for job in jobs:
        try:
            await client.job_get(job)
        except Refused as refusal:
            if refusal.code is ProblemCode.UNKNOWN_JOB:
                continue
        except Unreachable:
            pass
        return False
    return True
