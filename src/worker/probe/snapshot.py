"""What the child that talks to the driver says: one JSON object a line. Standard library only."""

from __future__ import annotations

from typing import Literal, TypedDict


class Ancestor(TypedDict):
    pid: int
    start: int


class ProcessFacts(TypedDict):
    """What /proc says of a process that has device memory, read right after the driver was asked."""

    user: str
    name: str
    groups: list[str]  # paths of its cgroups
    line: list[Ancestor]  # itself, its parent, and so on


class Use(TypedDict):
    pid: int
    bytes: int | None


class Device(TypedDict):
    """One device. `faults`: what could not be found out, and the driver's word for it."""

    index: int
    uuid: str | None
    parent: str | None
    model: str | None
    partitioned: bool
    unified: bool
    total: int | None
    free: int | None
    driver: int | None
    utilisation: int | None
    uses: list[Use] | None
    lost: bool
    unhealthy: str | None
    faults: dict[str, str]


class Snapshot(TypedDict):
    """`absent`: nothing here that jobs could use, says `why`. `failed`: there is something, and it can't be read."""

    state: Literal["ok", "absent", "failed"]
    why: str | None
    driver: str | None
    cuda: str | None
    devices: list[Device]
    processes: dict[str, ProcessFacts]  # by pid; who is not here could not be seen


def nothing(state: Literal["absent", "failed"], why: str) -> Snapshot:
    return {"state": state, "why": why, "driver": None, "cuda": None, "devices": [], "processes": {}}
