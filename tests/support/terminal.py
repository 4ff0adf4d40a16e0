"""A program in a real pseudo-terminal, and what a person would see there.

The terminal knows the control sequences that ours use and refuses every other one: a new one is a decision.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jobd_mcp.cli import cells

_TOKEN = re.compile(
    r"\x1b\[(?P<private>\??)(?P<numbers>[0-9;]*)(?P<final>[A-Za-z])|(?P<text>[^\x00-\x1f\x7f])|(?P<control>[\r\n])"
)
# The new session's first terminal is the one that it opens: signals of its keys and of its size reach the program.
_BECOME = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """Cells, a cursor, and a second screen. `faults`: what was written past an edge of the second one.

    A picture that was on its way during a `resize` is such a fault and none of the program's: clear them then.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.other_screen = False
        self.cursor_shown = True
        self.style = ""
        self.faults: list[str] = []
        self._rows = self._main = self._empty()
        self._x = self._y = 0
        self._unread = ""

    @property
    def rows(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    def resize(self, columns: int, lines: int) -> None:
        """What stood there is cut or stays, as in most terminals."""
        kept = [(row + [" "] * columns)[:columns] for row in self._rows]
        self.columns, self.lines = columns, lines
        self._rows = (kept + self._empty())[:lines]
        self._x, self._y = min(self._x, columns - 1), min(self._y, lines - 1)

    def feed(self, text: str) -> None:
        text = self._unread + text
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                if re.fullmatch(r"\x1b(\[\??[0-9;]*)?", text[at:]):
                    break  # cut in the middle: the rest is on its way
                raise AssertionError(f"a control sequence that this terminal does not know: {text[at : at + 20]!r}")
            at = match.end()
            if match["final"]:
                self._control(match["private"] + match["final"], match["numbers"])
            elif match["control"] == "\r":
                self._x = 0
            elif match["control"] == "\n":
                self._line_feed()
            else:
                self._put(match["text"])
        self._unread = text[at:]

    def _put(self, character: str) -> None:
        room = cells.width(character)
        if room == 0:
            return
        if self._x + room > self.columns:
            if self.other_screen:
                self.faults.append(f"{character!r} past the right edge of line {self._y + 1}")
                return
            self._x = 0
            self._line_feed()
        self._rows[self._y][self._x : self._x + room] = [character, *[""] * (room - 1)]
        self._x += room

    def _line_feed(self) -> None:
        if self._y == self.lines - 1:
            if self.other_screen:
                self.faults.append("scrolled")
            self._rows = [*self._rows[1:], [" "] * self.columns]
        else:
            self._y += 1

    def _control(self, kind: str, numbers: str) -> None:
        match kind, numbers:
            case "H", _:
                y, _, x = numbers.partition(";")
                if int(y or 1) > self.lines or int(x or 1) > self.columns:
                    self.faults.append(f"line {y}, column {x} of {self.lines}, {self.columns}")
                self._y, self._x = min(int(y or 1), self.lines) - 1, min(int(x or 1), self.columns) - 1
            case "J", "2":
                self._rows[:] = self._empty()
            case "K", "" | "0":
                self._rows[self._y][self._x :] = [" "] * (self.columns - self._x)
            case "K", "2":
                self._rows[self._y][:] = [" "] * self.columns
            case "m", _:
                self.style = numbers.removeprefix("0")
            case "?h" | "?l", "25":
                self.cursor_shown = kind == "?h"
            case "?h", "1049":
                self._main, self._rows, self.other_screen = self._rows, self._empty(), True
            case "?l", "1049":
                self._rows, self.other_screen = self._main, False
            case _:
                raise AssertionError(f"a control sequence that this terminal does not know: {kind} {numbers}")

    def _empty(self) -> list[list[str]]:
        return [[" "] * self.columns for _ in range(self.lines)]


class InTerminal:
    """A program whose input, output and errors are a terminal of its own; `screen` is what stands there."""

    def __init__(
        self, words: Sequence[str | Path], environ: Mapping[str, str], cwd: Path, columns: int = 80, lines: int = 24
    ) -> None:
        self._own, theirs = os.openpty()
        self.screen = Terminal(columns, lines)
        self._set_size(columns, lines)
        self.mode_before = termios.tcgetattr(self._own)
        self.written = b""
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BECOME, *map(str, words)],
            env={"TERM": "xterm-256color", **environ},
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._decoded = 0

    def type(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self.read(0)
        self.screen.resize(columns, lines)
        self._set_size(columns, lines)

    def read(self, within_s: float) -> bool:
        """Show what was written; waits for something at most so long. False: nothing more will come."""
        while select.select([self._own], [], [], within_s)[0]:
            try:
                data = os.read(self._own, 65_536)
            except OSError:
                return False
            if not data:
                return False
            self.written += data
            whole = self.written[self._decoded :].decode("utf-8", "ignore")  # a character that is cut waits
            self._decoded += len(whole.encode())
            self.screen.feed(whole)
            within_s = 0
        return True

    def until(self, seen: Callable[[Terminal], object], within_s: float = 20) -> None:
        """Read until the screen is as wanted."""
        deadline = time.monotonic() + within_s
        while not seen(self.screen):
            more = self.read(0.1)
            assert more or seen(self.screen), f"the program has ended, and shows:\n{self.screen.text}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s; the screen shows:\n{self.screen.text}"

    def until_text(self, wanted: str, within_s: float = 20) -> None:
        self.until(lambda screen: wanted in screen.text, within_s)

    def ended(self, within_s: float = 20) -> int:
        """The exit code; everything that was written is on the screen."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            self.read(0.05)
            assert time.monotonic() < deadline, f"still running, and shows:\n{self.screen.text}"
        self.read(0)
        assert not self.screen.faults
        return self.process.returncode

    def mode(self) -> list[int | list[bytes | int]]:
        return termios.tcgetattr(self._own)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._own)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
