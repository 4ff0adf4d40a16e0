"""One real broker process and any number of real worker processes, each with a state directory of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import broker
from broker import failpoint
from broker.client import BrokerClient, Unreachable
from broker.wire.events import EventType
from broker.wire.jobs import Job, JobSpec
from broker.wire.workers import Worker
from support.processes import kill_all
from support.requirements import ROOT
from support.waiting import eventually, eventually_sync


class EndedEarly(Exception):
    """A process ended while it was starting; what it said."""


@dataclass
class Fleet:
    """`settings`: JOBD_* names without the prefix, for the broker and all workers."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    broker: subprocess.Popen[bytes] | None = None
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    within: dict[str, list[str]] = field(default_factory=dict)
    """Process name → words before its command: `broker` and each worker may live in a namespace of its own."""
    source: dict[str, Path] = field(default_factory=dict)
    """Process name → the code that it runs, if not the very code that this test has imported: one with a bug in it."""
    patience_s: float = 30
    """How long a process that starts may take until it is of use."""
    failpoints: dict[str, str] = field(default_factory=dict)
    """Process name → where its next process dies; the one after that lives."""

    @property
    def state(self) -> Path:
        return self.directory / "broker"

    @property
    def url(self) -> str:
        return f"unix://{self.state}/broker.sock"

    def client(self) -> BrokerClient:
        return BrokerClient(self.url)

    async def start_broker(self, *flags: str, **extra: str) -> None:
        """Start the broker; back when it answers."""
        self.broker = self._python("broker", "jobd_mcp.daemon", "jobd", "broker", *flags, state=self.state, extra=extra)
        async with self.client() as client:
            await eventually(lambda: self._answers(client), within_s=self.patience_s)

    async def _answers(self, client: BrokerClient) -> bool:
        assert self.broker is not None
        self._must_live("broker", self.broker)
        try:
            await client.whoami()
        except Unreachable:
            return False
        return True

    async def succeed_broker(self) -> subprocess.Popen[bytes]:
        """Start a broker that asks the present one to end and takes over; the one that ends is returned."""
        assert self.broker is not None
        older = self.broker
        await self.start_broker(f"--successor-of={older.pid}")
        return older

    def _must_live(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            raise EndedEarly((self.directory / f"{name}.log").read_text())

    def kill_broker(self) -> None:
        assert self.broker is not None
        self.broker.kill()
        self.broker.wait()

    async def start_worker(self, name: str = "w1", *, slots: float = 4, url: str | None = None, **extra: str) -> Worker:
        """Start a worker; back when the broker knows this process of it."""
        before = self.epoch(name)
        started = self._python(
            name,
            "worker",
            "jobd",
            "worker",
            state=self.directory / name,
            extra={"url": url or self.url, "worker_name": name, "worker_slots": str(slots), **extra},
        )
        self.workers[name] = started
        async with self.client() as client:
            return await eventually(lambda: self._online(client, name, started, before), within_s=self.patience_s)

    def epoch(self, name: str) -> int:
        """How often this worker has started."""
        file = self.directory / name / "workers" / name / "epoch"
        return int(file.read_text()) if file.exists() else 0

    async def _online(
        self, client: BrokerClient, name: str, process: subprocess.Popen[bytes], before: int
    ) -> Worker | None:
        self._must_live(name, process)
        try:
            said = (await client.job_events(type=EventType.WORKER_REGISTERED, worker=name, last=1000)).events
            found = [w for w in (await client.worker_list()).workers if w.name == name and w.state != "lost"]
        except Unreachable:
            return None
        known = any((event.data or {}).get("epoch", 0) > before for event in said)
        return found[0] if known and found else None

    def kill_worker(self, name: str) -> None:
        """SIGKILL to the worker alone: its zygote ends with it, its shims and jobs go on."""
        self.workers[name].kill()
        self.workers[name].wait()

    def kill_machine(self, name: str) -> None:
        """As if the power went: the worker and every process of its jobs, at once."""
        self.kill_worker(name)
        kill_all(self.directory / name)

    def close(self) -> None:
        """End all, workers first; what is left of the jobs is killed."""
        for process in [*self.workers.values(), *([self.broker] if self.broker else [])]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        for process in [*self.workers.values(), *([self.broker] if self.broker else [])]:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        eventually_sync(lambda: not kill_all(self.directory), within_s=20)

    def _python(
        self, name: str, module: str, *words: str, state: Path, extra: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        values = {"state_dir": str(state), **self.settings, **extra}
        environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.directory), "LANG": "C.UTF-8"}
        environ |= {f"JOBD_{key.upper()}": value for key, value in values.items()}
        if name in self.failpoints:
            environ[failpoint.VARIABLE] = self.failpoints.pop(name)
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self.within.get(name, []), *_command(self.source.get(name), module, *words)],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _command(source: Path | None, module: str, *words: str) -> list[str]:
    """Run a module of `source`, or of the very code that this test has imported: of a copy with a planted bug, too."""
    source = source or Path(broker.__file__).parents[1]
    if source == ROOT / "src":
        return [sys.executable, "-I", "-m", module, *words]
    program = f"import runpy, sys; sys.path.insert(0, {str(source)!r}); runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-I", "-c", program, *words]


async def submit(client: BrokerClient, command: str, **fields: object) -> int:
    said = await client.job_submit(JobSpec.model_validate({"command": command, **fields}))
    return said.id or said.array or 0


async def ended(client: BrokerClient, job: int, *, within_s: float = 60) -> Job:
    """The job, in full, once it has ended."""
    await eventually(lambda: _done(client, job), within_s=within_s)
    return await client.job_get(job, detail="full")


async def _done(client: BrokerClient, job: int) -> bool:
    try:
        return (await client.job_wait([job], timeout_s=2)).done
    except Unreachable:
        return False


async def output_of(client: BrokerClient, job: int, *, attempt: int | None = None) -> bytes:
    """All bytes of a job's output, once the broker has all that the job wrote."""

    async def complete() -> bool:
        assignments = (await client.job_get(job, detail="full")).assignments or []
        wanted = [a for a in assignments if attempt in (None, a.attempt)]
        return bool(wanted and wanted[-1].log_complete)

    await eventually(complete, within_s=60)
    return b"".join([part async for part in client.job_output(job, attempt=attempt)])


def starts_in(path: Path) -> int:
    """How often a job that appends a line at its start was started."""
    return len(path.read_text().splitlines()) if path.exists() else 0
