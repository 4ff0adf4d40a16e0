"""The process that shims are forked from: interpreter and modules are loaded once, a shim costs a fork, or less.

Started by the worker before anything else, from the worker's copy of this code: `python -I -S zygote.py jobd shim`.
A request comes on stdin, a unix socket: one line, the assignment's directory, and with it the descriptor of its lock,
held already. So the lock is held from before the request until the shim ends, without a gap. The zygote ends when
the worker does; its shims do not.

A shim that has seen its assignment to the end is a spare one for the next: what a fork costs is mostly paid afterwards,
page by page. One spare is always there, so that no job waits for a fork.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import NamedTuple, NoReturn

if __name__ == "__main__":  # -I leaves the script's own place out of the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from worker import shim
from worker.adopting import shim_of
from worker.process import signals
from worker.process.clock import boot_s
from worker.process.identity import LINUX, identify
from worker.process.kernel import become_subreaper, set_name
from worker.process.tree import children, descendants, signal_each

_MOST_REQUESTS = 64
_STRAYS_LIMIT_S = 5.0
_KILL_PAUSE_S = 0.002
_MOST_SPARES = 4
_HIGHEST_FD = 65536
_SPARE_S = 30.0  # how long more than one spare is kept without work


class Spare(NamedTuple):
    """A shim without work, and since when."""

    pid: int
    since: float


class Zygote:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._wake_r, self._wake_w = _wake_pipe()
        self._shims: dict[int, socket.socket] = {}  # by pid: where it takes work, and says that it has none
        self._leaving: set[int] = set()
        self._spares: list[Spare] = []  # the one that worked last, and is the warmest, comes last
        self._poll = select.poll()
        self._text = b""
        self._locks: list[int] = []

    def serve(self) -> None:
        """Until the worker's end of the socket is closed."""
        for fd in (self._requests.fileno(), self._wake_r):
            self._poll.register(fd, select.POLLIN)
        self._have_a_spare()
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._sleep_ms())}
            if self._wake_r in ready:
                _drain(self._wake_r)
                self._reap()
            if self._requests.fileno() in ready and not self._receive():
                return
            for pid in [pid for pid, channel in self._shims.items() if channel.fileno() in ready]:
                self._hear(pid)
            self._dismiss_idle()

    def _receive(self) -> bool:
        try:
            data, locks, _, _ = socket.recv_fds(self._requests, 65536, _MOST_REQUESTS)
        except ConnectionResetError:
            return False
        for lock in locks:
            os.set_inheritable(lock, False)
        self._text += data
        self._locks += locks
        *directories, self._text = self._text.split(b"\n")
        for directory in directories:
            self._give(directory, self._locks.pop(0))
        return bool(data)

    def _give(self, directory: bytes, lock: int) -> None:
        """To a spare. If none can be had (no memory, too many processes) the lock is let go, and the worker sees it."""
        self._have_a_spare()
        while self._spares:
            spare = self._spares.pop()
            try:
                socket.send_fds(self._shims[spare.pid], [directory + b"\n"], [lock])
                break
            except OSError:  # it was killed: its end is heard in a moment
                continue
        os.close(lock)
        self._have_a_spare()

    def _have_a_spare(self) -> None:
        if self._spares:
            return
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            return
        if pid == 0:
            self._become_shim(theirs)
        theirs.close()
        ours.setblocking(False)
        self._shims[pid] = ours
        self._spares.append(Spare(pid, boot_s()))
        self._poll.register(ours.fileno(), select.POLLIN)

    def _become_shim(self, channel: socket.socket) -> NoReturn:
        code = 70
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # 0 is the socket of requests
                os.dup2(null, fd)
            os.dup2(channel.fileno(), 3, inheritable=False)
            os.closerange(4, _HIGHEST_FD)  # the zygote's own: other shims, other locks
            gc.enable()
            wake, _ = _wake_pipe()
            shim.serve(socket.socket(fileno=3), wake, shim_of)
            code = 0
        finally:
            os._exit(code)

    def _hear(self, pid: int) -> None:
        """It has no work any more, or no life."""
        try:
            said = self._shims[pid].recv(16)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said and len(self._spares) < _MOST_SPARES:
            self._spares.append(Spare(pid, boot_s()))
        else:
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        """Without its channel a shim ends, once its work is done."""
        channel = self._shims.pop(pid)
        self._poll.unregister(channel.fileno())
        channel.close()
        self._spares = [spare for spare in self._spares if spare.pid != pid]
        self._leaving.add(pid)

    def _dismiss_idle(self) -> None:
        while len(self._spares) > 1 and boot_s() - self._spares[0].since > _SPARE_S:
            self._forget(self._spares[0].pid)

    def _sleep_ms(self) -> float | None:
        if len(self._spares) < 2:
            return None
        return max(0.0, self._spares[0].since + _SPARE_S - boot_s()) * 1000 + 1

    def _reap(self) -> None:
        """Shims that ended; and what a shim that was killed left behind: as subreaper the zygote inherits it."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            self._gone(pid)
        if LINUX:
            self._kill_strays()

    def _kill_strays(self) -> None:
        """A child that is none of ours belonged to a dead shim: no one else is below us."""
        deadline = time.monotonic() + _STRAYS_LIMIT_S
        while time.monotonic() < deadline:
            living = self._below_dead_shims()
            if not living:
                return
            signal_each(living, signal.SIGKILL)
            time.sleep(_KILL_PAUSE_S)
            _drain(self._wake_r)
            while (reaped := _reap_one()) is not None:
                self._gone(reaped)

    def _gone(self, pid: int) -> None:
        if pid in self._shims:
            self._forget(pid)
        self._leaving.discard(pid)

    def _below_dead_shims(self) -> list[int]:
        found: list[int] = []
        for child in children(os.getpid()):
            if child not in self._shims and child not in self._leaving:
                found += [child, *descendants(child)]
        return found


def _reap_one() -> int | None:
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return pid or None


def _wake_pipe() -> tuple[int, int]:
    """A pipe that becomes readable when a child ends."""
    read, write = os.pipe()
    for fd in (read, write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read, write


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _rehearse() -> None:
    """What shims do, once: whatever it imports is then there. A shim must not need a file that was taken away."""
    traceback.format_exc()
    descendants(identify(os.getpid())["pid"])
    for codec in ("utf-8", "ascii"):
        json.loads(json.dumps({"rehearsed": codec}).encode(codec))
    errno.errorcode[errno.ENOENT].encode("utf-8", "surrogateescape")


def main() -> None:
    set_name("jobd-zygote")
    become_subreaper()
    os.chdir("/")
    signals.ignore()  # it ends when its worker does
    _rehearse()
    gc.disable()
    gc.freeze()
    requests = socket.socket(fileno=0)
    zygote = Zygote(requests)
    requests.send(b"ready\n")
    zygote.serve()


if __name__ == "__main__":
    main()
