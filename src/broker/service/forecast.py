"""When jobs start and end, as far as their history tells: read for one answer, and never written."""

from __future__ import annotations

from collections.abc import Collection

from broker.core import forecast
from broker.core.ahead import Before
from broker.core.estimates import FEWEST, Estimate
from broker.core.forecast import MOST_AHEAD, MOST_SHAPES, Queued, Running, Start, able
from broker.core.matching import Machine, Shape
from broker.core.states import TERMINAL
from broker.service import history, rivals, views
from broker.service.context import Broker
from broker.service.rivals import Place, Rival
from broker.store.contract import Row, Tx
from broker.wire.jobs import Ahead, Eta, Reason
from broker.wire.states import JobState

HELD_BACK = {
    "hold": Start(None, "when somebody releases it is not known"),
    "not_before": Start(None, "not before its time"),
    "retry_delay": Start(None, "not before its time"),
    "quota": Start(None, "when its quota lets it start is not known"),
    "array_throttle": Start(None, "when another member of its array ends is not known"),
    "preferred_worker": Start(None, "when the worker to which it is left has room is not known"),
    "reservation": Start(None, "it starts after the job for which room is kept, and when that starts is not known"),
}
"""Reasons to wait of which a forecast knows nothing: by what is free the job could start now."""


def place_of_job(tx: Tx, row: Row) -> Place:
    """Of a queued job, by its `job_view`."""
    key = tx.one("shape_key", shape=row["shape"])
    assert key is not None, "jobs refer to their shape"
    parents = tuple(parent["id"] for parent in tx.all("parents", child=row["id"])) if row["blocked"] else ()
    return Place(Shape.from_key(key["key"]), row["priority"], row["id"], parents)


def eta(tx: Tx, broker: Broker, row: Row, waits: Reason | None) -> Eta | None:
    """Of a job, by its `job_view` and why it waits: when it starts, how long it runs or how much of that is left; None: not known."""
    match JobState(row["state"]):
        case JobState.RUNNING:
            return _until_end(tx, broker, row)
        case JobState.QUEUED:
            return _until_start(tx, broker, row, waits)
        case _:
            return None


def _until_end(tx: Tx, broker: Broker, row: Row) -> Eta | None:
    outlook = Outlook(tx, broker, [])
    run = outlook.left(row["fingerprint"], row["started_at"])
    if run.run_s is None:
        return Eta(basis=run.basis) if run.samples >= FEWEST else None
    left_s = outlook.left_s(row["fingerprint"], row["started_at"])
    return Eta(run_s=run.run_s, left_s=None if left_s is None else round(left_s, 1), basis=run.basis)


def _until_start(tx: Tx, broker: Broker, row: Row, waits: Reason | None) -> Eta | None:
    outlook = Outlook(tx, broker, views.machines(tx))
    place = place_of_job(tx, row)
    refused = [one["worker"] for one in tx.all("refusals_of_place", place=row["place"], key=place.shape.key())]
    held_back = HELD_BACK.get(waits.code) if waits is not None else None
    start, run = held_back or outlook.start(place, refused), outlook.run(row["fingerprint"])
    if start.start_s is None and run.run_s is None:
        return None
    return Eta(start_s=start.start_s, run_s=run.run_s, basis=told(start, run))


def told(start: Start, run: Estimate) -> str:
    """What two estimates rest on, in one line."""
    parts = (("start", start.basis), ("run", run.basis))
    return "; ".join(f"{what}: {basis}" for what, basis in parts if basis)


