"""grep in a process of its own. A pattern is a stranger's program: it may take for ever, and must not hold up the broker."""

from __future__ import annotations

import pickle
import subprocess

from broker.logs import apart
from broker.logs.files import Snapshot
from broker.logs.reading import View
from broker.logs.searcher import STUCK_S, BadPattern, Request, compiled

__all__ = ["BadPattern", "Request", "grep"]

_NEEDED = ("cleaning", "files", "index", "lines", "reading", "searcher", "utf8")
_CODE = apart.held_code(["broker.core.storage", "broker.failpoint", *(f"broker.logs.{name}" for name in _NEEDED)])


def grep(snapshot: Snapshot, request: Request) -> View:
    """`reading.grep`, from any thread, in bounded time. Raises BadPattern."""
    compiled(request)
    handles = [handle for handle in (snapshot.log, snapshot.index) if handle is not None]
    asked = pickle.dumps((snapshot, request))
    try:
        done = subprocess.run(
            apart.command("broker.logs.searcher", "main"),
            input=_CODE + asked,
            capture_output=True,
            pass_fds=handles,
            timeout=request.limit_s + STUCK_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise BadPattern(
            "the pattern takes too long on one line of this output; avoid nested repeats such as (a+)+"
        ) from None
    view = pickle.loads(done.stdout)  # noqa: S301 (written by `searcher`)
    assert isinstance(view, View)
    return view
