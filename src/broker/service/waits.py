"""The history of reasons: `job_waiting`, when why the next job of its kind waits has changed.

Found out for the head of each line and never for the jobs behind it, at most once a look, and only of what has lasted
from one look to the next: events grow with changes, not with jobs, polls or looks.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.matching import Shape
from broker.service import views
from broker.service.context import Broker
from broker.service.rounds import Line
from broker.service.transition import event
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.jobs import Reason

MOST_LOOKED_AT = 1000
"""Lines in one look; the next one goes on behind them."""
NO_NEWS = frozenset({"dispatching", "array_throttle"})  # who submits an array with a throttle knows


@dataclass(frozen=True, slots=True)
class News:
    line: Line
    head: int
    project: str
    why: Reason


async def tell(broker: Broker, most: int = MOST_LOOKED_AT) -> None:
    """One look at the heads of `most` lines."""
    rows, reasons = await broker.store.read(lambda tx: _look(tx, broker, most))
    news = [found for row, why in zip(rows, reasons, strict=True) if (found := _news(broker, row, why)) is not None]
    last = rows[-1] if len(rows) == most else None
    broker.waits.goes_on((last["shape"], last["place"]) if last is not None else None)
    if news:
        await broker.store.run(lambda tx: _tell(tx, news))


def _look(tx: Tx, broker: Broker, most: int) -> tuple[list[Row], list[Reason]]:
    after = broker.waits.after
    rows = tx.all("heads_of_lines", after_shape=after[0], after_place=after[1], limit=most)
    waiting = views.Waiting(tx, broker.quotas(tx))
    return rows, [waiting.reason(Shape.from_key(row["key"]), row["place"]) for row in rows]


def _news(broker: Broker, row: Row, why: Reason) -> News | None:
    line = row["shape"], row["place"]
    lasts = broker.waits.lasts(line, row["head"], why.code)
    if not lasts or why.code in NO_NEWS or (row["told_head"], row["told"]) == (row["head"], why.code):
        return None
    return News(line, row["head"], row["project"], why)


def _tell(tx: Tx, news: list[News]) -> None:
    for one in news:
        shape, place = one.line
        if tx.run("tell_of_head", shape=shape, place=place, head=one.head, code=one.why.code):
            data = one.why.model_dump(exclude_none=True)
            event(tx, EventType.JOB_WAITING, job=one.head, project=one.project, data=data)
