"""The worker's side of one shim: commands to it, and what its files say."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import anyio

from broker.wire.leases import LESSEE
from broker.wire.states import LimitCode, OnWorkerLost
from broker.wire.workers import Checkpoints, Final, Outcome, Reached
from worker.probe.devices import Tree
from worker.probe.trees import TreeUse, look_at_tree
from worker.process import records
from worker.process.clock import boot_s
from worker.process.failpoint import failpoint
from worker.process.identity import is_alive
from worker.process.leftovers import kill_leftovers, leave_group, survivors
from worker.process.records import AdopteeRecord, ExitRecord, Identity, Json, SpecRecord

SURVIVORS_TOLD_AFTER_S = 5.0  # of a dead shim; a living one tells by itself
_CLOSING_LIMIT_S = 10.0
_REMOVALS = 100
_LOOK_EVERY_S = 0.005
_LONGEST_WHY = 500


@dataclass(frozen=True)
class ShimSpec:
    """What to run, and what the worker wants to find again after its own death (`token`, `extra`)."""

    job: int
    attempt: int
    token: str
    argv: list[str]
    env: dict[str, str]
    cwd: str | None = None  # None: the assignment's own directory
    grace_s: float = 10.0  # from TERM to KILL when the lease ends
    linger_s: float = 2.0  # how long output is awaited after the main process's end
    on_worker_lost: OnWorkerLost = OnWorkerLost.REQUEUE
    log_cap: int = records.DEFAULT_LOG_CAP  # bytes; of a larger output the log has both ends
    limits: Mapping[LimitCode, float] = field(default_factory=dict)  # seconds
    ram_gb: float | None = None  # enforced where memory can be limited
    umask: int = 0o022
    adopt: AdopteeRecord | None = None  # nothing is run: this process is looked after
    extra: dict[str, Json] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the assignment is shown: 42.1"""
        return f"{self.job}.{self.attempt}"

    def record(self, *, cookie: str, bell: str, cgroup: str | None) -> SpecRecord:
        """As it is written for the shim, with what only its worker knows."""
        return SpecRecord(
            proto=records.PROTO,
            job=self.job,
            attempt=self.attempt,
            token=self.token,
            argv=self.argv,
            env=self.env,
            cwd=self.cwd,
            umask=self.umask,
            grace_s=self.grace_s,
            linger_s=self.linger_s,
            log_cap=self.log_cap,
            limits={code.value: limit_s for code, limit_s in self.limits.items()},
            ram_gb=self.ram_gb,
            on_worker_lost=self.on_worker_lost.value,
            cookie=cookie,
            bell=bell,
            cgroup=cgroup,
            extra=self.extra,
            adopt=self.adopt,
        )


@dataclass(frozen=True)
class Started:
    """The process exists: its exec succeeded."""

    pid: int
    started_at: float  # seconds since 1970
    process: Identity


