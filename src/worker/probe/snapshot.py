"""What the child that talks to the driver says: one JSON object a line. Standard library only."""

from __future__ import annotations

import re
from typing import Literal, TypedDict

_MOST_SAID = 200
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


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


def blank(index: int) -> Device:
    """One of which nothing is known yet."""
    return {
        "index": index,
        "uuid": None,
        "parent": None,
        "model": None,
        "partitioned": False,
        "unified": False,
        "total": None,
        "free": None,
        "driver": None,
        "utilisation": None,
        "uses": None,
        "lost": False,
        "unhealthy": None,
        "faults": {},
    }


def clean(text: str | bytes) -> str:
    """Printable ASCII, not too long: whatever the driver put there."""
    shown = text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)
    return _UNPRINTABLE.sub("?", shown)[:_MOST_SAID].strip()
