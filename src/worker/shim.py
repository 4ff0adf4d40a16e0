"""One process per assignment that starts the job, keeps its output, and sees to its end, whatever becomes of the worker.

It is told by the files that `process.records` lists and tells by them; nothing here talks to a network, and a worker
may come and go. It is forked from the zygote, is single-threaded and uses the standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from worker.process import cgroup, records
from worker.process.clock import boot_s
from worker.process.failpoint import failpoint
from worker.process.identity import LINUX, identify, stat_fields
from worker.process.kernel import become_subreaper, set_name
from worker.process.launch import Child, Program, Word, read_word, start_child
from worker.process.limits import Limits
from worker.process.output import Capture
from worker.process.records import STDERR, STDOUT, Ending, ExitRecord, Identity, ReachedRecord, SpecRecord
from worker.process.tree import descendants, signal_each

PREPARED_LIMIT_S = 600.0  # a shim whose worker never comes back to say go; closing is safe, nothing was executed
LOOK_AROUND_S = 10.0  # how often a prepared shim looks whether its directory is still there
STRAY_GRACE_S = 1.0  # from TERM to KILL for what outlives the main process of a job that ended by itself
STUCK_AFTER_S = 5.0  # a kill that takes this long is shown
_BELL_EVERY_S = 0.02
_KILL_PAUSE_S = (0.001, 0.5)
_EXIT_RECORD_BYTES = 4096
_DISK_PAUSE_S = 1.0
_LONGEST_SLEEP_S = 3600.0
_CHUNKS_AFTER_THE_END = 64  # a foreign process may hold our pipe and write for ever
_LONGEST_REASON = 1500
_CHECKPOINT_EVERY_S = 2.0  # what a program says more often is told together
_GIB = 1 << 30
RAM_MARGIN = 64 << 20  # what is allowed beyond ram_gb: page tables, sockets, and the last megabyte of an honest job
_HIGHEST_FD = 65536


class Phase(Enum):
    PREPARED = auto()  # nothing was executed, and there is no child
    LAUNCHING = auto()  # a child gets ready; nothing was executed
    READY = auto()  # it waits at its gate; start.json is on the disk, under another name
    RELEASED = auto()  # start.json is durable, the child may exec
    RUNNING = auto()  # it did, or could not and died


_UNRELEASED = (Phase.PREPARED, Phase.LAUNCHING, Phase.READY)


class Stop(NamedTuple):
    """A stop that counts as the reason of the end: the first one whose TERM was delivered."""

    outcome: Ending
    id: str | None = None
    limit: ReachedRecord | None = None


class Kill:
    """SIGKILL to the whole tree, until it is gone."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.pause_s = _KILL_PAUSE_S[0]
        self.next_at = -math.inf
        self.seen: list[int] = []
        self.shown = False


