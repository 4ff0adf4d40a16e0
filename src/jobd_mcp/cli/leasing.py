"""A command that runs here under a lease: the lease is renewed while it lives, and it ends when the lease does."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from broker.places import KFD, visible_devices
from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.exit_codes import TIME_LIMIT
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.logs import say
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_list, as_object

LOOK_S = 5.0
WATCH_S = 30.0
AGAIN_S = 0.5
RELEASED_WITHIN_S = 5.0
DEFAULT_GRACE_S = 10.0
PART_OF_GRACE = 0.8  # the command is gone before what holds its devices is
PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
FROM_THE_TERMINAL = ("SIGINT", "SIGQUIT")
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_PR_SET_PDEATHSIG = 1


class Holding:
    """One lease, as this process has it. Renewed from the request on: who does not renew leaves the queue, too."""

    def __init__(self, connection: Connection, lease: Schema) -> None:
        self._connection = connection
        self._closed = threading.Event()
        self.job = lease["job"]
        self.lease = lease
        self.lost: str | None = None
        ttl_s = lease.get("ttl_s")
        self._every_s = (ttl_s if isinstance(ttl_s, int | float) else 60.0) / 3

    def granted(self) -> Schema:
        """Wait for it; stderr says why it waits. Raises Failure if it ends before, SystemExit if it wanted to wait no longer."""
        told = None
        while self.lease.get("state") == "waiting" and self.lost is None:
            self.lease = self._patiently("lease_get", {"unless": "waiting", "wait_s": min(LOOK_S, self._every_s)})
            why = as_object(self.lease.get("waiting")).get("message")
            if why and why != told:
                told = why
                say(f"lease {self.job} waits{self._place()}: {why}")
        if as_object(self.lease.get("reason")).get("code") == "scheduling_timeout":
            say(f"lease {self.job} was not granted: {why_over(self.lease)}")
            raise SystemExit(TIME_LIMIT)
        if self.lost is not None or self.lease.get("state") != "granted":
            raise Failure(f"lease {self.job} was not granted: {self.lost or why_over(self.lease)}")
        return self.lease

    def keep(self) -> None:
        """Renew it from now on, in a thread of its own."""
        threading.Thread(target=self._renew_forever, name="renewals", daemon=True).start()

    def renew(self) -> None:
        self.lease = self._patiently("lease_renew", {})

    def close(self) -> None:
        """Give it back, whatever happened; it expires by itself if nobody hears that."""
        self._closed.set()
        until = time.monotonic() + RELEASED_WITHIN_S
        while True:
            try:
                self._call("lease_release", {})
            except Failure as failure:
                if failure.code is None and time.monotonic() < until:
                    time.sleep(AGAIN_S)
                    continue
                if failure.code is None:
                    say(f"lease {self.job} could not be given back ({failure.message}); it ends by itself")
            return

    def stay(self) -> None:
        """Leave it as it is, for whoever renews or releases it later."""
        self._closed.set()

    def watch(self, command: subprocess.Popen[bytes], grace_s: float | None) -> None:
        """End the command when the lease is to end; say so if its devices lie idle. In a thread of its own."""
        threading.Thread(target=self._watch, args=(command, grace_s), name="watch", daemon=True).start()

    def _watch(self, command: subprocess.Popen[bytes], grace_s: float | None) -> None:
        idle_told = False
        while not self._closed.is_set() and command.poll() is None:
            try:
                wait_s = WATCH_S if self.lost is None else 0.0
                lease = self._call("lease_get", {"unless": "granted", "wait_s": wait_s})
            except Failure as failure:
                if failure.code is not None and not failure.retryable:
                    self.lost = self.lost or failure.message
                lease = {"state": "granted"}
                self._closed.wait(AGAIN_S)
            if lease.get("idle") is True and not idle_told:
                idle_told = True
                say(f"lease {self.job} lies idle: nothing of it is on {', '.join(devices(lease)) or 'its devices'}")
            if lease.get("state") in ("ending", "ended"):
                self.lost = self.lost or why_over(lease)
            if self.lost is not None:
                asked = as_object(lease.get("stopping")).get("grace_s")
                given_s = asked if isinstance(asked, int | float) else DEFAULT_GRACE_S if grace_s is None else grace_s
                self._stop(command, given_s * PART_OF_GRACE)
                return

    def _stop(self, command: subprocess.Popen[bytes], grace_s: float) -> None:
        say(f"lease {self.job} is over ({self.lost}): the command gets TERM, and KILL after {grace_s:g} s")
        command.terminate()
        deadline = time.monotonic() + grace_s
        while command.poll() is None and time.monotonic() < deadline:
            self._closed.wait(0.05)
        command.kill()

    def _renew_forever(self) -> None:
        wait_s, told = self._every_s, False
        while not self._closed.wait(wait_s):
            try:
                self._call("lease_renew", {})
                wait_s, told = self._every_s, False
            except Failure as failure:
                if failure.code is not None and not failure.retryable:
                    self.lost = self.lost or failure.message
                    return
                wait_s = min(AGAIN_S, self._every_s)
                if not told:
                    told = True
                    say(f"lease {self.job} can't be renewed now, trying on: {failure.message}")

    def _place(self) -> str:
        with suppress(Failure):
            said = as_object(self._connection.call(by_name()["job_explain"], {"job": self.job}).json())
            ahead = as_object(said.get("ahead"))
            least = "at least " if ahead.get("at_least") else ""
            return f" behind {least}{ahead.get('jobs')} jobs" if ahead else ""
        return ""

    def _patiently(self, operation: str, arguments: Mapping[str, Json]) -> Schema:
        """The answer of a broker that may be away for a while, for as long as the lease can last without it."""
        until = time.monotonic() + max(self._every_s, RELEASED_WITHIN_S)
        while True:
            try:
                return self._call(operation, arguments)
            except Failure as failure:
                if (failure.code is not None and not failure.retryable) or time.monotonic() > until:
                    raise
            time.sleep(AGAIN_S)

    def _call(self, operation: str, arguments: Mapping[str, Json]) -> Schema:
        return as_object(self._connection.call(by_name()[operation], {**arguments, "job": self.job}).json())


def why_over(lease: Schema) -> str:
    """Why a lease ends, or has ended."""
    stopping, reason = as_object(lease.get("stopping")), as_object(lease.get("reason"))
    return str(stopping.get("why") or reason.get("message") or lease.get("state"))


def devices(lease: Schema) -> list[str]:
    return [str(uuid) for uuid in as_list(lease.get("gpus"))]


def variables(lease: Schema) -> dict[str, str]:
    """What a command under this lease has in its environment. Without a device it sees none."""
    return {
        **visible_devices(devices(lease), rocm=KFD.exists()),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "JOBD_LEASE": str(lease["job"]),
    }


def exports(lease: Schema) -> list[str]:
    """The same for a shell's eval."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables(lease).items()]


