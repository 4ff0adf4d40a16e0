"""Rows that can't be read: a hand or a disk has changed them. Each is said once, and harms nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

import structlog

from broker.store.contract import Row

T = TypeVar("T")

log = structlog.get_logger("broker.unreadable")

# What reading such a row raises: a word that is none, a number or JSON that is none, a model that refuses it.
Unreadable = (ValueError, TypeError)


def tell(table: str, row: int, error: Exception) -> None:
    """Once for each row and cause, in the life of this process."""
    _tell(table, row, str(error))


def without(table: str, rows: Iterable[Row], read: Callable[[Row], T], key: str = "id") -> list[T]:
    """`rows` read by `read`, without those that can't be."""
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except Unreadable as error:
            tell(table, row[key], error)
    return found


@lru_cache(maxsize=1000)
def _tell(table: str, row: int, why: str) -> None:
    log.error("a row of the database can't be read; it is left aside", table=table, row=row, why=why)
