"""A shim for a process that somebody else had started: it runs nothing, and otherwise does what a shim does.

It is no parent of that process and no subreaper above it. So it learns of the end by a descriptor, of the output only
where that goes to a file, and of the tree by looking who is whose parent when it is to be stopped.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import stat
import time

from worker.process import adoptee, records
from worker.process.clock import boot_s
from worker.process.identity import identify, read_small, stat_fields
from worker.process.limits import Limits
from worker.process.output import Capture
from worker.process.records import STDERR, STDOUT, Ending, ExitRecord, Identity, SpecRecord
from worker.process.tree import descendants
from worker.shim import Phase, Shim

FOLLOW_S = 0.25  # how often a file is looked at that somebody else writes
LOOK_S = 0.05  # how often, while it ends
_CHUNKS_AT_ONCE = 64
_UNKNOWN = -1  # in place of a wait status: it ended, and how can't be known
_LONGEST_COMMAND = 200
_PARENT = 1


def shim_of(spec: SpecRecord) -> type[Shim]:
    """Which kind an assignment wants."""
    return AdoptingShim if spec.get("adopt") else Shim


class AdoptingShim(Shim):
    """`start.json` says which process it is; there is no gate, and nothing to say `go` to."""

    def __init__(self, spec: SpecRecord, who: Identity, lock: int, wake: int) -> None:
        super().__init__(spec, who, lock, wake)
        self._pid = self._pidfd = -1
        self._tree: dict[int, int] = {}  # what was seen below it, by descriptors
        self._dead_since: float | None = None

    def _launch(self) -> None:
        named = self._spec.get("adopt")
        assert named is not None, "this kind is chosen by that"
        before = records.read_start(".")
        found = adoptee.find({**named, "starttime": before["process"]["starttime"]} if before else named)
        if isinstance(found, adoptee.Refused):
            if before is None:
                self._refuse(found.code, found.text)
            else:  # it ended before this shim was there: start.json without a record says that
                self._end_unexecuted(None)
            return
        self._pid, self._pidfd = named["pid"], found
        self._find_output()
        limits = dict(self._spec.get("limits", {}))
        if not self._pipes:
            if named["follow"] and "idle_timeout" in limits:
                self._refuse("adopt_output_elsewhere", f"idle_timeout_s can't be seen to: {self._elsewhere()}")
                return
            limits.pop("idle_timeout", None)
        try:
            self._begin(again=before is not None)
        except OSError as error:
            self._refuse("launcher_failed", f"the worker's disk: {os.strerror(error.errno or 0)}")
            return
        self._limits = Limits(limits, self._released_at)
        self.ring()

    def _begin(self, *, again: bool) -> None:
        self._capture = Capture(self._spec.get("log_cap", records.DEFAULT_LOG_CAP))
        self._tell_of_output(self._capture, again=again)
        start = records.StartRecord(
            proto=records.PROTO, process=identify(self._pid), shim=self._self, started_at=time.time()
        )
        records.stage(records.START, start)
        records.publish(records.START)
        os.close(os.open(records.RUNNING, os.O_WRONLY | os.O_CREAT, 0o600))
        self._phase = Phase.RUNNING
        self._tree_gone = False
        self._released_at = boot_s()
        self._poll.register(self._pidfd, select.POLLIN)

    # Output

    def _find_output(self) -> None:
        """Files that it writes, each once, from their end on."""
        seen = set()
        for number, stream in ((1, STDOUT), (2, STDERR)):
            path = f"/proc/{self._pid}/fd/{number}"
            try:
                info = os.stat(path)
                if not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) in seen:
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            seen.add((info.st_dev, info.st_ino))
            os.lseek(fd, 0, os.SEEK_END)
            self._pipes[fd] = stream

    def _tell_of_output(self, capture: Capture, *, again: bool) -> None:
        what = "what looked after it was killed; this is again" if again else "adopted"
        capture.say(STDOUT, f"{what} process {self._pid}: {_command_of(self._pid)}")
        for fd, stream in self._pipes.items():
            name = os.readlink(f"/proc/self/fd/{fd}")
            capture.say(stream, f"its output is followed from byte {os.lseek(fd, 0, os.SEEK_CUR)} of {name}")
        if not self._pipes:
            capture.say(STDOUT, f"{self._elsewhere()}: nothing of it is shown here")

    def _elsewhere(self) -> str:
        names = []
        for number in (1, 2):
            with contextlib.suppress(OSError):
                names.append(os.readlink(f"/proc/{self._pid}/fd/{number}"))
        return f"its output goes to {' and '.join(dict.fromkeys(names)) or 'nowhere'}, and not to a file"

    def _take(self, pipe: int) -> bool:
        """More of a file; that there is no more now is no end of it."""
        assert self._capture is not None
        count = self._capture.take(pipe, self._pipes[pipe])
        if not count:
            if os.fstat(pipe).st_size < os.lseek(pipe, 0, os.SEEK_CUR):
                self._capture.say(self._pipes[pipe], "the file was made shorter: it is followed from its begin")
                os.lseek(pipe, 0, os.SEEK_SET)
            return False
        self._news = True
        if self._limits is not None:
            self._limits.heard(boot_s())
        return True

    # The process and what is below it

    def _judge(self, now: float) -> None:
        if self._phase is Phase.RUNNING:
            for file in self._pipes:
                for _ in range(_CHUNKS_AT_ONCE):
                    if not self._take(file):
                        break
            self._reap()
        super()._judge(now)

    def _reap(self) -> None:
        """Nothing here is a child of ours: look whether it has ended, and of a tree that is stopped, all of it."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        if self._phase is not Phase.RUNNING:
            return
        if self._status is None and adoptee.has_exited(self._pidfd):
            self._look_how_it_ended()
        if self._status is not None:  # what outlives a process that ended by itself is none of our business
            self._tree_gone = self._stopped_by is None or not self._living()

    def _look_how_it_ended(self) -> None:
        """Its parent may take a moment to ask. Only what the kernel says counts."""
        if self._dead_since is None:
            self._dead_since = boot_s()
            self._poll.unregister(self._pidfd)  # it stays readable
        status = adoptee.exit_status(self._pidfd)
        if status is None and boot_s() - self._dead_since < self._spec["linger_s"]:
            return
        self._main_ended(_UNKNOWN if status is None else status)

    def _code(self) -> int | None:
        return None if self._status == _UNKNOWN else super()._code()

    def _record(
        self, outcome: Ending, *, stop: str | None = None, reason_code: str | None = None, reason: str | None = None
    ) -> ExitRecord:
        if outcome == "exited" and self._status == _UNKNOWN:
            outcome, reason_code = "lost", "exit_code_unobservable"
            reason = "it has ended, and how can't be known: it was started by somebody else"
        record = super()._record(outcome, stop=stop, reason_code=reason_code, reason=reason)
        return ExitRecord(**{**record, "max_rss_mb": None, "cpu_s": None})  # told to its parent alone

    def _living(self) -> list[int]:
        """The process and its descendants, also those that lost their parents since they were seen."""
        if self._phase is not Phase.RUNNING:
            return []
        known = {self._pid: self._pidfd, **self._tree}
        living = [pid for pid, fd in known.items() if not adoptee.has_exited(fd)]
        for pid in living:
            for below in descendants(pid):
                self._see(below, known)
        return [pid for pid, fd in known.items() if not adoptee.has_exited(fd)]

    def _see(self, pid: int, known: dict[int, int]) -> None:
        """Parents come before their children. Its id may have been reused before the descriptor was there."""
        if pid in known and not adoptee.has_exited(known[pid]):
            return
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            fields = stat_fields(pid)
            if fields is None or int(fields[_PARENT]) not in known:
                os.close(fd)
                return
            self._tree[pid] = known[pid] = fd

    def _signal_tree(self, which: signal.Signals) -> None:
        for pid in self._living():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._tree.get(pid, self._pidfd), which)

    def _sleep_ms(self) -> float:
        soonest = math.inf
        if self._pipes:
            soonest = FOLLOW_S
        if self._dead_since is not None or self._stopping():
            soonest = LOOK_S
        return min(super()._sleep_ms(), soonest * 1000)


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = read_small(f"/proc/{pid}/cmdline").decode("utf-8", "replace").replace("\0", " ").split()
        return " ".join(words)[:_LONGEST_COMMAND]
    return "?"
