"""Keeping one worker running beside a broker that was started in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from jobd_mcp.local import alive

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Pauses between starts double from `first_pause_s`; a worker that ran for `steady_s` has earned a short one."""

    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0
    steady_s: float = 30.0
    stop_limit_s: float = 10.0
    look_s: float = 1.0


class SupervisedWorker:
    """A worker process that is started again, after a growing pause, whenever it ends. `stop` ends it for good; its
    shims, and so its jobs, go on.

    `home` is the worker's own directory. A worker that outlived an earlier broker holds it still: it is left to its
    work, and followed and stopped like one of our own. One of another installation is replaced: a newer broker wants a
    worker of its own version, and the shims don't mind.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        log: Path,
        home: Path,
        command: tuple[str, ...] = (),
        patience: Patience | None = None,
    ) -> None:
        self._home = home
        self._patience = patience or Patience()
        self.pause_s = self._patience.first_pause_s
        self._environ = dict(environ)
        self._log_file = log
        self._command = command or (sys.executable, "-I", "-m", "worker", "jobd", "worker")
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name="supervised worker")

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not heed it; it is gone when this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        own = self._process
        if own is not None and own.returncode is None:
            await _end(own.pid, lambda: own.returncode is None, self._patience.stop_limit_s)
        left = background_worker(self._home)
        if left is not None:
            await _end(left, lambda: alive(left), self._patience.stop_limit_s)

    async def _keep_running(self) -> None:
        clock, patience = asyncio.get_running_loop().time, self._patience
        while True:
            await self._while_another_works()
            began = clock()
            try:
                await self._start()
            except OSError as error:
                _log.error("the worker can't be started: %s", error)
            else:
                assert self._process is not None
                code = await self._process.wait()
                _log.warning("the worker ended with exit code %s after %.1f s", code, clock() - began)
            steady = clock() - began >= patience.steady_s
            self.pause_s = patience.first_pause_s if steady else min(patience.longest_pause_s, self.pause_s * 2)
            await asyncio.sleep(self.pause_s)

    async def _while_another_works(self) -> None:
        while (left := background_worker(self._home)) is not None:
            if _interpreter(left) in (None, self._command[0]):
                await asyncio.sleep(self._patience.look_s)
                continue
            _log.warning("the worker that was left (process %s) is of another installation, and is replaced", left)
            await _end(left, partial(alive, left), self._patience.stop_limit_s)

    async def _start(self) -> None:
        # Its own session: what stops the broker's process group must not reach jobs. Its own log lines go to a file;
        # a pipe would have to be read for as long as anybody holds its other end.
        log = os.open(self._log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environ,
                start_new_session=True,
            )
        finally:
            os.close(log)


def background_worker(home: Path) -> int | None:
    """Process id of the background worker that holds this directory; None if none does, or one of another kind."""
    try:
        pid = int((home / "lock").read_text().strip() or "0")
        words = _arguments(pid)
    except (OSError, ValueError):
        return None
    background = (b"jobd", b"worker") in pairwise(words)
    return pid if pid > 0 and background and alive(pid) else None


def _interpreter(pid: int) -> str | None:
    """What it was started with; None if it has just ended."""
    try:
        return os.fsdecode(_arguments(pid)[0])
    except OSError:
        return None


def _arguments(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


async def _end(pid: int, lives: Callable[[], bool], limit_s: float) -> None:
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, signal_)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while lives():  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.02)
                return