def run(holding: Holding, words: Sequence[str], environ: Mapping[str, str], grace_s: float | None) -> int:
    """Run the command under a lease that was granted; its exit code, 128 + n for a signal. Raises Failure if the lease
    was lost meanwhile."""
    with _passing_on() as signals:
        try:
            # Before exec, in the child, one system call: no lock that a thread of ours could hold is needed for it.
            command = subprocess.Popen(
                list(words),
                env={**environ, **variables(holding.lease)},
                preexec_fn=_ends_with_us(),  # noqa: PLW1509
            )
        except FileNotFoundError:
            say(f"{words[0]}: not found")
            return NOT_FOUND
        except OSError as error:
            say(f"{words[0]}: {error.strerror or error}")
            return NOT_EXECUTABLE
        signals.go_to(command)
        holding.watch(command, grace_s)
        code = command.wait()
    if holding.lost is not None:
        raise Failure(f"the lease was lost: {holding.lost}", hint=f"job status {holding.job}")
    return code if code >= 0 else 128 - code


def _ends_with_us() -> Callable[[], object] | None:
    """Has the command told to end if this process is killed: nobody renews the lease then. None where that can't be had."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


class _Signals:
    """Signals to this process are the command's. What the terminal sends has reached it already, once it is there."""

    def __init__(self) -> None:
        self._command: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def heard(self, number: int, frame: FrameType | None) -> None:
        if self._command is None:
            self._early.append(number)
        elif signal.Signals(number).name not in FROM_THE_TERMINAL or not _is_foreground():
            self._command.send_signal(number)

    def go_to(self, command: subprocess.Popen[bytes]) -> None:
        self._command = command
        for number in self._early:
            command.send_signal(number)


@contextmanager
def _passing_on() -> Iterator[_Signals]:
    signals, before = _Signals(), {}
    for name in PASSED_ON:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, signals.heard)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def leaving() -> Iterator[None]:
    """Meanwhile a signal that would end this process leaves the lease first: SystemExit, 128 + n."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
