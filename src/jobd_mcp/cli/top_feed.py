"""What `job top` shows, asked of the broker again and again; a broker that is away for a while is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_list, as_object

SHOWN_STATES = ("running", "assigned", "queued")
MOST_JOBS = 100  # of each state: more than any screen has lines for
MOST_EVENTS = 50
_ANSWER_LIMIT_S = 10.0


@dataclass(frozen=True)
class Snapshot:
    """What the broker said at one time. `trouble`: why nothing newer is there; `since_s` tells for how long."""

    version: str
    where: str
    workers: tuple[Schema, ...]
    jobs: tuple[Schema, ...]
    counts: Schema
    events: tuple[Schema, ...]
    next_event: Json
    taken_at: float
    trouble: str | None = None


def snapshot(connection: Connection, before: Snapshot | None) -> Snapshot:
    """How everything stands now. `before` has the events that were shown already. Raises Failure."""

    def ask(operation: str, arguments: Schema) -> Schema:
        return as_object(connection.call(by_name()[operation], arguments, _ANSWER_LIMIT_S).json())

    lists = [ask("job_list", {"state": state, "limit": MOST_JOBS}) for state in SHOWN_STATES]
    since: Schema = {"since": before.next_event} if before else {"last": MOST_EVENTS}
    told = ask("job_events", {**since, "limit": MOST_EVENTS})
    events = [*(before.events if before else ()), *map(as_object, as_list(told.get("events")))]
    return Snapshot(
        version=str(ask("whoami", {}).get("version")) if before is None or before.trouble else before.version,
        where="this machine" if connection.on_this_machine else connection.url,
        workers=tuple(map(as_object, as_list(ask("worker_list", {}).get("workers")))),
        jobs=tuple(as_object(job) for listing in lists for job in as_list(listing.get("jobs"))),
        counts=as_object(lists[-1].get("counts")),
        events=tuple(events[-MOST_EVENTS:]),
        next_event=told.get("next_cursor"),
        taken_at=time.monotonic(),
    )


class Feed:
    """Asks in a thread of its own, so that keys are heard while the broker is silent. `latest` is always whole."""

    def __init__(self, connection: Connection, first: Snapshot, every_s: float, tell: Callable[[], None]) -> None:
        self._connection = connection
        self._every_s = every_s
        self._tell = tell
        self.latest = first

    def start(self) -> None:
        threading.Thread(target=self._ask_for_ever, name="feed", daemon=True).start()

    def _ask_for_ever(self) -> None:
        while True:
            time.sleep(self._every_s)
            self.latest = self._next()
            self._tell()

    def _next(self) -> Snapshot:
        try:
            return snapshot(self._connection, self.latest)
        except Failure as failure:
            return replace(self.latest, trouble=failure.message)
