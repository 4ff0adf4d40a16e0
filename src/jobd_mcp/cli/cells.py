"""How much room text takes in a terminal: some characters take two cells, some none."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from typing import TextIO

USUAL_WIDTH = 80
CUT = "…"


def width(text: str) -> int:
    """Cells that `text` takes; it has no control characters."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, most: int) -> str:
    """`text`, or as much of it as fits into `most` cells with a mark that something is missing."""
    if width(text) <= most:
        return text
    if most <= 0:
        return ""
    kept, used = [], 0
    for character in text:
        cells = _cells(character)
        if used + cells > most - 1:
            break
        kept.append(character)
        used += cells
    return "".join(kept) + CUT


def pad(text: str, to: int, *, right: bool = False) -> str:
    """`text` with blanks up to `to` cells, on its right, or on its left for numbers."""
    blanks = " " * (to - width(text))
    return blanks + text if right else text + blanks


def line_width(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    """Cells of a line on this terminal; None where it is none: a pipe's reader gets everything."""
    if not stream.isatty():
        return None
    if environ.get("COLUMNS", "").isdecimal():
        return max(1, int(environ["COLUMNS"]))
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except OSError:
        return USUAL_WIDTH


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
