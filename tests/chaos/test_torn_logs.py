"""The broker's host crashes, and the ends of log files that were not synced are gone."""

from __future__ import annotations

import random

import pytest

from support import torn_logs
from support.deaths import everything_holds
from support.fleet import Fleet
from support.ledger import Ledger
from support.waiting import eventually


@pytest.mark.guarantee("G15")
async def test_what_a_crash_took_from_the_logs_is_sent_again_to_the_byte(fleet: Fleet) -> None:
    fleet.settings |= {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.3", "poll_s": "2"}
    ledger, chance, torn = Ledger(fleet.directory / "record"), random.Random(5), 0
    await fleet.start_broker()
    await fleet.start_worker("w1")
    async with fleet.client() as client:
        jobs = [await ledger.submit(client, lines=60, pause_s=0.04, exit_code=3) for _ in range(3)]
        await eventually(lambda: all(ledger.started(job) for job in jobs))
        for _ in range(3):
            seen = len(ledger.lines("beat"))
            await eventually(lambda seen=seen: len(ledger.lines("beat")) >= seen + 20 or ledger.lines("end"))
            fleet.kill_broker()
            torn += torn_logs.tear(fleet.state, chance)
            await fleet.start_broker()
        assert torn >= 3
        await ledger.all_ended(client)
        await everything_holds(fleet, ledger, once=True)
