"""Who has a device that several workers offer, and what has changed about a worker's devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from broker.wire.machines import Facts, Gpu, GpuHealth, GpuState


@dataclass(frozen=True, slots=True)
class Offer:
    uuid: str
    worker: str
    online: bool
    has: bool


def owners(offers: Sequence[Offer]) -> dict[str, str]:
    """Device → worker. `offers` are sorted by device.

    Whoever has it keeps it while it is online: else the first that is. While nobody is, it stays where it is: its
    processes may be there still.
    """
    found = {}
    for uuid, group in groupby(offers, key=lambda offer: offer.uuid):
        rivals = list(group)
        standing = next((offer for offer in rivals if offer.has), None)
        online = [offer for offer in rivals if offer.online]
        if standing is not None and (standing.online or not online):
            found[uuid] = standing.worker
        else:
            found[uuid] = (online or rivals)[0].worker
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """Of one device: None where it was, or is, not there."""

    uuid: str
    was: str | None
    now: str | None
    why: str | None


def changes(before: Facts, after: Facts) -> list[Change]:
    """Devices that came, went, or do otherwise than before."""
    old, new = _by_uuid(before.gpus), _by_uuid(after.gpus)
    return [
        Change(
            uuid,
            old[uuid].health.value if uuid in old else None,
            new[uuid].health.value if uuid in new else None,
            new[uuid].why if uuid in new else after.gpus_why,
        )
        for uuid in sorted(old.keys() | new.keys())
        if uuid not in old or uuid not in new or old[uuid].health is not new[uuid].health
    ]


def carried(before: Facts, after: Facts) -> Facts:
    """`after`; a worker that does not know yet what there is (it has just started) has what it had."""
    if after.gpu_state is not GpuState.UNKNOWN or after.gpus:
        return after
    unknown = {
        "health": GpuHealth.UNKNOWN,
        "why": after.gpus_why,
        "processes": None,
        "free_mb": None,
        "unseen_mb": None,
    }
    return after.model_copy(update={"gpus": [gpu.model_copy(update=unknown) for gpu in before.gpus]})


def _by_uuid(gpus: Sequence[Gpu]) -> dict[str, Gpu]:
    return {gpu.uuid: gpu for gpu in gpus if gpu.uuid is not None}
