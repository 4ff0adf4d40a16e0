"""Where characters begin and end. Output is bytes; it becomes text only where it is shown, and never in mid-character."""

from __future__ import annotations

_LONGEST = 4


def cut_at_end(data: bytes) -> int:
    """How many bytes at the end of `data` begin a character that may still be completed: 0 to 3."""
    for back in range(1, min(_LONGEST, len(data) + 1)):
        needed = _length(data[-back])
        if needed:
            return back if needed > back else 0
    return 0


def cut_at_start(before: bytes, after: bytes) -> int:
    """How many bytes of `after` finish a character that began in `before`, its up to three preceding bytes: 0 to 3."""
    open_bytes = cut_at_end(before)
    if not open_bytes:
        return 0
    missing = _length(before[-open_bytes]) - open_bytes
    rest = after[:missing]
    return missing if len(rest) == missing and all(0x80 <= byte < 0xC0 for byte in rest) else 0


def _length(byte: int) -> int:
    """Length of the character that `byte` begins; 0 for a byte that continues one, 1 for one that is no beginning."""
    if byte < 0x80 or byte >= 0xF5 or 0xC0 <= byte < 0xC2:
        return 1
    if byte < 0xC0:
        return 0
    return 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
