"""What /proc says of processes that have device memory. Read in the instant of the snapshot, in one go."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable

from worker.probe.snapshot import Ancestor, ProcessFacts
from worker.process.identity import read_small, stat_fields

_DEEPEST = 64


def processes(pids: Iterable[int]) -> dict[str, ProcessFacts]:
    """By pid; who can't be seen here is left out."""
    found = ((pid, _facts(pid)) for pid in sorted(set(pids)))
    return {str(pid): facts for pid, facts in found if facts is not None}


def _facts(pid: int) -> ProcessFacts | None:
    line = _line(pid)
    if not line:
        return None
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        name = read_small(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return None
    return {"user": _user(uid), "name": _printable(name), "groups": _groups(pid), "line": line}


def _line(pid: int) -> list[Ancestor]:
    """The process and its ancestors, each with its start time: pids are used again."""
    line: list[Ancestor] = []
    while pid > 0 and len(line) < _DEEPEST and (fields := stat_fields(pid)):
        line.append({"pid": pid, "start": int(fields[19])})
        pid = int(fields[1])
    return line


def _groups(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        text = read_small(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
        return [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    return []


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)[:64]
