"""What the processes of one job use right now: by their cgroup where that can tell, else process by process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from worker.process import cgroup
from worker.process.identity import stat_fields
from worker.process.records import Identity
from worker.process.tree import descendants

MIB = 1 << 20
_UTIME, _RSS, _START = 11, 21, 19  # of /proc/PID/stat, from the state on; four times in a row
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class TreeUse:
    """Megabytes of memory now, and processor time so far. Without a cgroup memory that processes share counts for each,
    and time of processes that nobody waited for is not known. None: it can't be told."""

    rss_mb: float | None
    cpu_s: float | None


def look_at_tree(root: Identity, group: str | None, *, itself: bool = False) -> TreeUse | None:
    """All below this process, which is a shim and not included unless `itself` is. None: it is gone, or this system does not tell."""
    memory = cgroup.memory_used(group) if group is not None else None
    time_s = cgroup.cpu_s(group) if group is not None else None
    if memory is not None and time_s is not None:
        return TreeUse(memory / MIB, time_s)
    fields = stat_fields(root["pid"])
    if fields is None or int(fields[_START]) != root["starttime"]:
        return None if time_s is None else TreeUse(None, time_s)
    known = [found for pid in descendants(root["pid"]) if (found := stat_fields(pid)) is not None]
    known += [fields] if itself else []
    ticks = sum(int(number) for one in known for number in one[_UTIME : _UTIME + 4])
    pages = sum(max(0, int(one[_RSS])) for one in known)
    return TreeUse(pages * _PAGE / MIB, ticks / _TICKS if time_s is None else time_s)
