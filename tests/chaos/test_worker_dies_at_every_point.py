"""The worker is killed at each point that its code names, in the middle of work, and started again. Its shims live on.

(Shims at their points: `tests/worker/shims/test_shim_death.py`.)
"""

from __future__ import annotations

import re

import pytest

from support.deaths import Keeper, a_bit_of_everything, everything_holds
from support.fleet import Fleet
from support.ledger import Ledger
from support.requirements import ROOT
from support.waiting import eventually
from worker.process.failpoint import SHIM_POINTS, WORKER_POINTS

SMALL = {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.4", "poll_s": "2", "max_losses": "9"}
# Points that every assignment, or every report, passes: which time is in the middle of work.
PASSINGS = {"report_next": 3, "report_answered": 3, "upload_next": 3, "uploaded": 3, "spec_written": 2}


def test_every_point_stands_in_the_code_once_and_has_a_name() -> None:
    sources = (ROOT / "src" / "worker").rglob("*.py")
    named = [name for file in sources for name in re.findall(r'failpoint\("(\w+)"', file.read_text())]
    assert sorted(named) == sorted([*SHIM_POINTS, *WORKER_POINTS])
    assert set(PASSINGS) <= set(WORKER_POINTS)


@pytest.mark.parametrize("point", WORKER_POINTS)
@pytest.mark.guarantee("G4", "G6", "G11")
@pytest.mark.trial("B93")
async def test_a_worker_that_is_killed_there_loses_nothing_and_doubles_nothing(fleet: Fleet, point: str) -> None:
    ledger, keeper = Ledger(fleet.directory / "record"), Keeper(fleet)
    fleet.settings |= SMALL
    fleet.failpoints["w1"] = f"{point}:{PASSINGS.get(point, 1)}"
    async with fleet.client() as client:
        await keeper.start("broker")
        await keeper.start("w1")
        async with keeper.watching():
            talker, endless = await a_bit_of_everything(ledger, client)
            # What is cancelled before it runs is over at once, and no stop of it is ever heard.
            await eventually(lambda: ledger.started(talker) and ledger.started(endless), within_s=30)
            await ledger.cancel(client, endless)
            if point == "leaving":
                fleet.workers["w1"].terminate()
            await ledger.all_ended(client)
            await eventually(lambda: keeper.killed, within_s=10)
            await everything_holds(fleet, ledger, once=True)
        assert keeper.killed == ["w1"]
