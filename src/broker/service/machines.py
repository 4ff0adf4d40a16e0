"""What workers say of their machines: kept, compared with what was there before, and shown."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from broker.core.devices import Offer, carried, changes, owners
from broker.core.placement import Device, Held, Host
from broker.service import unreadable
from broker.service.rows import at, given
from broker.service.transition import event
from broker.service.wake import ListVoid, RoomFree
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.machines import Facts, ForeignProcess, GpuHealth, GpuState, HeldMemory, Vram, WorkerGpu

MOST_CHANGES_TOLD = 32
MOST_PROCESSES_SHOWN = 16
WORTH_SHOWING_MB = 512


def keep(tx: Tx, worker: Row, said: Facts) -> None:
    """Keep them, if they are newer than what is known. `worker`: its row, of the epoch that says them."""
    row = tx.one("facts_of_worker", worker=worker["id"])
    if row is not None and (row["epoch"], row["number"]) >= (worker["epoch"], said.number):
        return
    known = Facts.model_validate_json(row["json"]) if row is not None else None
    facts = carried(known, said) if known is not None else said
    _tell_dispatch(tx, worker, known, facts)
    tx.run(
        "keep_facts",
        worker=worker["id"],
        epoch=worker["epoch"],
        number=facts.number,
        now=tx.now_ms,
        json=facts.model_dump_json(exclude_none=True),
        held=json.dumps(_held_since(facts, json.loads(row["held"]) if row is not None else {}, tx.now_ms)),
    )
    if facts.gpu_state is not GpuState.UNKNOWN:
        _offer(tx, worker, facts)
    if known is not None and said.gpus == facts.gpus:
        _tell(tx, worker, known, facts)


def _held_since(facts: Facts, before: dict[str, int], now_ms: int) -> dict[str, int]:
    """Device → since when its memory is held by nobody; those of which that is not said have none."""
    held = [gpu.uuid for gpu in facts.gpus if gpu.uuid is not None and gpu.health is GpuHealth.MEMORY_HELD]
    return {uuid: before.get(uuid, now_ms) for uuid in held}


def _tell_dispatch(tx: Tx, worker: Row, known: Facts | None, now: Facts) -> None:
    """What had no room here may have it now."""
    if len(now.gpus) != worker["gpus"]:
        tx.run("count_gpus", worker=worker["id"], gpus=len(now.gpus))
        tx.tell(ListVoid(worker["id"]))  # its parked poll knows another number of them: the next one has this one
    if known is not None and (known.gpus, known.ram_gb) == (now.gpus, now.ram_gb):
        return
    freed = tx.run("forget_refusals_of_shapes", worker=worker["id"])
    if freed or known is None or known.gpus != now.gpus:
        tx.tell(RoomFree(worker["id"]))


def settle(tx: Tx, worker: str) -> None:
    """This worker was lost, or came back: who has its devices now?"""
    _settle(tx, [row["uuid"] for row in tx.all("gpus_offered_by", worker=worker)])


def _offer(tx: Tx, worker: Row, facts: Facts) -> None:
    uuids = [gpu.uuid for gpu in facts.gpus if gpu.uuid is not None]
    offered = {row["uuid"] for row in tx.all("gpus_offered_by", worker=worker["id"])}
    if offered == set(uuids):
        return
    tx.run("withdraw_gpus", worker=worker["id"], uuids=json.dumps(uuids))
    for uuid in uuids:
        tx.run("offer_gpu", uuid=uuid, worker=worker["id"])
    standing = _settle(tx, sorted(offered | set(uuids)))
    for uuid in sorted(set(uuids) - offered):
        owner = standing[uuid]
        if owner != worker["id"]:
            name = tx.one("worker", worker=owner)
            event(
                tx,
                EventType.GPU_OFFER_IGNORED,
                worker=worker["name"],
                data={"uuid": uuid, "owner": name["name"] if name is not None else owner},
            )


def _settle(tx: Tx, uuids: list[str]) -> dict[str, str]:
    rows = tx.all("rival_offers", uuids=json.dumps(uuids))
    offers = [Offer(row["uuid"], row["worker"], bool(row["online"]), bool(row["has"])) for row in rows]
    standing = {offer.uuid: offer.worker for offer in offers if offer.has}
    found = owners(offers)
    for uuid, worker in found.items():
        if standing.get(uuid) != worker:
            tx.run("gpu_has_none", uuid=uuid)
            tx.run("give_gpu", uuid=uuid, worker=worker)
            tx.tell(RoomFree(worker))
    return found


def _tell(tx: Tx, worker: Row, before: Facts, after: Facts) -> None:
    """Of devices that came, went, or do otherwise than before; once, and not of those found at the first look."""
    if not before.gpus and before.gpu_state is GpuState.UNKNOWN:
        return
    found = changes(before, after)
    if found:
        jobs = _jobs_on_devices(tx)
        told = [
            {"uuid": change.uuid, "was": change.was or "absent", "now": change.now or "absent", "why": change.why or ""}
            | ({"jobs": jobs[change.uuid]} if change.uuid in jobs else {})
            for change in found[:MOST_CHANGES_TOLD]
        ]
        event(tx, EventType.WORKER_GPUS_CHANGED, worker=worker["name"], data={"changed": told})


def _jobs_on_devices(tx: Tx) -> dict[str, list[str]]:
    """Device → the assignments that were given it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for _, held in _held(tx):
        for share in held.given.gpus or ():
            found[share.uuid].append(held.assignment)
    return found


