"""The process that shims are forked from: interpreter and modules are loaded once, a shim costs a fork.

Started by the worker before anything else, from the worker's copy of this code: `python -I -S zygote.py jobd shim`.
A request comes on stdin, a unix socket: one line, the assignment's directory, and with it the descriptor of its lock,
held already. So the lock is held from before the request until the shim ends, without a gap. The zygote ends when
the worker does; its shims do not.
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
from typing import NoReturn

if __name__ == "__main__":  # -I leaves the script's own place out of the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from worker import shim
from worker.process import signals
from worker.process.identity import LINUX, identify
from worker.process.kernel import become_subreaper, set_name
from worker.process.tree import children, descendants, signal_each

_MOST_REQUESTS = 64
_STRAYS_LIMIT_S = 5.0
_KILL_PAUSE_S = 0.002


class Zygote:
    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._wake_r, self._wake_w = _wake_pipe()
        self._shims: set[int] = set()
        self._text = b""
        self._locks: list[int] = []

    def serve(self) -> None:
        """Until the worker's end of the socket is closed."""
        poll = select.poll()
        for fd in (self._requests.fileno(), self._wake_r):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake_r in ready:
                _drain(self._wake_r)
                self._reap()
            if self._requests.fileno() in ready and not self._receive():
                return

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
            self._fork(os.fsdecode(directory), self._locks.pop(0))
        return bool(data)

    def _fork(self, directory: str, lock: int) -> None:
        try:
            pid = os.fork()
        except OSError:  # no memory, too many processes: the lock is let go, and the worker sees that none came
            os.close(lock)
            return
        if pid == 0:
            self._become_shim(directory, lock)
        self._shims.add(pid)
        os.close(lock)

    def _become_shim(self, directory: str, lock: int) -> NoReturn:
        code = 70
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # 0 is the socket of requests
                os.dup2(null, fd)
            os.close(null)
            for fd in (self._wake_r, self._wake_w, *self._locks):
                os.close(fd)
            gc.enable()
            wake, _ = _wake_pipe()
            shim.main(directory, lock, wake)
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        """Shims that ended; and what a shim that was killed left behind: as subreaper the zygote inherits it."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            self._shims.discard(pid)
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
                self._shims.discard(reaped)

    def _below_dead_shims(self) -> list[int]:
        found: list[int] = []
        for child in children(os.getpid()):
            if child not in self._shims:
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
