"""One line on stderr that says how long work goes, rewritten in place. Only on a terminal; gone when the work is done."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobd_mcp.cli import cells
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.rendering import duration, text
from jobd_mcp.local import LocalError

FIRST_S = 0.3  # what is over sooner needs no line
EVERY_S = 1.0
_ANSWER_LIMIT_S = 2.0


@contextmanager
def telling(how_it_stands: Callable[[], str]) -> Iterator[None]:
    """While the body works, the line says for how long, and what `how_it_stands` answers.

    It is asked in a thread of its own, so a broker that is silent holds nobody up.
    """
    if not sys.stderr.isatty():
        yield
        return
    line = _Line()
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(line, how_it_stands, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        line.close()


class _Line:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown = self._closed = False

    def show(self, said: str) -> None:
        most = (cells.line_width(sys.stderr, os.environ) or cells.USUAL_WIDTH) - 1
        with self._lock:
            if not self._closed:
                self._shown = True
                os.write(sys.stderr.fileno(), f"\r{cells.cut(text(said), most)}\x1b[K".encode())

    def close(self) -> None:
        """Nothing comes after this, and nothing is left of what was there."""
        with self._lock:
            if self._shown and not self._closed:
                os.write(sys.stderr.fileno(), b"\r\x1b[K")
            self._closed = True


def _tell(line: _Line, how_it_stands: Callable[[], str], done: threading.Event) -> None:
    began = time.monotonic()
    pause_s = FIRST_S
    while not done.wait(pause_s):
        pause_s = EVERY_S
        try:
            said = how_it_stands()
        except (Failure, LocalError) as failure:
            said = f"the broker does not answer: {failure}"
        line.show(f"{duration(float(round(time.monotonic() - began)))}  {said}")
