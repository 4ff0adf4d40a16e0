"""A job's output as a terminal may be trusted with it: text, colours if wanted, and no other control sequence."""

from __future__ import annotations

import codecs
import re

# ECMA-48: CSI; the string kinds (OSC, DCS, SOS, PM, APC) with their terminator; the short ones. `open`: one of
# these, as far as it has come when the text ends.
_SEQUENCE = re.compile(
    r"""
      (?:\x1b\[|\x9b) [0-?]* [\ -/]* [@-~]
    | \x1b[\]PX^_] (?:[^\x07\x1b\x9c]|\x1b(?!\\))* (?:\x07|\x9c|\x1b\\)
    | \x1b (?: [0-OQ-WYZ\\`-~] | [\ -/]+ [0-~] )
    | (?P<open> (?: (?:\x1b\[|\x9b) [0-?]* [\ -/]* | \x1b[\]PX^_] [^\x07\x9c]* | \x1b[\ -/]* ) \Z )
    """,
    re.VERBOSE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LONGEST_HELD = 4096


class Plain:
    """Bytes in, safe text out. A sequence or character that is cut between two calls is kept together."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        text = self._held + self._decoder.decode(data, final)
        self._held = ""
        parts: list[str] = []
        end = 0
        for match in _SEQUENCE.finditer(text):
            parts.append(_CONTROL.sub("", text[end : match.start()]))
            end = match.end()
            if match["open"] is not None:
                if not final and len(match["open"]) <= _LONGEST_HELD:
                    self._held = match["open"]
                else:
                    parts.append(_CONTROL.sub("", match["open"]))
            elif self._colours and _COLOUR.fullmatch(match.group()):
                parts.append(match.group())
        return "".join([*parts, _CONTROL.sub("", text[end:])])
