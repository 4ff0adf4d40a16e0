"""A line that loses requests and answers, without any death: what was said twice happens once, and nothing is missing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from support.deaths import everything_holds
from support.fleet import Fleet
from support.ledger import Ledger
from support.lossy_proxy import LossyProxy
from support.waiting import eventually


@pytest.fixture
async def line(fleet: Fleet) -> AsyncIterator[LossyProxy]:
    """Between the broker and the worker w1, which live."""
    # A long lease: nothing may be given up because of what is lost.
    fleet.settings |= {"lease_s": "60", "sweep_s": "0.3", "heartbeat_s": "0.3", "poll_s": "1"}
    await fleet.start_broker()
    socket = fleet.directory / "line.sock"
    async with LossyProxy(socket, fleet.state / "broker.sock", random.Random(11)) as proxy:
        await fleet.start_worker("w1", url=f"unix://{socket}")
        yield proxy


@pytest.mark.parametrize(
    ("requests", "answers"), [(0.0, 0.4), (0.4, 0.0), (0.25, 0.25)], ids=["answers", "requests", "both"]
)
@pytest.mark.guarantee("G4", "G6", "G15")
async def test_a_line_that_loses_messages_doubles_nothing_and_leaves_nothing_out(
    fleet: Fleet, line: LossyProxy, requests: float, answers: float
) -> None:
    ledger = Ledger(fleet.directory / "record")
    async with fleet.client() as client:
        line.requests_lost, line.answers_lost = requests, answers
        for exit_code in (0, 3, 0, 7, 0, 5):
            await ledger.submit(client, lines=60, pause_s=0.02, exit_code=exit_code)
        await eventually(lambda: line.lost >= 20, within_s=60)
        await ledger.all_ended(client)
        line.be_honest()
        await everything_holds(fleet, ledger, once=True)
