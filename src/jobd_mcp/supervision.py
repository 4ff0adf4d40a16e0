"""Keeping one worker running beside a broker that was started in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Pauses between starts double from `first_pause_s`; a worker that ran for `steady_s` has earned a short one."""

    first_pause_s: float = 0.5
    longest_pause_s: float = 15.0
    steady_s: float = 30.0
    stop_limit_s: float = 10.0


class SupervisedWorker:
    """A worker process that is started again, after a growing pause, whenever it ends. `stop` ends it for good; its
    shims, and so its jobs, go on."""

    def __init__(
        self, environ: Mapping[str, str], log: Path, command: tuple[str, ...] = (), patience: Patience | None = None
    ) -> None:
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
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._patience.stop_limit_s):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _keep_running(self) -> None:
        clock, patience = asyncio.get_running_loop().time, self._patience
        while True:
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