class Shim:
    """One assignment's shim, alive or dead. All that is known is read from its directory, each time."""

    def __init__(self, directory: Path, spec: ShimSpec, record: SpecRecord) -> None:
        self.directory = directory
        self.spec = spec
        self._record = record
        self._final: Final | None = None
        self._killing_since: float | None = None

    @classmethod
    def at(cls, directory: Path) -> Shim | None:
        """None where no worker of this protocol has written a specification."""
        record = records.read_spec(str(directory))
        return cls(directory, _spec_of(record), record) if record is not None else None

    def again(self) -> Shim:
        """The same, with nothing known yet."""
        return Shim(self.directory, self.spec, self._record)

    def write_spec(self, directory: Path) -> None:
        """Write what `at` reads."""
        path = directory / records.SPEC
        path.write_bytes(records.encode(self._record))
        path.chmod(0o600)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def job(self) -> int:
        return self.spec.job

    @property
    def attempt(self) -> int:
        return self.spec.attempt

    @property
    def token(self) -> str:
        return self.spec.token

    @property
    def id(self) -> str:
        """Names this shim among all that ever ran for the assignment."""
        return self._record["cookie"]

    @property
    def out(self) -> Path:
        return self.directory / records.OUT

    @property
    def idx(self) -> Path:
        return self.directory / records.IDX

    # Commands. Each may be repeated; False: nobody listens (the shim has ended), or not now.

    def go(self, deadline_s: float) -> bool:
        """Execute, if the exec happens before the boot clock shows `deadline_s`; else stay prepared."""
        return self._tell(f"go {deadline_s!r}")

    def until(self, deadline_s: float) -> bool:
        """The lease: at `deadline_s` of the boot clock the shim stops its tree, unless a later one was told."""
        return self._tell(f"until {deadline_s!r}")

    def stop(self, stop_id: str, grace_s: float, why: str = "") -> bool:
        """TERM to the whole tree, `grace_s`, KILL. A second stop can shorten the grace, not lengthen it."""
        if not stop_id or any(character.isspace() for character in stop_id):
            raise ValueError(f"not a stop's id: {stop_id!r}")
        return self._tell(f"stop {stop_id} {grace_s!r} {' '.join(why.split())[:_LONGEST_WHY]}")

    def limit(self, code: LimitCode, seen_s: float) -> bool:
        """A limit of its specification is reached that only we can see: stop its tree as for any other."""
        return self._tell(f"limit {code.value} {seen_s!r}")

    def close(self) -> bool:
        """Never execute. Without effect if it was executed already."""
        return self._tell("close")

    async def closed_for_good(self) -> bool:
        """Close it. True: proved that the command was never executed and never will be. False: it may have been."""
        with anyio.move_on_after(_CLOSING_LIMIT_S):
            while self.alive():
                self.close()
                if self._may_have_run():
                    return False
                await anyio.sleep(_LOOK_EVERY_S)
        return not self.alive() and not self._may_have_run()

    # What the files say

    def alive(self) -> bool:
        """Whether the shim lives: it holds the lock, and so did its request before it was forked."""
        try:
            fd = os.open(self.directory / records.LOCK, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def listening(self) -> bool:
        """Whether a shim has opened its command pipe."""
        try:
            os.close(os.open(self.directory / records.CTL, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    def ended(self) -> bool:
        """Whether it has told its end."""
        return (self.directory / records.EXIT).exists()

    def started(self) -> Started | None:
        """None as long as exec did not succeed."""
        if not (self.directory / records.RUNNING).exists():
            return None
        record = records.read_start(str(self.directory))
        if record is None:
            return None
        return Started(record["process"]["pid"], record["started_at"], record["process"])

    def tree(self) -> Tree | None:
        """What its processes can be known by; None before the start."""
        record = records.read_start(str(self.directory))
        if record is None:
            return None
        roots = {(who["pid"], who["starttime"]) for who in (record["shim"], record["process"])}
        if (lessee := _lessee(self.spec.env)) is not None:
            roots.add(lessee)
        group = self._record["cgroup"]
        return Tree(self.name, frozenset(roots), "/" + "/".join(Path(group).parts[-2:]) if group else None)

    def stopping(self) -> str | None:
        """Id of the stop request that is being carried out."""
        return self._text(records.STOPPING)

    def stuck(self) -> str | None:
        """Processes that KILL does not end (pid:state), while it is tried on and on."""
        return self._text(records.STUCK)

    def checkpoints(self) -> Checkpoints | None:
        """How often its output said that a checkpoint is safe; None: never."""
        text = self._text(records.CHECKPOINT) or ""
        count, _, at = text.partition(" ")
        if not text.endswith("\n"):  # being written
            return None
        return Checkpoints(count=int(count), age_s=max(0.0, boot_s() - float(at)))

    def used(self) -> TreeUse | None:
        """What its tree uses right now; None before the start, and where nothing can be told."""
        record = records.read_start(str(self.directory))
        if record is None:
            return None
        if self.spec.adopt is not None:
            return look_at_tree(record["process"], None, itself=True)
        return look_at_tree(record["shim"], self._record["cgroup"])

    def keep(self, name: str, text: str) -> None:
        """Something that the worker wants to find again after its own end. Raises OSError."""
        draft = self.directory / f"{name}.tmp"
        draft.write_text(text)
        draft.rename(self.directory / name)

    def kept(self, name: str) -> str | None:
        """What `keep` kept."""
        return self._text(name)

    def crash(self) -> str | None:
        """The traceback of a shim that failed."""
        return self._text(records.CRASH)

    def out_size(self) -> int:
        return _size(self.out)

    def index_size(self) -> int:
        return _size(self.idx)

    def open_out(self) -> BinaryIO:
        """Raises FileNotFoundError before the start."""
        return self.out.open("rb")

    def open_idx(self) -> BinaryIO:
        return self.idx.open("rb")

    def final(self) -> Final | None:
        """How it ended; None while the shim, or any process that a dead shim left behind, lives.

        For a dead shim the files decide: an exit record says it all. None and no start record: the command was
        never executed. A start record alone: it may have run, and what is left of it is killed first, in this
        call, which therefore is for a thread, and is to be repeated while it answers None.
        """
        if self._final is None:
            self._final = self._verdict()
        return self._final

    def remove(self) -> None:
        """Delete the directory with all that it holds. A half-deleted one is not found again as an assignment."""
        doomed = self.directory.with_name(f".gone-{self.name}-{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):
            self.directory.rename(doomed)
            failpoint("removing")
            _remove(doomed)

    def _verdict(self) -> Final | None:
        alive = self.alive()  # before the record is looked for: a shim writes it and ends
        record = records.read_exit(str(self.directory))
        if record is not None:
            return self._final_of(record)
        if alive:
            return None
        if not self._may_have_run():
            if not leave_group(self._record["cgroup"]):
                return None
            crash = self._crash_line()
            code = "closed" if crash is None else "shim_failed"
            return Final(outcome=Outcome.NEVER_EXECUTED, reason_code=code, reason=crash)
        if self.spec.adopt is not None and self._adopted_lives():
            return None  # it is none of what a shim takes with it: another one is to look after it
        if not self._leftovers_gone():
            return None
        self.complete_index()
        return Final(
            outcome=Outcome.LOST,
            reason_code="shim_died",
            reason=self._crash_line() or self._why_lost(),
            final_size=self.out_size(),
            final_index_size=self.index_size(),
            dropped=_size(self.directory / records.TAIL),  # at least: what came before it was lost already
        )

    def _adopted_lives(self) -> bool:
        record = records.read_start(str(self.directory))
        return record is not None and is_alive(record["process"])

    def unattended(self) -> bool:
        """An adopted process that lives, and whose shim does not."""
        return self.spec.adopt is not None and not self.ended() and not self.alive() and self._adopted_lives()

    def complete_index(self) -> None:
        """A killed shim may not have told of its last bytes."""
        _complete_index(self.out, self.idx)

    def _why_lost(self) -> str:
        if self.spec.adopt is not None:
            return "it ended while nobody looked after it: the process that did was killed"
        return "the process that looked after it was killed; how it ended is not known"

    def _leftovers_gone(self) -> bool:
        """What a shim that was killed left running is killed now. False: not all of it yet; after a while it is told."""
        cookie, group = self._record["cookie"], self._record["cgroup"]
        if kill_leftovers(cookie, group):
            return True
        if self._killing_since is None:
            self._killing_since = boot_s()
        elif boot_s() - self._killing_since >= SURVIVORS_TOLD_AFTER_S and self.stuck() is None:
            (self.directory / records.STUCK).write_text(survivors(cookie, group))
        return False

    def _final_of(self, record: ExitRecord) -> Final:
        """After a power failure the files may hold less than the shim wrote: then that much was dropped."""
        size = min(record["final_size"], self.out_size())
        index_size = min(record["final_index_size"], self.index_size())
        return Final(
            outcome=Outcome(record["outcome"]),
            exit_code=record["exit_code"],
            signal=record["signal"],
            reason_code=record["reason_code"],
            reason=_printable(record["reason"]),
            stop=record["stop"],
            limit=_reached(record),
            final_size=size,
            final_index_size=index_size - index_size % records.ROW.size,
            dropped=record["dropped"] + record["final_size"] - size,
            duration_s=record["duration_s"],
            max_rss_mb=record["max_rss_mb"],
            cpu_s=record["cpu_s"],
        )

    def _may_have_run(self) -> bool:
        return (self.directory / records.START).exists()

    def _crash_line(self) -> str | None:
        lines = (self.crash() or "").strip().splitlines()
        return _printable(f"its supervisor failed: {lines[-1][:_LONGEST_WHY]}") if lines else None

    def _text(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text(encoding="utf-8", errors="replace") or None
        except FileNotFoundError:
            return None

    def _tell(self, line: str) -> bool:
        try:
            fd = os.open(self.directory / records.CTL, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise
        try:
            os.write(fd, line.encode() + b"\n")  # shorter than PIPE_BUF: whole or not at all
        except (BlockingIOError, BrokenPipeError):
            return False
        finally:
            os.close(fd)
        return True


def _spec_of(record: SpecRecord) -> ShimSpec:
    return ShimSpec(
        job=record["job"],
        attempt=record["attempt"],
        token=record["token"],
        argv=record["argv"],
        env=record["env"],
        cwd=record["cwd"],
        grace_s=record["grace_s"],
        linger_s=record["linger_s"],
        log_cap=record.get("log_cap", records.DEFAULT_LOG_CAP),
        ram_gb=record.get("ram_gb"),
        limits={LimitCode(code): limit_s for code, limit_s in record.get("limits", {}).items()},
        on_worker_lost=OnWorkerLost(record["on_worker_lost"]),
        umask=record["umask"],
        adopt=record.get("adopt"),
        extra=record["extra"],
    )


def _reached(record: ExitRecord) -> Reached | None:
    limit = record.get("limit")
    return (
        None
        if limit is None
        else Reached(code=LimitCode(limit["code"]), limit_s=limit["limit_s"], seen_s=limit["seen_s"])
    )


def _lessee(env: Mapping[str, str]) -> tuple[int, int] | None:
    """The process for which an assignment only holds: what it and its descendants use is the assignment's."""
    pid, _, start = env.get(LESSEE, "").partition(":")
    return (int(pid), int(start)) if pid.isdecimal() and start.isdecimal() else None


def _complete_index(out: Path, idx: Path) -> None:
    """A killed shim may not have written the rows of its last bytes: give them one, as stdout."""
    with contextlib.suppress(OSError), idx.open("r+b") as file:
        rows = _size(idx) // records.ROW.size
        file.truncate(rows * records.ROW.size)
        covered = 0
        if rows:
            file.seek((rows - 1) * records.ROW.size)
            offset, length, *_ = records.ROW.unpack(file.read(records.ROW.size))
            covered = offset + length
        missing = _size(out) - covered
        if missing > 0:
            file.seek(0, os.SEEK_END)
            file.write(records.ROW.pack(covered, missing, records.STDOUT, time.time()))


def _remove(directory: Path) -> None:
    """Our own files, one by one; only where a job put something of its own there it takes a walk. A shim that still lives
    may leave its last words meanwhile."""
    for left in reversed(range(_REMOVALS)):
        try:
            for name in os.listdir(directory):
                os.unlink(directory / name)
            directory.rmdir()
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(directory)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not left:
                raise
            continue
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _printable(text: str | None) -> str | None:
    """A path may hold bytes that are no text; what is told to the broker must be."""
    return text.encode("utf-8", "replace").decode() if text is not None else None
