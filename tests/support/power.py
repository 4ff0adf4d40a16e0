"""What a power loss leaves: files made from a record of what a program did to them, cut off at any moment.

Of each file everything before its last sync is there. Of every later write, each sector of 512 bytes is there or not,
by chance and on its own: a disk may keep, drop, tear and reorder them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SECTOR = 512


@dataclass(frozen=True)
class Operation:
    """`kind`: w(rite) t(runcate) s(ync) d(elete) m(ark). `at`: an offset, a size, or what was marked."""

    kind: str
    path: str
    at: int
    data: bytes


def read(record: Path) -> list[Operation]:
    return list(_operations(record.read_bytes()))


def _operations(data: bytes) -> Iterator[Operation]:
    head = struct.Struct("=cIqI")
    at = 0
    while at + head.size <= len(data):
        kind, named, where, length = head.unpack_from(data, at)
        at += head.size
        path, body = data[at : at + named], data[at + named : at + named + length]
        at += named + length
        yield Operation(kind.decode(), path.decode(), where, body)


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)


class Disk:
    """Plays operations; `after_power_loss` says what could be found at this moment."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self.marks: set[int] = set()

    def play(self, operation: Operation) -> None:
        match operation.kind:
            case "m":
                self.marks.add(operation.at)
            case "d":
                self._files.pop(operation.path, None)
            case "s":
                file = self._files.setdefault(operation.path, _File())
                for pending in file.pending:
                    _apply(file.durable, pending)
                file.pending.clear()
            case _:
                self._files.setdefault(operation.path, _File()).pending.append(operation)

    def after_power_loss(self, chance: random.Random) -> dict[str, bytes]:
        return {path: _survived(file, chance) for path, file in self._files.items()}


def _survived(file: _File, chance: random.Random) -> bytes:
    image = bytearray(file.durable)
    kept = chance.random()  # some losses leave nearly all, some nearly nothing
    for operation in file.pending:
        if operation.kind == "t":
            if chance.random() < kept:
                _apply(image, operation)
            continue
        for start in range(0, len(operation.data), _SECTOR):
            if chance.random() < kept:
                part = operation.data[start : start + _SECTOR]
                _apply(image, Operation("w", operation.path, operation.at + start, part))
    return bytes(image)


def _apply(image: bytearray, operation: Operation) -> None:
    if operation.kind == "t":
        del image[operation.at :]
        return
    end = operation.at + len(operation.data)
    if len(image) < end:
        image.extend(bytes(end - len(image)))
    image[operation.at : end] = operation.data
