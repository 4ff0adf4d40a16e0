"""Keeps the child that talks to the driver: asks it, kills it when it hangs, starts it again after a pause.

A driver that hangs hangs the child alone. One that can't be killed (it is stuck in the kernel) is left there, and no
other is started until it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import structlog

from worker.probe.snapshot import Snapshot, nothing
from worker.process.clock import boot_s

log = structlog.get_logger("worker.probe")

_LONGEST_LINE = 4 << 20
_COMMAND = (sys.executable, "-I", str(Path(__file__).with_name("child.py")))


@dataclass(frozen=True)
class Patience:
    """`answer_s`: a call into the driver that takes longer hangs. Pauses before the next start double."""

    answer_s: float = 15.0
    kill_s: float = 1.0
    first_pause_s: float = 5.0
    longest_pause_s: float = 60.0
    absent_pause_s: float = 600.0

    @classmethod
    def of(cls, every_s: float) -> Self:
        """For a machine that is looked at that often."""
        return cls(max(3 * every_s, 5.0), 1.0, every_s, 12 * every_s, 120 * every_s)


class GpuProbe:
    """`look()` for what the driver says now. Never raises, and never takes much longer than the patience lasts."""

    def __init__(
        self,
        environ: Mapping[str, str],
        patience: Patience | None = None,
        command: Sequence[str] = _COMMAND,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        self._environ = {name: value for name, value in environ.items() if not name.startswith("JOBD_")}
        self._patience = patience or Patience()
        self._command = command
        self._clock = clock
        self._child: asyncio.subprocess.Process | None = None
        self._stuck: asyncio.subprocess.Process | None = None
        self._hangs = False
        self._failures = 0
        self._not_before = 0.0
        self._last = nothing("failed", "not looked at yet")

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def look(self) -> Snapshot:
        """A fresh snapshot; while a pause lasts, what was found out last."""
        if self._stuck is not None and self._stuck.returncode is None:
            return self._last
        self._stuck = None
        if self._child is None and self._clock() < self._not_before:
            return self._last
        found = await self._ask()
        if found["state"] == "ok":
            self._failures = 0
        else:
            await self._end()
            self._pause(absent=found["state"] == "absent")
        self._tell(found)
        self._last = found
        return found

    @property
    def _whose(self) -> str:
        return "AMD's" if (self._last["driver"] or "").startswith("amdgpu") else "the NVIDIA"

    async def aclose(self) -> None:
        """Whatever it is doing: nobody waits for a driver at the end."""
        self._hangs = True
        await self._end()

    async def _ask(self) -> Snapshot:
        self._hangs = False
        try:
            async with asyncio.timeout(self._patience.answer_s):
                child = self._child or await self._start()
                assert child.stdin is not None and child.stdout is not None
                child.stdin.write(b"\n")
                line = await child.stdout.readline()
        except TimeoutError:
            self._hangs = True
            return nothing("failed", f"{self._whose} driver hangs: no answer within {self._patience.answer_s:g} s")
        except (OSError, ValueError) as error:
            return nothing("failed", f"the GPU probe could not be asked: {error}"[:200])
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            return nothing("failed", f"the GPU probe ended while it was asked{await self._how_it_ended()}")
        return cast("Snapshot", answer)

    async def _start(self) -> asyncio.subprocess.Process:
        self._child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environ,
            cwd="/",
            limit=_LONGEST_LINE,
        )
        return self._child

    async def _how_it_ended(self) -> str:
        child = self._child
        if child is None:
            return ""
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(child.wait(), self._patience.kill_s)
            return f" (exit code {code})" if code >= 0 else f" (signal {-code})"
        return ""

    async def _end(self) -> None:
        """Without its stdin it ends by itself; it is killed where it hangs, and nobody waits for long: a process that is
        stuck in the kernel ends when the kernel lets it."""
        child, self._child = self._child, None
        if child is None or await self._gone(child, 0.0 if self._hangs else self._patience.kill_s):
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        if not await self._gone(child, self._patience.kill_s):
            self._stuck = child
            log.error("the GPU probe can't be killed: it is stuck in the driver", pid=child.pid)

    async def _gone(self, child: asyncio.subprocess.Process, within_s: float) -> bool:
        assert child.stdin is not None
        child.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), within_s)
        return child.returncode is not None

    def _pause(self, *, absent: bool) -> None:
        patience = self._patience
        growing = min(patience.longest_pause_s, patience.first_pause_s * 2 ** min(self._failures, 16))
        self._failures += 1
        self._not_before = self._clock() + (patience.absent_pause_s if absent else growing)

    def _tell(self, found: Snapshot) -> None:
        """Once for each change, not with each look."""
        if (found["state"], found["why"]) != (self._last["state"], self._last["why"]):
            tell = log.info if found["state"] != "failed" else log.warning
            tell("GPUs", state=found["state"], why=found["why"], devices=len(found["devices"]), driver=found["driver"])
