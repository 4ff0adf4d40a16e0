"""What the services are given: the parts of one broker, passed and never imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.logs.files import ArtifactFiles, LogFiles
from broker.service.clock import Clock, Jumps, Listening, Since
from broker.service.configuration import Configuration
from broker.service.feed import Feed
from broker.service.quotas import Quotas
from broker.service.rounds import Rounds
from broker.service.views import Fits
from broker.service.wake import Wake
from broker.snapshots.files import SnapshotFiles
from broker.store.contract import Store, Tx
from broker.wire.settings import BrokerSettings
from broker.wire.states import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `worker`: the one worker a worker token speaks for; None: not bound, or not needed."""

    actor: str
    scopes: frozenset[Scope]
    token: int | None = None
    worker: str | None = None

    def may(self, scope: Scope) -> bool:
        if scope in self.scopes or Scope.OPERATOR in self.scopes:
            return True
        return scope is Scope.READ and Scope.SUBMIT in self.scopes


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker. `make_secret` gives unguessable text for tokens and ids of stop requests."""

    store: Store
    configuration: Configuration
    clock: Clock
    listening: Listening
    jumps: Jumps
    wake: Wake
    feed: Feed
    logs: LogFiles
    artifacts: ArtifactFiles
    snapshots: SnapshotFiles
    make_secret: Callable[[], str]
    installation: str
    version: str
    fits: Fits = field(default_factory=Fits)
    unstarted: Since = field(default_factory=Since)
    idle_leases: Since = field(default_factory=Since)
    waits: Rounds = field(default_factory=Rounds)
    preemptible: Since = field(default_factory=Since)

    @property
    def settings(self) -> BrokerSettings:
        """As they count now."""
        return self.configuration.settings

    def quotas(self, tx: Tx) -> Quotas:
        """What quotas say in this transaction."""
        return Quotas(tx, self.settings, self.listening.now_ms())

    @property
    def lease_ms(self) -> int:
        return int(self.settings.lease_s * 1000)

    @property
    def polls_ms(self) -> int:
        """So long a worker that does not ask for work is counted on."""
        return self.lease_ms + int(self.settings.poll_s * 1000)

    @property
    def pending_lease_ms(self) -> int:
        return self.lease_ms // 4

    @property
    def heartbeat_s(self) -> float:
        return self.settings.heartbeat_s or self.settings.lease_s / 4
