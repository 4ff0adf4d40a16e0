"""A broker and workers of their own for a measurement: real processes, private state, gone in the end.

Reading what processes cost needs Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from broker import places
from broker.client import BrokerClient, Unreachable

START_LIMIT_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Private:
    """`async with Private() as own:`; `settings` are JOBD_* names without the prefix, for the broker and all workers."""

    settings: dict[str, str] = field(default_factory=dict)
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="jobd-bench-")))
    broker: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.directory / "broker"

    @property
    def socket(self) -> Path:
        return places.sockets(self.state, {})[0]

    @property
    def broker_pid(self) -> int:
        assert self.broker is not None
        return self.broker.pid

    @property
    def environ(self) -> dict[str, str]:
        """For clients of this broker."""
        return {**_small(self.directory), "JOBD_STATE_DIR": str(self.state), "JOBD_URL": f"unix://{self.socket}"}

    def client(self) -> BrokerClient:
        return BrokerClient(f"unix://{self.socket}")

    async def __aenter__(self) -> Self:
        try:
            self.broker = self._start("broker", "jobd_mcp.daemon", "broker", state_dir=str(self.state))
            async with self.client() as client:
                await _until(lambda: _answers(client), "the broker answers")
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    async def start_worker(self, name: str = "w1", *, slots: int = 4) -> int:
        """The process id of a worker that is online."""
        state = str(self.directory / name)
        started = self._start(
            name,
            "worker",
            "worker",
            state_dir=state,
            url=f"unix://{self.socket}",
            worker_name=name,
            worker_slots=f"{slots}",
        )
        self.workers.append(started)
        async with self.client() as client:
            await _until(lambda: _online(client, name), f"the worker {name} is online")
        return started.pid

    def kill_worker(self, pid: int) -> None:
        """SIGKILL to the worker alone: what it started goes on until it finds itself without a worker."""
        [process] = [worker for worker in self.workers if worker.pid == pid]
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all, workers first; what is left of jobs is killed."""
        for process in [*self.workers, *([self.broker] if self.broker else [])]:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        deadline = time.monotonic() + 20
        while (left := _naming(self.directory)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, name: str, module: str, part: str, **values: str) -> subprocess.Popen[bytes]:
        environ = {f"JOBD_{key.upper()}": value for key, value in {**self.settings, **values}.items()}
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-m", module, "jobd", part],
                env={**_small(self.directory), **environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def cpu_s(*pids: int) -> float:
    """Processor time that these processes have used, with that of their children that have ended."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in pids) / _TICKS


def pss_mb(*pids: int) -> float:
    """Memory in MiB; what is shared by several counts in parts."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def tree(root: int) -> list[int]:
    """`root` and all that descends from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found = {root}
    while grown := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= grown
    return sorted(found)


def machine() -> str:
    """What the figures were taken on, in one line."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    where = places.file_system_of(Path(tempfile.gettempdir()))
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"state on {where}, load {os.getloadavg()[0]:.1f}"
    )


def _small(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _naming(directory: Path) -> list[int]:
    wanted, found = os.fsencode(directory), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if wanted in said and _stat(int(entry.name))[0] != "Z":
                    found.append(int(entry.name))
    return found


async def _answers(client: BrokerClient) -> bool:
    with contextlib.suppress(Unreachable):
        await client.whoami()
        return True
    return False


async def _online(client: BrokerClient, name: str) -> bool:
    return any(worker.name == name and worker.state == "online" for worker in (await client.worker_list()).workers)


async def _until(check: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not await check():
        if time.monotonic() > deadline:
            raise SystemExit(f"not true within {START_LIMIT_S:g} s: {what}")
        await asyncio.sleep(0.02)
