"""jobd 0.5 and jobd-mcp side by side: the same work, in turns, on the same machine.

    python benchmarks/versus_jobd.py [--jobd .tools/jobd] [--runs 3]

`--jobd` names a virtual environment of its own in which it is installed (both bring a command `job`):

    python3 -m venv .tools/jobd && .tools/jobd/bin/pip install 'jobd[worker]'

Without one nothing is measured, and that is said. Each is asked in its own way: jobd over loopback TCP, as it listens
to nothing else, with its `fast_path`, which starts a job as a plain process. Both write to the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from figures import Table, percentile
from output import LINE
from private import START_LIMIT_S, Private
from raw_http import Connection

TRUE = ["/bin/true"]
INSTALLED = Path(__file__).resolve().parent.parent / ".tools" / "jobd"


class Product(ABC):
    """What is asked of both."""

    name: str

    @abstractmethod
    def connect(self) -> Connection: ...

    @abstractmethod
    async def submit(self, connection: Connection, argv: list[str], count: int = 1) -> int:
        """The id of the job, or of the array."""

    @abstractmethod
    async def get(self, connection: Connection, job: int) -> Mapping[str, Any]: ...

    @abstractmethod
    async def completed(self, connection: Connection, array: int) -> int:
        """How many of its jobs are."""

    @abstractmethod
    async def log_bytes(self, job: int) -> int:
        """How much of its output the broker has."""


class Ours(Product):
    name = "jobd-mcp"

    def __init__(self, own: Private) -> None:
        self._own = own

    def connect(self) -> Connection:
        return Connection(self._own.socket)

    async def submit(self, connection: Connection, argv: list[str], count: int = 1) -> int:
        spec = {"argv": argv, "cwd": "/tmp", "project": "bench"} | ({"count": count} if count > 1 else {})
        answer = await connection.call("POST", "/v1/jobs", spec)
        return int(answer["array"] if count > 1 else answer["id"])

    async def get(self, connection: Connection, job: int) -> Mapping[str, Any]:
        return await connection.call("GET", f"/v1/jobs/{job}")

    async def completed(self, connection: Connection, array: int) -> int:
        counts = (await connection.call("GET", f"/v1/jobs?array={array}&limit=1"))["counts"]
        return int(counts.get("completed", 0))

    async def log_bytes(self, job: int) -> int:
        async with self.connect() as connection:
            return int((await self.get(connection, job)).get("log_bytes", 0))


class Jobd(Product):
    name = "jobd"

    def __init__(self, port: int, logs: Path) -> None:
        self._port, self._logs = port, logs

    def connect(self) -> Connection:
        return Connection(("127.0.0.1", self._port))

    async def submit(self, connection: Connection, argv: list[str], count: int = 1) -> int:
        spec = {"cmd": argv, "cwd": "/tmp", "project": "bench", "fast_path": True, "count": count}
        answer = await connection.call("POST", "/submit", spec)
        return int(answer["array_id"] if count > 1 else answer["id"])

    async def get(self, connection: Connection, job: int) -> Mapping[str, Any]:
        return await connection.call("GET", f"/jobs/{job}")

    async def completed(self, connection: Connection, array: int) -> int:
        jobs: Any = await connection.call("GET", f"/jobs?array_id={array}&state_filter=completed")
        return len(jobs)

    async def log_bytes(self, job: int) -> int:
        return sum(file.stat().st_size for file in self._logs.rglob(f"*{job}*") if file.is_file())


@asynccontextmanager
async def ours(*, slots: int) -> AsyncIterator[Ours]:
    """With a worker, if it has slots."""
    async with Private() as own:
        if slots:
            await own.start_worker(slots=slots)
        yield Ours(own)


@asynccontextmanager
async def jobd(installed: Path, *, slots: int) -> AsyncIterator[Jobd]:
    with tempfile.TemporaryDirectory(prefix="jobd-bench-") as name:
        home, port = Path(name), _free_port()
        (home / "config").mkdir()
        environ = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": name,
            "JOBD_ALLOW_NO_AUTH": "1",
            "JOBD_CONFIG_DIR": str(home / "config"),
            "JOBD_DB_URL": f"sqlite:///{home}/jobd.db",
            "JOBD_LOGS_DIR": str(home / "logs"),
            "JOBD_PORT": str(port),
            "JOBD_URL": f"http://127.0.0.1:{port}",
            "JOBD_WORKER_HOST": "w1",
            "JOBD_WORKER_MAX_CONCURRENT_JOBS": str(slots),
        }
        processes = [_started(installed / "bin" / "jobd", environ, home)]
        try:
            product = Jobd(port, home / "logs")
            await _answering(product)
            if slots:
                processes.append(_started(installed / "bin" / "jobd-worker", environ, home))
            yield product
        finally:
            for process in reversed(processes):
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
                process.wait()


async def measure_submits(product: Product, table: Table, jobs: int) -> None:
    async with product.connect() as connection:
        for _ in range(50):  # to get warm
            await product.submit(connection, TRUE)
    for clients in (1, 16):

        async def client(share: int = jobs // clients) -> None:
            async with product.connect() as connection:
                for _ in range(share):
                    await product.submit(connection, TRUE)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        passed_s = time.perf_counter() - began
        table.add(f"submits, {clients} at once", **{f"{product.name}_per_s": jobs // clients * clients / passed_s})
    async with product.connect() as connection:
        began = time.perf_counter()
        await product.submit(connection, TRUE, count=1000)
        table.add("1,000 in one request", **{f"{product.name}_s": time.perf_counter() - began})
        took_s = []
        for job in range(1, 51):
            began = time.perf_counter()
            await product.get(connection, job)
            took_s.append(time.perf_counter() - began)
        table.add("one job of those, p50", **{f"{product.name}_ms": percentile(took_s, 0.5) * 1e3})


async def measure_work(product: Product, table: Table, jobs: int, megabytes: int) -> None:
    async with product.connect() as connection:
        first = await product.submit(connection, TRUE, count=4)
        await _until(lambda: product.completed(connection, first), 4)
        began = time.perf_counter()
        array = await product.submit(connection, TRUE, count=jobs)
        await _until(lambda: product.completed(connection, array), jobs)
        table.add("/bin/true, four slots", **{f"{product.name}_per_s": jobs / (time.perf_counter() - began)})
        argv = ["sh", "-c", f"yes '{LINE}' | head -c {megabytes}M"]
        began = time.perf_counter()
        job = await product.submit(connection, argv)
        await _until(lambda: product.log_bytes(job), megabytes << 20)
        table.add("output", **{f"{product.name}_MB_per_s": megabytes / (time.perf_counter() - began)})


def _started(program: Path, environ: Mapping[str, str], home: Path) -> subprocess.Popen[bytes]:
    with (home / f"{program.name}.log").open("ab") as log:
        return subprocess.Popen(
            [program], env=dict(environ), cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answering(product: Product) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            async with product.connect() as connection:
                await connection.call("GET", "/health")
                return
        await asyncio.sleep(0.05)
    raise SystemExit(f"{product.name} does not answer within {START_LIMIT_S:g} s")


async def _until(look: Callable[[], Any], wanted: int, limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while (seen := await look()) < wanted:
        if time.monotonic() > deadline:
            raise SystemExit(f"{seen} of {wanted} after {limit_s:g} s")
        await asyncio.sleep(0.05)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobd", type=Path, default=INSTALLED)
    parser.add_argument("--submits", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    installed: Path = arguments.jobd.absolute()
    if not os.access(installed / "bin" / "jobd-worker", os.X_OK):
        print(f"versus_jobd: skipped, since jobd is not installed in {installed}; --help says how to")
        return
    version = json.loads(_said(installed, "import importlib.metadata as m, json; print(json.dumps(m.version('jobd')))"))
    table = Table(f"jobd {version} and jobd-mcp in turns")
    for _ in range(arguments.runs):
        async with ours(slots=0) as product:
            await measure_submits(product, table, arguments.submits)
        async with jobd(installed, slots=0) as other:
            await measure_submits(other, table, arguments.submits)
        async with ours(slots=4) as product:
            await measure_work(product, table, arguments.jobs, arguments.megabytes)
        async with jobd(installed, slots=4) as other:
            await measure_work(other, table, arguments.jobs, arguments.megabytes)
    table.show()


def _said(installed: Path, program: str) -> str:
    return subprocess.run(
        [installed / "bin" / "python", "-c", program], capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    asyncio.run(main())
