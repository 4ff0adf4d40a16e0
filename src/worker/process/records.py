"""The files of an assignment's directory: what worker and shim tell each other, and what outlives both.

`spec.json`    what to run; written by the worker before the shim exists
`lock`         flock, taken by the worker and inherited by the shim: held = the shim is alive
`ctl`          FIFO, one command a line: `go` `until` `stop` `close`
`start.json`   who the process is; durable before exec is released. Not there = the command never ran
`running`      exec succeeded
`stopping`     id of the stop request that is being carried out
`stuck`        the kill does not succeed: which processes are left
`out`, `idx`   output as it arrived; rows that tell its streams and times
`tail`         the last bytes of an output that is larger than its log may be: they follow in `out` at the end
`exit.json`    how it ended; written when the whole tree is known gone
`checkpoint`   how often the output said that a checkpoint is safe, and when last (boot clock)
`crash`        the shim's own traceback, if it ever fails
"""

from __future__ import annotations

import json
import os
import struct
from typing import Literal, NotRequired, TypedDict, cast

PROTO = 1

SPEC, LOCK, CTL, START, RUNNING = "spec.json", "lock", "ctl", "start.json", "running"
STOPPING, STUCK, OUT, IDX, EXIT, CRASH = "stopping", "stuck", "out", "idx", "exit.json", "crash"
TAIL, CHECKPOINT = "tail", "checkpoint"

STDOUT, STDERR = 1, 2
ROW = struct.Struct("<QIBxxxd")  # offset, length, stream, seconds since 1970

DEFAULT_LOG_CAP = 1 << 30

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

Ending = Literal["exited", "stopped", "limit", "lease_ended", "launch_failed", "refused", "lost"]


LimitsRecord = dict[str, float]
"""Name of a limit, as the reason of an end → seconds. What is not there is not limited."""


class ReachedRecord(TypedDict):
    code: str
    limit_s: float
    seen_s: float


class AdopteeRecord(TypedDict):
    """A process that runs already, and is no child of the shim."""

    pid: int
    starttime: int | None  # as whoever named it saw it
    follow: bool  # only if its output can be followed: its silence is limited


class SpecRecord(TypedDict):
    proto: int
    job: int
    attempt: int
    token: str
    argv: list[str]
    env: dict[str, str]
    cwd: str | None  # None: the assignment's own directory
    umask: int
    grace_s: float
    linger_s: float
    log_cap: NotRequired[int]  # bytes of log and index; earlier workers said none
    limits: NotRequired[LimitsRecord]
    ram_gb: NotRequired[float | None]  # what it asked for: its limit, where memory can be limited
    on_worker_lost: str
    cookie: str  # in the environment of every process of the job, so that strays can be told
    bell: str  # FIFO of the worker
    cgroup: str | None  # directory to make for the job's processes
    extra: dict[str, Json]  # what the worker wants to find again
    adopt: NotRequired[AdopteeRecord | None]  # then nothing is run: argv is empty


class Identity(TypedDict):
    """One process, told apart from every other that ever has its pid."""

    pid: int
    starttime: int | None
    pidfs_ino: int | None
    boot_id: str | None
    pidns: int | None


class StartRecord(TypedDict):
    proto: int
    process: Identity
    shim: Identity
    started_at: float  # seconds since 1970


class ExitRecord(TypedDict):
    proto: int
    outcome: Ending
    exit_code: int | None
    signal: str | None
    reason_code: str | None
    reason: str | None
    stop: str | None
    limit: NotRequired[ReachedRecord | None]  # earlier shims knew of none
    final_size: int
    final_index_size: int
    dropped: int
    duration_s: float | None
    max_rss_mb: float | None
    cpu_s: float | None


def encode(record: SpecRecord | StartRecord | ExitRecord) -> bytes:
    return json.dumps(record).encode()


def stage(name: str, record: StartRecord | ExitRecord) -> None:
    """Write `record` to `name`.tmp and to the disk; nothing shows under `name` yet."""
    fd = os.open(name + ".tmp", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        data = encode(record)
        written = 0
        while written < len(data):
            written += os.write(fd, data[written:])
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(name: str) -> None:
    """Give the staged file its name, durably: all of it or, after a crash, nothing."""
    os.rename(name + ".tmp", name)
    sync_directory(os.path.dirname(name) or ".")


def reserve(name: str, size: int) -> None:
    """Take the space of a file that is staged later, so that a full disk can't keep it from being written."""
    fd = os.open(name + ".tmp", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_spec(directory: str) -> SpecRecord | None:
    return cast("SpecRecord | None", _read(directory, SPEC))


def read_start(directory: str) -> StartRecord | None:
    return cast("StartRecord | None", _read(directory, START))


def read_exit(directory: str) -> ExitRecord | None:
    return cast("ExitRecord | None", _read(directory, EXIT))


def _read(directory: str, name: str) -> object | None:
    """The record, or None where there is none that is whole and of a form known here."""
    try:
        with open(os.path.join(directory, name), "rb") as file:
            record = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("proto") == PROTO else None
