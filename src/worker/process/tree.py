"""The processes below one process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable

from worker.process.identity import stat_fields

# CONFIG_PROC_CHILDREN: the kernel lists children itself, so that a walk costs what the tree has, not the machine.
_LISTS_CHILDREN = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def descendants(root: int) -> list[int]:
    """All processes below `root` that can be seen now, parents before children. Empty where there is no /proc.

    A tree that forks meanwhile is seen in part: who kills asks again until nothing is left.
    """
    below = _listed if _LISTS_CHILDREN else _parents().get
    found: list[int] = []
    seen = {root}
    open_ends = [root]
    while open_ends:
        for child in below(open_ends.pop()) or ():
            if child not in seen:
                seen.add(child)
                found.append(child)
                open_ends.append(child)
    return found


def children(parent: int) -> list[int]:
    """The direct children of `parent` that can be seen now."""
    return _listed(parent) if _LISTS_CHILDREN else _parents().get(parent, [])


def signal_each(pids: Iterable[int], which: signal.Signals) -> None:
    """Once to each; who is gone already is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, which)


def _listed(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
            found += map(int, file.readall().split())
    return found


def _parents() -> dict[int, list[int]]:
    below: defaultdict[int, list[int]] = defaultdict(list)
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (fields := stat_fields(int(name))):
                below[int(fields[1])].append(int(name))
    return below
