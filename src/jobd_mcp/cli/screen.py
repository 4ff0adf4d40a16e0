"""A terminal that is taken over for a while and given back as it was, whatever happens in between.

ECMA-48 control sequences that every terminal of today knows, and nothing of terminfo.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from jobd_mcp.cli.top_frame import Line, Size

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the other screen, no cursor, empty
_LEAVE = "\x1b[?25h\x1b[?1049l"
_STYLES: Mapping[str, int] = {
    "bold": 1,
    "dim": 2,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "cyan": 36,
}
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


class Screen:
    """The terminal behind two descriptors. Lines that did not change are not written again."""

    def __init__(self, keys: int, output: int, *, colours: bool) -> None:
        self._keys = keys
        self._output = output
        self._colours = colours
        self._before: list[str] = []
        self._mode: list[int | list[bytes | int]] | None = None

    def size(self) -> Size:
        columns, lines = os.get_terminal_size(self._output)
        return Size(columns or 80, lines or 24)

    def take(self) -> None:
        """Keys come one by one and are not shown; Ctrl-C and Ctrl-Z stay signals."""
        if os.isatty(self._keys):
            self._mode = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSADRAIN)
        self._before = []
        self._write(_ENTER)

    def give_back(self) -> None:
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            self._write(_LEAVE)
        if self._mode is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)
            self._mode = None

    def forget(self) -> None:
        """What stands there is unknown (the size has changed): the next picture is drawn whole."""
        self._before = []

    def draw(self, lines: Sequence[Line]) -> None:
        painted = [painted_line(line, colours=self._colours) for line in lines]
        parts = [] if self._before else ["\x1b[2J"]
        for number, line in enumerate(painted):
            if number >= len(self._before) or self._before[number] != line:
                parts.append(f"\x1b[{number + 1};1H\x1b[2K{line}")
        parts += [f"\x1b[{number + 1};1H\x1b[2K" for number in range(len(painted), len(self._before))]
        self._before = painted
        if parts:
            self._write("".join(parts))

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._output, data) :]


def painted_line(line: Line, *, colours: bool) -> str:
    """The line with its colours as control sequences."""
    return "".join(
        f"\x1b[{_STYLES[span.style]}m{span.text}\x1b[0m" if colours and span.style in _STYLES else span.text
        for span in line
    )


@contextlib.contextmanager
def signals() -> Iterator[tuple[int, int]]:
    """Meanwhile signals do nothing by themselves, but are read as numbers from the first of two descriptors.

    So no exception comes in the middle of a picture. Threads may write a 0 into the second one.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, _only_woken) for number in _WATCHED}
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader, writer
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)


def _only_woken(number: int, at: FrameType | None) -> None:
    """That it has a handler is what makes Python write its number."""
