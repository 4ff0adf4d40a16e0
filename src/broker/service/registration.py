"""Who may be which worker: a worker process announces itself, and speaks for its own id only."""

from __future__ import annotations

import json

from broker.failpoint import failpoint
from broker.service import machines
from broker.service.context import Broker, Caller
from broker.service.transition import worker_event
from broker.service.wake import ListVoid
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.outcomes import OutcomeLimits
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.states import Scope
from broker.wire.workers import OLDEST_PROTOCOL, Registered, Registration


async def register(broker: Broker, caller: Caller, worker_id: str, said: Registration) -> Registered:
    """A worker process announces itself.

    Refused: an epoch that is not above the known one (`superseded`), the same worker id from another
    machine or boot while its lease is live (a cloned state directory), another id under a live name
    (`worker_name_taken`), a version that is too old to be given work and has none (`forbidden`). A repeat of the
    accepted registration is answered the same.
    """

    def fn(tx: Tx) -> None:
        speaks_for(tx, caller, worker_id)
        known = tx.one("worker", worker=worker_id)
        if known is not None and known["epoch"] == said.epoch and known["machine"] == said.machine:
            _keep_facts(tx, worker_id, said)
            return  # the answer was lost on the way
        _admit_epoch(known, said)
        _admit_version(tx, broker, worker_id, said)
        admit_name(tx, worker_id, said.name)
        tx.run(
            "register_worker",
            id=worker_id,
            name=said.name,
            epoch=said.epoch,
            machine=said.machine,
            host=said.host,
            version=said.version,
            protocol=said.protocol,
            platform=said.platform,
            slots=said.slots,
            tags=json.dumps(sorted(set(said.tags))),
            resources=json.dumps(said.resources or {}),
            supervision=json.dumps(said.supervision),
            checkpoint_root=said.checkpoint_root,
            now=tx.now_ms,
            lease_until=broker.listening.now_ms() + broker.lease_ms,
            polls_until=broker.listening.now_ms() + broker.polls_ms,
        )
        tx.run("forget_refusals", worker=worker_id, listened=broker.listening.now_ms())
        worker_event(
            tx,
            EventType.WORKER_REGISTERED,
            worker_id,
            said.name,
            actor=caller.actor,
            data={"epoch": said.epoch, "host": said.host, "version": said.version},
        )
        tx.tell(ListVoid(worker_id))
        machines.settle(tx, worker_id)  # it may have been lost, and be back
        _keep_facts(tx, worker_id, said)

    await broker.store.run(fn)
    failpoint("registered")
    return Registered(
        installation=broker.installation,
        worker=said.name,
        epoch=said.epoch,
        lease_s=broker.settings.lease_s,
        heartbeat_s=broker.heartbeat_s,
        exclusive_lease_s=broker.settings.exclusive_lease_s,
        poll_s=broker.settings.poll_s,
        observes=True,
        outcomes=outcome_limits(broker.settings),
    )


def speaks_for(tx: Tx, caller: Caller, worker_id: str) -> None:
    """A worker token speaks for one worker only: the first that used it."""
    if Scope.OPERATOR in caller.scopes:
        return
    bound = caller.worker
    if bound is None and caller.token is not None:
        tx.run("bind_token", id=caller.token, worker=worker_id)
        bound = worker_id
    if bound != worker_id:
        raise Refused(
            ProblemCode.FORBIDDEN,
            "this token speaks for another worker",
            hint="make a token for each worker: job token create --scope worker NAME",
        )


def known_worker(tx: Tx, worker_id: str, epoch: int) -> Row:
    """The worker's row, if this epoch is the current one."""
    worker = tx.one("worker", worker=worker_id)
    if worker is None or worker["epoch"] < epoch:
        raise Refused(ProblemCode.UNKNOWN_WORKER, "this worker is not registered", hint="register first")
    if worker["epoch"] > epoch:
        raise Refused(
            ProblemCode.SUPERSEDED, f"epoch {epoch} is over: epoch {worker['epoch']} of this worker has taken over"
        )
    return worker


def outcome_limits(settings: BrokerSettings) -> OutcomeLimits:
    """How much is kept of what one delivery leaves behind."""
    return OutcomeLimits(
        artifact_bytes=int(settings.max_artifact_mb * (1 << 20)),
        artifacts_bytes=int(settings.max_artifacts_mb * (1 << 20)),
        artifacts=settings.max_artifacts,
    )


def _keep_facts(tx: Tx, worker_id: str, said: Registration) -> None:
    worker = tx.one("worker", worker=worker_id)
    if worker is not None and said.facts is not None:
        machines.keep(tx, worker, said.facts)


def _admit_epoch(known: Row | None, said: Registration) -> None:
    if known is None:
        return
    if known["epoch"] >= said.epoch:
        raise Refused(
            ProblemCode.SUPERSEDED,
            f"epoch {known['epoch']} of this worker is known; this process says epoch {said.epoch}",
            hint="a newer process of the same worker has taken over, or its state directory was copied or restored: "
            "give this one a state directory of its own",
        )
    if known["online"] and _machine(known["machine"]) != _machine(said.machine):
        raise Refused(
            ProblemCode.WORKER_NAME_TAKEN,
            f"this worker id is live on {known['host']}: the state directory was cloned",
            hint="give this worker a state directory of its own (JOBD_STATE_DIR)",
        )


def _admit_version(tx: Tx, broker: Broker, worker_id: str, said: Registration) -> None:
    """One that is too old looks after what it has to its end, and is listed as outdated; without work it may not come."""
    if said.protocol >= OLDEST_PROTOCOL or tx.all("live_on_worker", worker=worker_id):
        return
    raise Refused(
        ProblemCode.FORBIDDEN,
        f"a worker of version {said.version} does not understand this broker of version {broker.version}: upgrade {said.name}",
        hint="install the broker's version there, and start the worker again",
    )


def _machine(identity: str) -> str:
    """The machine without its boot: one that came up again is no clone."""
    return identity.partition(":")[0]


def admit_name(tx: Tx, worker_id: str, name: str) -> None:
    live = tx.one("live_worker_of_name", name=name)
    if live is not None and live["id"] != worker_id:
        raise Refused(
            ProblemCode.WORKER_NAME_TAKEN,
            f"a live worker is called {name} already",
            hint="set JOBD_WORKER_NAME to another name, or wait until the other one is lost",
            field="name",
        )
