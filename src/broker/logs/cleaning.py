"""Output made readable for somebody who is not a terminal: without escapes, rewrites and characters that can't be seen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.logs import utf8
from broker.logs.lines import Line

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # the rest
    r"|[\x80-\x9f]"  # C1 controls
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# Direction overrides, zero-width characters, and the tag characters in which text can be hidden from people.
_UNSEEN = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")
_DELETED = "\x7f"


@dataclass(frozen=True, slots=True)
class Clean:
    """A line as text. `rewrites`: how often a progress bar overwrote it. `missing_bytes` were left out after `text`."""

    text: str
    rewrites: int
    missing_bytes: int


def clean(line: Line) -> Clean:
    """What a terminal would show of the line in the end. Invalid bytes become U+FFFD, controls their pictures."""
    if not line.skipped:
        text, rewrites = _last_rewrite(line.head + line.tail)
        return Clean(text, rewrites, 0)
    tail_starts = next((at for at, byte in enumerate(line.tail[:4]) if not 0x80 <= byte < 0xC0), 0)
    if line.rewrites or b"\r" in line.tail.rstrip(b"\r"):
        text, rewrites = _last_rewrite(line.tail[tail_starts:])
        return Clean(text, rewrites + line.rewrites + line.head.count(b"\r"), 0)
    cut = utf8.cut_at_end(line.head)
    text, rewrites = _last_rewrite(line.head[: len(line.head) - cut])
    return Clean(text, rewrites, cut + line.skipped + len(line.tail))


def plain_text(line: Line) -> str | None:
    """The text of a line in which there is nothing to clean, as in nearly every line; None of any other."""
    if line.skipped or line.tail or not line.head.isascii():
        return None
    text = line.head.decode("ascii")
    return text if text.isprintable() else None


def shortened(cleaned: Clean, longest: int) -> str:
    """At most `longest` characters of it, and how many bytes were left out and how many updates collapsed."""
    kept = cleaned.text[:longest]
    missing = cleaned.missing_bytes + len(cleaned.text[longest:].encode())
    ending = f"…[+{missing} bytes]" if missing else ""
    if cleaned.rewrites:
        ending += f" [{cleaned.rewrites} update{'s' if cleaned.rewrites > 1 else ''} collapsed]"
    return kept + ending


def _last_rewrite(data: bytes) -> tuple[str, int]:
    text = data.decode("utf-8", "replace").rstrip("\r")
    if "\r" not in text:
        return _visible(text), 0
    frames = text.split("\r")
    texts = [seen for frame in frames[-64:] if (seen := _visible(frame)).strip()]
    return (texts[-1] if texts else _visible(frames[-1])), len(frames) - 1


def _visible(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPES.sub("", text)
    if "\b" in text:
        text = _with_backspaces(text)
    text = _CONTROLS.sub(_picture, text)
    return _UNSEEN.sub("\ufffd", text)


def _with_backspaces(text: str) -> str:
    seen: list[str] = []
    for character in text:
        if character != "\b":
            seen.append(character)
        elif seen:
            seen.pop()
    return "".join(seen)


def _picture(match: re.Match[str]) -> str:
    return "\u2421" if match[0] == _DELETED else chr(0x2400 + ord(match[0]))