class Used:
    """What the processes of a job have used, those that nobody but us waited for included."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.max_rss = 0

    def add(self, usage: resource.struct_rusage) -> None:
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.max_rss = max(self.max_rss, usage.ru_maxrss)


class Shim:
    """The life of one assignment: `run` returns when all is over and written."""

    def __init__(self, spec: SpecRecord, who: Identity, lock: int, wake: int) -> None:
        self._spec = spec
        self._self = who
        self._lock = lock
        self._wake = wake
        self._ctl = os.open(records.CTL, os.O_RDWR | os.O_NONBLOCK)  # O_RDWR: no end of file when the worker dies
        self._heard = b""
        self._phase = Phase.PREPARED
        self._prepared_until = boot_s() + PREPARED_LIMIT_S
        self._go_until = -math.inf
        self._lease_until = math.inf
        self._closing = False
        self._asked: Stop | None = None  # requested, TERM not delivered yet
        self._stopped_by: Stop | None = None
        self._limits: Limits | None = None  # once it runs
        self._too_long: ReachedRecord | None = None  # the wall limit, reached while it was being stopped already
        self._kill_at = math.inf
        self._kill: Kill | None = None
        self._child: Child | None = None
        self._capture: Capture | None = None
        self._pipes: dict[int, int] = {}
        self._news = False
        self._next_bell_at = -math.inf
        self._checkpoints = 0  # as they were noted last
        self._next_note_at = -math.inf
        self._released_at = self._ended_at = 0.0
        self._status: int | None = None  # of the main process, once it was reaped
        self._used = Used()
        self._linger_until = math.inf
        self._tree_gone = True
        self._unexecuted: ExitRecord | None = None
        self._over = self._ending = False
        self._poll = select.poll()
        for fd in (self._ctl, self._wake):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """The child is made at once: it gets ready while the worker still asks whether it may run."""
        failpoint("prepared")
        self.ring()
        self._launch()
        while not self._over:
            ready = {fd for fd, _ in self._poll.poll(self._sleep_ms())}
            if self._ctl in ready:  # before any deadline is judged: a lease may have been extended while we slept
                self._obey()
            if self._wake in ready:
                self._reap()
            if self._child is not None and self._child.status in ready and self._before_exec():
                self._hear_child(self._child)
            for pipe in ready & self._pipes.keys():
                self._take(pipe)
            self._judge(boot_s())
            self._ring_news(boot_s())
            self._note_checkpoints(boot_s())

    def _before_exec(self) -> bool:
        return self._phase in (Phase.LAUNCHING, Phase.READY, Phase.RELEASED) and not self._ending

    # What the worker says

    def _obey(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self._ctl, 65536)
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a garbled command is no command
                self._command(line.decode())

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        match name:
            case "go":
                self._go(float(rest))
            case "until":
                self._extend(float(rest))
            case "stop":
                stop_id, grace_s, *_ = rest.split(" ")
                self._ask(Stop("stopped", stop_id), float(grace_s))
            case "limit":
                code, seen_s, *_ = rest.split(" ")
                self._limit(code, float(seen_s))
            case "close":
                self._close()
            case _:
                pass  # a later protocol's word

    def _go(self, until: float) -> None:
        if math.isnan(until) or self._closing or self._ending:
            return
        if self._phase in _UNRELEASED:
            self._go_until = max(self._go_until, until)
        if not self._may_go():
            return
        if self._phase is Phase.PREPARED:
            self._launch()
        elif self._phase is Phase.READY and self._child is not None:
            self._release(self._child)

    def _may_go(self) -> bool:
        return boot_s() <= min(self._go_until, self._lease_until)

    def _extend(self, until: float) -> None:
        if not math.isnan(until):
            self._lease_until = until if self._lease_until == math.inf else max(self._lease_until, until)

    def _close(self) -> None:
        self._closing = True  # a child that was released, and comes back late, does not get a second try
        if self._phase in _UNRELEASED:
            self._end_unexecuted(None)

    def _ask(self, stop: Stop, grace_s: float) -> None:
        """The first stop gives the reason; each may bring the KILL nearer, none puts it off."""
        if self._ending:
            return
        if self._phase in _UNRELEASED:
            self._end_unexecuted(self._record("stopped", stop=stop.id) if stop.id else None)
            return
        if self._status is not None and self._stopped_by is None:  # it ended by itself; only strays are left
            self._stop_strays(boot_s())
            return
        self._kill_at = min(self._kill_at, boot_s() + max(0.0, grace_s))
        if self._stopped_by is None and self._asked is None:
            self._asked = stop
            if stop.id:
                _note(records.STOPPING, stop.id)
            self._deliver()
        self.ring()

    def _limit(self, code: str, seen_s: float) -> None:
        """A limit that only the worker can see is reached. It counts while the process runs, and only if it was set."""
        limit_s = self._spec.get("limits", {}).get(code)
        if limit_s is None or not seen_s >= limit_s or self._phase is not Phase.RUNNING or self._stopping():
            return
        if self._status is None:
            self._ask(
                Stop("limit", limit=ReachedRecord(code=code, limit_s=limit_s, seen_s=seen_s)), self._spec["grace_s"]
            )

    # Start

    def _launch(self) -> None:
        spec = self._spec
        group = spec["cgroup"] if spec["cgroup"] and cgroup.make(spec["cgroup"]) else None
        if group is not None and (ram_gb := spec.get("ram_gb")):
            cgroup.limit_memory(group, int(ram_gb * _GIB) + RAM_MARGIN)
        env = {**spec["env"], "JOBD_JOB_COOKIE": spec["cookie"]}
        program = Program(
            argv=[_bytes(argument) for argument in spec["argv"]],
            env={_bytes(name): _bytes(value) for name, value in env.items()},
            cwd=spec["cwd"] if spec["cwd"] is not None else os.getcwd(),
            umask=spec["umask"],
            group=group,
        )
        try:
            self._child = start_child(program, self._lock)
        except OSError as error:
            self._refuse("launcher_failed", f"no process could be made: {os.strerror(error.errno or 0)}")
            return
        self._tree_gone = False
        self._phase = Phase.LAUNCHING
        self._poll.register(self._child.status, select.POLLIN)
        failpoint("forked")
        try:  # while the child gets ready
            self._stage_start(self._child)
        except OSError as error:
            self._refuse("launcher_failed", f"the worker's disk: {os.strerror(error.errno or 0)}")

    def _hear_child(self, child: Child) -> None:
        try:
            said = os.read(child.status, 4096)
        except BlockingIOError:
            return
        if self._phase is Phase.LAUNCHING and said.startswith(b"ready"):
            failpoint("ready")
            self._phase = Phase.READY
            if self._may_go():
                self._release(child)
        elif self._phase in (Phase.LAUNCHING, Phase.READY):
            self._refuse_launch(read_word(said) if said else Word("setup", errno.ECHILD))
        elif said:
            self._not_executed(child, read_word(said))
        else:
            self._executed(child)

    def _release(self, child: Child) -> None:
        """start.json is on the disk before the gate opens: without it, the command never ran."""
        try:
            self._capture = self._capture or Capture(self._spec.get("log_cap", records.DEFAULT_LOG_CAP))
            records.publish(records.START)
        except OSError as error:
            self._refuse("launcher_failed", f"the worker's disk: {os.strerror(error.errno or 0)}")
            return
        failpoint("start_durable")
        self._phase = Phase.RELEASED
        self._released_at = boot_s()
        child.release(min(self._go_until, self._lease_until))
        failpoint("released")

    def _stage_start(self, child: Child) -> None:
        start = records.StartRecord(
            proto=records.PROTO, process=identify(child.pid), shim=self._self, started_at=time.time()
        )
        records.stage(records.START, start)
        failpoint("start_staged")

    def _executed(self, child: Child) -> None:
        self._forget_status(child)
        os.close(child.gate)
        self._phase = Phase.RUNNING
        self._limits = Limits(self._spec.get("limits", {}), self._released_at)
        os.close(os.open(records.RUNNING, os.O_WRONLY | os.O_CREAT, 0o600))
        with contextlib.suppress(OSError):
            _sync(records.SPEC)  # so that a worker after a power failure knows more of it than that it ran
        failpoint("running")
        for pipe, stream in ((child.out, STDOUT), (child.err, STDERR)):
            self._pipes[pipe] = stream
            self._poll.register(pipe, select.POLLIN)
        self.ring()
        self._deliver()

    def _not_executed(self, child: Child, word: Word) -> None:
        if word.said != "late":
            reason = _why_not_launched(word)
            self._end_unexecuted(self._record("launch_failed", reason_code="launch_failed", reason=reason))
            return
        self._take_back(child)

    def _take_back(self, child: Child) -> None:
        """It came to the gate too late and never ran: start.json would say that it may have."""
        self._forget_status(child)
        os.unlink(records.START)
        records.sync_directory(".")
        for fd in (child.gate, child.out, child.err):
            os.close(fd)
        self._child = self._status = None
        self._go_until = -math.inf
        self._phase = Phase.PREPARED
        if self._asked or self._closing:
            stop, self._asked = self._asked, None
            self._end_unexecuted(self._record("stopped", stop=stop.id) if stop and stop.id else None)

    def _forget_status(self, child: Child) -> None:
        self._poll.unregister(child.status)
        os.close(child.status)

    def _refuse_launch(self, word: Word) -> None:
        if word.said == "cwd":
            code, text = _CWD_PROBLEMS.get(word.errno, ("cwd_forbidden", "can't be entered"))
            self._refuse(code, f"the directory {self._spec['cwd']} {text} ({os.strerror(word.errno)})")
        else:
            self._refuse("launcher_failed", f"the process could not be set up: {os.strerror(word.errno)}")

    def _refuse(self, code: str, reason: str) -> None:
        self._end_unexecuted(self._record("refused", reason_code=code, reason=reason))

    def _end_unexecuted(self, record: ExitRecord | None) -> None:
        """Over, and nothing was executed. Without a record the free lock and the missing start.json are the proof."""
        if self._child is not None and self._before_exec():
            self._forget_status(self._child)
        self._unexecuted = record
        self._ending = True

    # End

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._tree_gone = True  # we are subreaper: no child means no descendant
                return
            if pid == 0:
                self._tree_gone = False
                return
            self._used.add(usage)
            if self._child is not None and pid == self._child.pid:
                self._main_ended(status)

    def _main_ended(self, status: int) -> None:
        self._status = status
        self._ended_at = boot_s()
        self._linger_until = self._ended_at + self._spec["linger_s"]
        if self._child is not None and self._before_exec():
            self._hear_child(self._child)  # it is dead, so its last word is there: did it exec?
        failpoint("reaped")

    def _deliver(self) -> None:
        """TERM, once, to every process of the job. A main process that had ended before keeps its own ending."""
        if self._asked is None or self._phase is not Phase.RUNNING:
            return  # the child before exec has no handler yet: TERM would kill what is about to be a job
        self._reap()
        if self._status is None:
            self._stopped_by = self._asked
            self._signal_tree(signal.SIGTERM)
        self._asked = None

    def _judge(self, now: float) -> None:
        """All that time brings about: the end of the lease, of a grace, of lingering; and the end of it all."""
        if self._phase in _UNRELEASED and not self._ending and self._is_futile(now):
            self._end_unexecuted(None)
        if self._ending:
            self._judge_unexecuted(now)
        elif self._phase in (Phase.RELEASED, Phase.RUNNING):
            self._judge_executed(now)

    def _is_futile(self, now: float) -> bool:
        """Nobody will say go any more: the lease is over, the worker does not come back, the directory was removed."""
        return now >= min(self._lease_until, self._prepared_until) or os.stat(".").st_nlink == 0

    def _judge_executed(self, now: float) -> None:
        if self._status is None and now >= self._lease_until and not (self._stopped_by or self._asked):
            self._ask(Stop("lease_ended"), self._spec["grace_s"])
        if self._limits is not None and self._status is None:
            self._judge_limits(self._limits, now)
        if self._lingers() and not self._tree_gone and (not self._pipes or now >= self._linger_until):
            self._stop_strays(now)
        if now >= self._kill_at:
            self._kill_tree(now)
        if self._status is not None and self._tree_gone:
            self._finish()

    def _judge_limits(self, limits: Limits, now: float) -> None:
        """A limit stops the tree as a request does. What is being stopped already can only have run too long."""
        stopping = self._stopping()
        reached = None if self._too_long else limits.reached(now, stopping=stopping)
        if reached is None:
            return
        if stopping:
            self._too_long = reached
        elif not self._took_more() or (reached := limits.reached(now, stopping=False)) is not None:
            self._ask(Stop("limit", limit=reached), self._spec["grace_s"])

    def _took_more(self) -> bool:
        """What came while we were frozen lies in the pipes, and was no silence."""
        return any(self._take(pipe) for pipe in list(self._pipes))

    def _stopping(self) -> bool:
        return self._stopped_by is not None or self._asked is not None

    def _lingers(self) -> bool:
        """The main process ended by itself, and others are still given time to end their output."""
        return self._status is not None and self._stopped_by is None and self._kill_at == math.inf

    def _stop_strays(self, now: float) -> None:
        if self._kill_at == math.inf:
            self._signal_tree(signal.SIGTERM)
        self._kill_at = min(self._kill_at, now + STRAY_GRACE_S)

    def _judge_unexecuted(self, now: float) -> None:
        if not self._tree_gone:
            self._kill_tree(now)
        if self._tree_gone:
            self._conclude(self._unexecuted)

    def _signal_tree(self, which: signal.Signals) -> None:
        if LINUX:
            signal_each(self._living(), which)
        elif self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, which)

    def _living(self) -> list[int]:
        """The processes of the job that can be seen now."""
        return descendants(os.getpid())

    def _kill_tree(self, now: float) -> None:
        """One round. Rounds follow each other at once while the tree changes, and ever more slowly while it does not."""
        kill = self._kill = self._kill or Kill(since=now)
        if now < kill.next_at:
            return
        if self._asked is not None and self._status is None:
            self._stopped_by, self._asked = self._asked, None
        if self._spec["cgroup"]:
            cgroup.kill(self._spec["cgroup"])
        left = self._living()
        self._signal_tree(signal.SIGKILL)
        self._reap()
        changed = left != kill.seen
        kill.seen = left
        kill.pause_s = _KILL_PAUSE_S[0] if changed else min(kill.pause_s * 2, _KILL_PAUSE_S[1])
        kill.next_at = now if changed else now + kill.pause_s
        if not self._tree_gone and not kill.shown and now - kill.since >= STUCK_AFTER_S:
            kill.shown = True
            _note(records.STUCK, " ".join(f"{pid}:{(stat_fields(pid) or '?')[0]}" for pid in left))
            self.ring()

    def _finish(self) -> None:
        failpoint("tree_gone")
        for pipe in list(self._pipes):
            for _ in range(_CHUNKS_AFTER_THE_END):
                if not self._take(pipe):
                    break
        stop = self._stopped_by
        record = self._record(stop.outcome if stop else "exited", stop=stop.id if stop else None)
        if stop is not None:
            record["limit"] = stop.limit or self._too_long
        elif record["exit_code"] != 0 and (why := self._out_of_memory()) is not None:
            record["reason_code"], record["reason"] = "out_of_memory", why
        self._note_checkpoints(math.inf)
        self._conclude(record)

    def _out_of_memory(self) -> str | None:
        """Only the kernel's own word counts: a process may be killed by anybody."""
        group, ram_gb = self._spec["cgroup"], self._spec.get("ram_gb")
        if group is None or not ram_gb or not cgroup.oom_kills(group):
            return None
        peak = cgroup.memory_peak(group)
        had = f"; it had {peak / _GIB:.2f} GiB" if peak is not None else ""
        return f"out of memory: the kernel killed it at its limit, with ram_gb={ram_gb:g}{had}"

    def _conclude(self, record: ExitRecord | None) -> None:
        """The last act. A disk that does not take the record is asked again for as long as it needs."""
        self._over = True
        if self._spec["cgroup"]:
            cgroup.remove(self._spec["cgroup"])
        if self._capture is not None:
            self._capture.complete()
        if record is not None:
            if self._capture is not None:
                record["final_size"] = self._capture.size
                record["final_index_size"] = self._capture.index_size
                record["dropped"] = self._capture.dropped
            _persist(record)

    def _record(
        self, outcome: Ending, *, stop: str | None = None, reason_code: str | None = None, reason: str | None = None
    ) -> ExitRecord:
        code = self._code()
        return ExitRecord(
            proto=records.PROTO,
            outcome=outcome,
            exit_code=code if code is not None and code >= 0 else None,
            signal=_signal_name(-code) if code is not None and code < 0 else None,
            reason_code=reason_code,
            reason=reason[:_LONGEST_REASON] if reason else None,
            stop=stop,
            final_size=0,  # known when it is complete
            final_index_size=0,
            dropped=0,
            duration_s=max(0.0, self._ended_at - self._released_at) if code is not None else None,
            max_rss_mb=_mebibytes(self._used.max_rss) if code is not None else None,
            cpu_s=self._cpu_s() if code is not None else None,
        )

    def _code(self) -> int | None:
        """Exit code of the main process, or the negative number of its signal; None if it never ran, or still does."""
        ran = self._status is not None and self._phase is Phase.RUNNING  # else it is the unexecuted child's status
        return os.waitstatus_to_exitcode(self._status) if ran and self._status is not None else None

    def _cpu_s(self) -> float:
        """Of all that we or their own parents waited for; of all others too where there is a cgroup."""
        group = self._spec["cgroup"]
        return max(self._used.cpu_s, (cgroup.cpu_s(group) if group is not None else None) or 0.0)

    # Output and the bell

    def _take(self, pipe: int) -> bool:
        """Whether there was something."""
        assert self._capture is not None
        count = self._capture.take(pipe, self._pipes[pipe])
        if count is None:
            return False
        if count == 0:
            self._poll.unregister(pipe)
            os.close(pipe)
            del self._pipes[pipe]
            return False
        self._news = True
        if self._limits is not None:
            self._limits.heard(boot_s())
        failpoint("output")
        return True

    def _ring_news(self, now: float) -> None:
        """At the first output at once, then at most once per interval: the worker is woken, not flooded."""
        if self._news and now >= self._next_bell_at and self._capture is not None and not self._over:
            self._news = False
            self._next_bell_at = now + _BELL_EVERY_S
            self._capture.flush()
            self.ring()

    def _note_checkpoints(self, now: float) -> None:
        """What the output says of them, for the worker: the first at once, then not more often than it is worth."""
        if self._capture is None or self._capture.sentinel.count == self._checkpoints or now < self._next_note_at:
            return
        self._checkpoints = self._capture.sentinel.count
        self._next_note_at = now + _CHECKPOINT_EVERY_S
        _note(records.CHECKPOINT, f"{self._checkpoints} {boot_s()!r}\n")
        self.ring()

    def ring(self) -> None:
        """Files are the truth; nobody there, or a bell that rings already, is no loss."""
        with contextlib.suppress(OSError):
            bell = os.open(self._spec["bell"], os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(bell, b"%d.%d\n" % (self._spec["job"], self._spec["attempt"]))
            finally:
                os.close(bell)

    def _sleep_ms(self) -> float:
        """Until the first thing that time brings about."""
        deadlines = [boot_s() + _LONGEST_SLEEP_S]
        if self._phase in _UNRELEASED:
            deadlines += [self._prepared_until, boot_s() + LOOK_AROUND_S]
        if self._status is None and not self._stopped_by and not self._asked:
            deadlines.append(self._lease_until)
        if self._limits is not None and self._status is None and self._too_long is None:
            deadlines.append(self._limits.next_at(stopping=self._stopping()))
        if self._lingers():
            deadlines.append(self._linger_until)
        if self._kill is not None:
            deadlines.append(self._kill.next_at)
        else:
            deadlines.append(self._kill_at)
        if self._news:
            deadlines.append(self._next_bell_at)
        if self._capture is not None and self._capture.sentinel.count != self._checkpoints:
            deadlines.append(self._next_note_at)
        if self._ending:
            deadlines.append(self._kill.next_at if self._kill else -math.inf)
        return max(0.0, min(deadlines) - boot_s()) * 1000 + 0.5


_CWD_PROBLEMS = {
    errno.ENOENT: ("cwd_missing", "does not exist"),
    errno.ENOTDIR: ("cwd_not_directory", "is no directory"),
    errno.EACCES: ("cwd_forbidden", "can't be entered"),
}


def serve(channel: socket.socket, wake: int, kind: Callable[[SpecRecord], type[Shim]]) -> None:
    """In a freshly forked process: see one assignment after the other to its end, until there is no zygote any more.

    A message on `channel` is an assignment's directory, and with it the descriptor of its held lock; the answer says
    that all of it is over. `wake` hears of children, `kind` tells which shim an assignment wants.
    """
    become_subreaper()
    os.umask(0o077)
    who = identify(os.getpid())
    own = os.dup(0)  # what a life opened lies from here on
    os.close(own)
    while True:
        set_name("jobd-spare")
        directory, locks, _, _ = socket.recv_fds(channel, 65536, 1)
        if not locks:
            return
        set_name("jobd-shim")
        os.set_inheritable(locks[0], False)
        ring = _live(os.fsdecode(directory.rstrip(b"\n")), who, locks[0], wake, kind)
        os.chdir("/")
        os.closerange(own, _HIGHEST_FD)  # the lock too: this is the end
        ring()
        if not _childless():  # a fault of ours; when we end, the zygote sees to them
            return
        with contextlib.suppress(OSError):
            channel.send(b"spare\n")


def _childless() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return True
    return False


def _live(
    directory: str, who: Identity, lock: int, wake: int, kind: Callable[[SpecRecord], type[Shim]]
) -> Callable[[], None]:
    """See one assignment to its end. The answer rings the worker's bell."""
    failpoint("received")
    os.chdir(directory)
    try:
        spec = records.read_spec(".")
        if spec is None:
            raise ValueError("spec.json is not there or not of a form known here")
        records.reserve(records.EXIT, _EXIT_RECORD_BYTES)
        shim = kind(spec)(spec, who, lock, wake)
        shim.run()
    except Exception:
        _leave_traceback()
        raise
    return shim.ring


def _persist(record: ExitRecord) -> None:
    while True:
        try:
            records.stage(records.EXIT, record)
            failpoint("exit_staged")
            records.publish(records.EXIT)
            failpoint("exit_durable")
            return
        except FileNotFoundError:
            return  # somebody removed the directory: nobody waits for the answer
        except OSError:
            time.sleep(_DISK_PAUSE_S)


def _why_not_launched(word: Word) -> str:
    name = errno.errorcode.get(word.errno, str(word.errno))
    explained: dict[str, Callable[[], str]] = {
        "ENOEXEC": lambda: "no program for this machine, and no #! line",
        "EACCES": lambda: "is a directory" if os.path.isdir(word.path) else "not executable",
    }
    text = explained.get(name, lambda: os.strerror(word.errno))()
    if word.said == "interpreter":
        text = "the interpreter that its first line or header names does not exist"
    return f"{word.path}: {text} ({name}, errno {word.errno})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _mebibytes(maxrss: int) -> float:
    return maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _note(name: str, text: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def _sync(name: str) -> None:
    fd = os.open(name, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _leave_traceback() -> None:
    _note(records.CRASH, traceback.format_exc())
