"""Jobs whose time comes: not before an instant that was asked for, or after a failure that is tried again."""

from __future__ import annotations

from functools import partial

import structlog

from broker.core.states import ready_until
from broker.service.context import Broker
from broker.service.rows import read_job
from broker.service.transition import change
from broker.store.contract import Tx

log = structlog.get_logger("broker.times")

BATCH = 200


async def run(broker: Broker) -> None:
    """Let jobs stand in line at their instant. A sweep does too, for clocks are set and disks are full."""
    while True:
        try:
            await open_due(broker)
            within_s = await _until_next(broker)
        except Exception:
            log.exception("could not look whose time has come")
            within_s = None
        await broker.wake.time_to_come(within_s)


async def open_due(broker: Broker) -> None:
    """Each job whose time has come stands in line."""
    while await broker.store.run(partial(_open, listened=broker.listening.now_ms())):
        pass


async def _until_next(broker: Broker) -> float | None:
    row = await broker.store.read(lambda tx: tx.one("next_time"))
    if row is None or row["at"] is None:
        return None
    left_ms: list[int] = [row["at"] - broker.clock.wall_ms()]
    if row["listened"] is not None:
        left_ms.append(row["listened"] - broker.listening.now_ms())
    return max(0, min(left_ms)) / 1000


def _open(tx: Tx, *, listened: int) -> bool:
    """A batch of them. Whether there may be more."""
    due = tx.all("times_come", now=tx.now_ms, listened=listened, limit=BATCH)
    for row in due:
        job = read_job(tx, row["id"])
        assert job is not None, "it was read in this transaction"
        after = job._replace(not_before=None, waits_until=None)
        change(tx, job, after._replace(schedule_until=ready_until(after, listened)))
    return len(due) == BATCH
