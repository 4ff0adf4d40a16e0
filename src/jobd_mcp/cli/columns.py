"""Rows as columns that fit a line: some take what they need, the open ones share what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobd_mcp.cli import cells

GAP = 2
_LEAST_OPEN = 12  # an open column keeps so many cells, however little is left


@dataclass(frozen=True)
class Column:
    """`most`: cells beyond which a text is cut. `is_open`: cut to its share of the line."""

    head: str
    most: int | None = None
    right: bool = False
    is_open: bool = False


def laid_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[str]:
    """The head and each row as a line. None: there is no end of the line, and nothing is cut."""
    widths = _widths(columns, rows, room)
    return [_line(row, columns, widths) for row in ([column.head for column in columns], *rows)]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    needs = [max(map(cells.width, [column.head, *(row[i] for row in rows)])) for i, column in enumerate(columns)]
    if room is None:
        return needs
    widths = [
        0 if column.is_open else min(need, column.most or need) for need, column in zip(needs, columns, strict=True)
    ]
    left = room - sum(widths) - GAP * (len(columns) - 1)
    waiting = [i for i, column in enumerate(columns) if column.is_open]
    for place, i in enumerate(waiting):
        share = left // (len(waiting) - place)
        behind = sum(needs[j] for j in waiting[place + 1 :])
        widths[i] = min(needs[i], max(_LEAST_OPEN, share, left - behind))
        left -= widths[i]
    return widths


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = [
        cells.pad(cells.cut(cell, width), width, right=column.right)
        for cell, column, width in zip(row, columns, widths, strict=True)
    ]
    return (" " * GAP).join(parts).rstrip()