def troubles(tx: Tx, worker: str, uuids: Collection[str]) -> list[str]:
    """What is wrong with these devices of a worker, a sentence for each, as its worker said last."""
    facts = facts_of(tx, worker)
    known = {gpu.uuid: gpu for gpu in facts.gpus} if facts is not None else {}
    found = []
    for uuid in uuids:
        gpu = known.get(uuid)
        if gpu is None:
            found.append(f"its device {uuid} is not there any more")
        elif gpu.health is not GpuHealth.OK:
            found.append(f"its device {uuid} is {gpu.health}: {gpu.why or 'it does not say why'}")
    return found


def facts_of(tx: Tx, worker: str) -> Facts | None:
    """What a worker's machine has, as it said last."""
    row = tx.one("facts_of_worker", worker=worker)
    return _facts(row["json"]) if row is not None else None


@lru_cache(maxsize=512)
def _facts(json_: str) -> Facts:
    return Facts.model_validate_json(json_)


def _held(tx: Tx) -> list[tuple[str, Held]]:
    """What is reserved besides cpus, with whose it is. One row that can't be read hides no other."""
    rows = unreadable.without("assignments", tx.all("given_away"), lambda row: (row, given(row)))
    return [(row["worker"], Held(f"{row['job']}.{row['attempt']}", what)) for row, what in rows if what is not None]


def host_of(tx: Tx, worker: Row) -> Host:
    """What one worker has besides cpus, and what is left of it. Three statements: only for jobs that ask for that."""
    ignored = frozenset(row["uuid"] for row in tx.all("ignored_offers_of", worker=worker["id"]))
    return _host(worker, facts_of(tx, worker["id"]), ignored, _held(tx))


def _host(worker: Row, facts: Facts | None, ignored: frozenset[str], held: list[tuple[str, Held]]) -> Host:
    mine = tuple(replace(what, here=owner == worker["id"]) for owner, what in held)
    resources: dict[str, int] = json.loads(worker["resources"])
    return Host(worker["name"], facts, tuple(resources.items()), mine, ignored)


class Shown:
    """The machines of one answer, read once."""

    def __init__(self, tx: Tx) -> None:
        rows = tx.all("all_facts")
        self._json = {row["worker"]: _facts(row["json"]) for row in rows}
        self._held_since: dict[str, dict[str, int]] = {row["worker"]: json.loads(row["held"]) for row in rows}
        self._held = _held(tx)
        self._ignored: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for row in tx.all("ignored_offers"):
            self._ignored[row["worker"]][row["uuid"]] = row["owner"]

    def facts(self, worker: str) -> Facts | None:
        return self._json.get(worker)

    def host(self, worker: Row) -> Host:
        return _host(worker, self.facts(worker["id"]), frozenset(self._ignored[worker["id"]]), self._held)

    def gpus(self, worker: Row) -> list[WorkerGpu] | None:
        ignored, online = self._ignored[worker["id"]], bool(worker["online"])
        since = self._held_since.get(worker["id"], {})
        shown = [
            _gpu(device, ignored.get(device.gpu.uuid or ""), since.get(device.gpu.uuid or ""), online=online)
            for device in self.host(worker).devices
        ]
        return shown or None


def _gpu(device: Device, owner: str | None, held_since: int | None, *, online: bool) -> WorkerGpu:
    gpu = device.gpu
    processes = gpu.processes or []
    foreign = [process for process in processes if process.job is None and process.seen]
    foreign_mb = [process.mb for process in foreign if process.mb is not None]
    # Who can't be seen may be one of ours, behind another pid namespace: that is not called foreign.
    unseen_mb = (gpu.unseen_mb or 0) + sum(process.mb or 0 for process in processes if not process.seen)
    unseen = unseen_mb if unseen_mb >= WORTH_SHOWING_MB else None
    vram = Vram(
        total=_gib(gpu.total_mb),
        free=_gib(gpu.free_mb),
        foreign=_gib(sum(foreign_mb)) if foreign_mb else None,
        unseen=_gib(unseen),
        reserved=_gib(device.reserved_mb) if device.reserved_mb else None,
    )
    return WorkerGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        parent=gpu.parent,
        vram_gb=vram if vram.total is not None else None,
        unified=gpu.unified or None,
        utilisation=gpu.utilisation,
        health=gpu.health if online else GpuHealth.UNKNOWN,
        why=gpu.why if online else None,
        held=HeldMemory(gb=_gib(gpu.unseen_mb), since=at(held_since)) if held_since is not None and online else None,
        jobs=sorted(device.shares.keys() | {process.job for process in processes if process.job is not None}) or None,
        foreign=[
            ForeignProcess(pid=process.pid, user=process.user, name=process.name, gb=_gib(process.mb))
            for process in foreign[:MOST_PROCESSES_SHOWN]
        ]
        or None,
        exclusive=device.exclusive or None,
        ignored=owner,
    )


def _gib(mb: int | None) -> float | None:
    return None if mb is None else round(mb / 1024, 1)
