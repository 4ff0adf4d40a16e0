"""Whose quota is in the way of a job: when it is submitted, when it would start, and when somebody asks why it waits."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.matching import Shape
from broker.core.order import word_of
from broker.core.quotas import Has, Over, denies, holds
from broker.service.holding import owner_of_project, owner_of_token, read
from broker.store.contract import Row, Tx
from broker.wire.jobs import Reason
from broker.wire.projects import Quota
from broker.wire.settings import BrokerSettings
from broker.wire.states import JobState


@dataclass(frozen=True, slots=True)
class Owner:
    """A project or a token that has a quota."""

    name: str
    token: bool
    quota: Quota

    def __str__(self) -> str:
        return f"{'token' if self.token else 'project'} {self.name}"


class Quotas:
    """In one transaction. What has none costs no statement."""

    def __init__(self, tx: Tx, settings: BrokerSettings, listened: int) -> None:
        self._tx, self._settings, self._listened = tx, settings, listened
        self._has: dict[Owner, Has] = {}

    def denies(self, project: str, token: str | None, count: int, gpus: int) -> tuple[Owner, Over] | None:
        """What forbids to accept these jobs. To be asked before they are inserted."""
        for owner in self._owners(project, token):
            over = denies(owner.quota, self._read(owner), count, gpus)
            if over is not None:
                return owner, over
        return None

    def forbids_start(self, project: str, token: str | None, gpus: int) -> tuple[Owner, Over] | None:
        """What keeps one more job from running now, whether what is over waits or is denied."""
        for owner in self._owners(project, token):
            over = holds(owner.quota, self._read(owner), gpus)
            if over is not None:
                return owner, over
        return None

    def holds(self, shape: Shape) -> Reason | None:
        """What keeps one more job of this shape from a start."""
        for owner in self._owners(shape.project, shape.token):
            if owner not in self._has:
                self._has[owner] = self._read(owner)
            over = holds(owner.quota, self._has[owner], shape.demand.gpus)
            if over is not None:
                left = max(0.0, over.limit - over.have)
                return Reason(code="quota", message=over.said_of(str(owner)), need=over.need, have=left)
        return None

    def changed(self) -> None:
        """A job was given to a worker in this transaction."""
        self._has.clear()

    def _owners(self, project: str, token: str | None) -> list[Owner]:
        found = []
        table = word_of(self._settings.projects, project, "quota")
        if table is not None and table.quota is not None:
            found.append(Owner(project, token=False, quota=table.quota))
        of_token = self._settings.tokens.get(token) if token is not None else None
        if of_token is not None and of_token.quota is not None and token is not None:
            found.append(Owner(token, token=True, quota=of_token.quota))
        return found

    def _read(self, owner: Owner) -> Has:
        tx = self._tx
        if owner.token:
            rows = tx.all("live_token_counts", token=owner.name)
        else:
            rows = tx.all("live_counts", project=owner.name)
        waits = [row for row in rows if row["state"] == JobState.QUEUED]
        runs = [row for row in rows if row["state"] != JobState.QUEUED]
        return Has(_jobs(waits), _gpus(waits), _jobs(runs), _gpus(runs), self._gpu_hours(owner))

    def _gpu_hours(self, owner: Owner) -> float:
        if owner.quota.gpu_hours_per_day is None:
            return 0.0
        key = owner_of_token(owner.name) if owner.token else owner_of_project(owner.name)
        return read(self._tx, key).gpu_s_of_day(self._listened, self._tx.now_ms) / 3600


def _jobs(rows: list[Row]) -> int:
    return sum(row["n"] for row in rows)


def _gpus(rows: list[Row]) -> int:
    return sum(row["gpus"] for row in rows)


def token_with_quota(settings: BrokerSettings, actor: str, token: int | None) -> str | None:
    """The name of who asks with this token, if its jobs are counted: those of others are not."""
    table = settings.tokens.get(actor) if token is not None else None
    return actor if table is not None and table.quota is not None else None