class Outlook:
    """What is known for one answer. Each command's history is read once."""

    def __init__(self, tx: Tx, broker: Broker, machines: list[Machine]) -> None:
        self._tx, self._broker, self._machines = tx, broker, machines
        self._estimates: dict[str | None, Estimate] = {}
        self._rivals: dict[tuple[Place, frozenset[str]], tuple[list[Machine], list[Rival]]] = {}

    def run(self, fingerprint: str | None) -> Estimate:
        """How long a job of this fingerprint runs."""
        if fingerprint not in self._estimates:
            self._estimates[fingerprint] = history.estimate(self._tx, fingerprint)
        return self._estimates[fingerprint]

    def left(self, fingerprint: str | None, started_at: int | None) -> Estimate:
        """The same of one that runs already, since `started_at` by the broker's clock: from its start, too."""
        return history.estimate(self._tx, fingerprint, self._ran_s(started_at))

    def left_s(self, fingerprint: str | None, started_at: int | None) -> float | None:
        run_s = self.left(fingerprint, started_at).run_s
        return None if run_s is None else max(0.0, run_s - self._ran_s(started_at))

    def start(self, place: Place, barred: Collection[str] = ()) -> Start:
        """When a job in this place starts. `barred`: workers that said no to its directory or environment."""
        there, found = self._rivals_of(place, barred)
        ready_s = self._ready_s(place.waits_for)
        if isinstance(ready_s, Start):
            return ready_s
        ahead = self._ahead(place, there, found)
        if ahead is None:
            return Start(None, f"more than {MOST_AHEAD} jobs, or many kinds of them, are ahead of it")
        return forecast.forecast(place.shape, ahead, there, self._running(), ready_s)

    def ahead(self, place: Place, barred: Collection[str] = ()) -> Ahead | None:
        """Which jobs have their turn before it where it could run; None: none."""
        there, found = self._rivals_of(place, barred)
        if not found:
            return None
        before, whole = rivals.count(self._tx, self._broker, place, there, found)
        return (
            Ahead(jobs=before.jobs, at_least=None if whole else True, because=_because(before)) if before.jobs else None
        )

    def _rivals_of(self, place: Place, barred: Collection[str]) -> tuple[list[Machine], list[Rival]]:
        key = (place, frozenset(barred))
        if key not in self._rivals:
            there = able(place.shape, self._machines, frozenset(barred))
            self._rivals[key] = (there, rivals.rivals(self._tx, self._broker, place, there))
        return self._rivals[key]

    def _ran_s(self, started_at: int | None) -> float:
        return 0.0 if started_at is None else max(0.0, (self._tx.now_ms - started_at) / 1000)

    def _ready_s(self, parents: Collection[int]) -> float | Start:
        """When the last of these has ended; or why that can't be known."""
        latest = 0.0
        for parent in parents:
            row = self._tx.one("run_of_job", job=parent)
            if row is None or JobState(row["state"]) in TERMINAL:
                continue
            left_s = self.left_s(row["fingerprint"], row["started_at"]) if row["state"] == JobState.RUNNING else None
            if left_s is None:
                return Start(None, f"it starts after job {parent}, and when that ends is not known")
            latest = max(latest, left_s)
        return latest

    def _running(self) -> list[Running]:
        return [
            Running(f"{row['job']}.{row['attempt']}", row["worker"], row["cpus"], self._until_end(row))
            for row in self._tx.all("running_now")
        ]

    def _until_end(self, row: Row) -> float | None:
        if row["stop_id"] is not None:
            grace_s: float = row["stop_grace_s"]
            asked_at: int = row["stop_at"]
            return max(0.0, grace_s - (self._tx.now_ms - asked_at) / 1000)
        return self.left_s(row["fingerprint"], row["started_at"])

    def _ahead(self, place: Place, there: list[Machine], found: list[Rival]) -> list[Queued] | None:
        """Jobs that have their turn before, and may take the same room; None: too many to look at.

        By priority, the projects' included, then by age: whose turn it is among projects of the same priority depends on
        what they will have used by then.
        """
        if len(found) > MOST_SHAPES:
            return None
        ahead: list[tuple[int, int, Queued]] = []
        for rival in found:
            most = MOST_AHEAD + 1 - len(ahead)
            for priority, id_, fingerprint in rivals.first_of(self._tx, rival, place, there, most):
                job = Queued(rival.shape, self.run(fingerprint).run_s)
                ahead.append((rival.priority - priority, id_, job))
            if len(ahead) > MOST_AHEAD:
                return None
        return [job for _, _, job in sorted(ahead, key=lambda one: one[:2])]


def _because(before: Before) -> str:
    parts = (
        (before.higher, "of a higher priority"),
        (before.older, "submitted before it"),
        (before.in_turn, "of other projects in turn"),
    )
    return ", ".join(f"{jobs} {why}" for jobs, why in parts if jobs)
