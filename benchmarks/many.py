"""Does it stay as fast with many of everything, and does memory stay flat?

    python benchmarks/many.py [--idle 200] [--streams 1000] [--finished 1000000] [--hour 20000] [--runs 3]

Submits by 16 clients and lives of jobs by 16 simulated workers in batches of eight: with few of everything, then with
`--idle` workers that are parked and fit nothing, with `--streams` that follow all events in another process, with
`--finished` jobs in the database, and with all of these. Each situation has a broker of its own; they come one after
the other in each run, so that the machine is the same for all. `--hour` lives follow in the last one: memory of the
broker after a quarter of them, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cycle import SimulatedWorker, fill, measure
from figures import Table
from private import Private, pss_mb
from raw_http import Connection

from broker import places
from broker.store.sqlite import open_sqlite

BUSY = "busy"  # a tag of the workers that work: the idle ones fit no job
WORKERS, SLOTS, CLIENTS = 16, 8, 16


@dataclass(frozen=True)
class Situation:
    idle: int = 0
    streams: int = 0
    finished: int = 0


@asynccontextmanager
async def prepared(situation: Situation) -> AsyncIterator[Private]:
    directory = Path(tempfile.mkdtemp(prefix="jobd-bench-"))
    state = places.private_directory(directory / "broker")
    if situation.finished:
        await finish_jobs(state, situation.finished)
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(Private(directory=directory))
        if situation.idle:
            await stack.enter_async_context(idle_workers(own, situation.idle))
        if situation.streams:
            stack.enter_context(followers(own.socket, situation.streams))
        yield own


async def finish_jobs(state: Path, jobs: int) -> None:
    """Rows as jobs leave them: each with its specification, delivery and events."""
    database = state / "jobd.sqlite3"
    await (await open_sqlite(database, clock_ms=lambda: 1)).close()
    with contextlib.closing(sqlite3.connect(database)) as raw:
        raw.execute("PRAGMA cache_size = -200000")
        raw.execute("INSERT INTO shapes (key) VALUES ('[1.0,[],null,\"default\"]')")
        raw.execute('INSERT INTO specs (json) VALUES (\'{"argv":["/bin/true"]}\')')
        numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) "
        raw.execute(
            f"{numbers} INSERT INTO jobs (id, version, state, spec, shape, project, command, priority, cpus, place, "
            "policy, grace_s, actor, attempt, assignment, restarts, exit_code, created_at, queued_at, started_at, ended_at)"
            "SELECT i, 4, 'completed', 1, 1, 'default', '/bin/true', 0, 1.0, '', 'requeue', 10.0, 'me', 1, i, 1, 0, "
            "i, i, i, i FROM n"
        )
        raw.execute(
            f"{numbers} INSERT INTO assignments (id, job, attempt, worker, worker_name, epoch, state, token, shim, "
            "lease_until, answer, cpus, reserved, exit_code, created_at, acked_at, started_at, ended_at, final_size)"
            "SELECT i, i, 1, 'w', 'w', 1, 'succeeded', 'unguessable-unguessable-unguessable', 'shim', i, i, 1.0, 0, 0, "
            "i, i, i, i, 0 FROM n"
        )
        for kind in ("job_submitted", "job_assigned", "assignment_acked", "job_started", "job_completed"):
            raw.execute(f"INSERT INTO events (at, type, job, project) SELECT id, '{kind}', id, 'default' FROM jobs")
        raw.execute("INSERT INTO counts (project, state, n) VALUES ('default', 'completed', ?)", (jobs,))
        raw.commit()


@asynccontextmanager
async def idle_workers(own: Private, number: int) -> AsyncIterator[None]:
    async def stay(worker: SimulatedWorker) -> None:
        while True:
            await worker.rest()

    async with AsyncExitStack() as stack:
        tasks = []
        for n in range(number):
            connection = await stack.enter_async_context(Connection(own.socket))
            worker = SimulatedWorker(connection, f"idle-{n}", 4)
            await worker.register()
            tasks.append(asyncio.create_task(stay(worker)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def followers(socket: Path, number: int) -> Iterator[None]:
    """A process that follows all events `number` times, and throws them away."""
    command = [sys.executable, __file__, "--follow", str(socket), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()  # all are connected
            yield
        finally:
            started.kill()


class Discard(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"GET /v1/events/stream HTTP/1.1\r\nHost: jobd\r\n\r\n")


async def follow(socket: str, number: int) -> None:
    loop = asyncio.get_running_loop()
    kept = [await loop.create_unix_connection(Discard, socket) for _ in range(number)]
    print("following", len(kept), flush=True)
    await asyncio.Event().wait()


async def submits(own: Private, number: int) -> float:
    """Submits a second."""
    left = number

    async def client() -> None:
        nonlocal left
        async with Connection(own.socket) as connection:
            while left > 0:
                left -= 1
                await connection.call("POST", "/v1/jobs", {"argv": ["/bin/true"], "needs": [BUSY]})

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return number / (time.perf_counter() - began)


async def lives(own: Private, cycles: int) -> float:
    """Lives a second, by workers that are new each time."""
    await fill(own, cycles + WORKERS * SLOTS, needs=[BUSY])
    return await measure(own, WORKERS, SLOTS, cycles, "", Table(""), tags=(BUSY,))


async def run(arguments: argparse.Namespace, table: Table) -> None:
    few: tuple[float, float] | None = None
    situations = {
        "few": Situation(),
        "idle workers": Situation(idle=arguments.idle),
        "streams": Situation(streams=arguments.streams),
        "finished jobs": Situation(finished=arguments.finished),
        "all of these": Situation(arguments.idle, arguments.streams, arguments.finished),
    }
    for name in arguments.situations or situations:
        situation = situations[name]
        async with prepared(situation) as own:
            await lives(own, arguments.cycles // 4)  # caches are filled in all situations alike
            rates = await submits(own, arguments.submits), await lives(own, arguments.cycles)
            few = few or rates
            table.add(
                name,
                submits_per_s=rates[0],
                of_few=rates[0] / few[0],
                lives_per_s=rates[1],
                of_few_=rates[1] / few[1],
                broker_MB=pss_mb(own.broker_pid),
            )
            if situation.idle and situation.streams:
                await hour(own, arguments.hour, table)


async def hour(own: Private, cycles: int, table: Table) -> None:
    await lives(own, cycles // 4)
    early = pss_mb(own.broker_pid)
    rate = await lives(own, cycles - cycles // 4)
    late = pss_mb(own.broker_pid)
    table.add("an hour of work", lives_per_s=rate, MB_after_a_quarter=early, MB_at_the_end=late, grown_MB=late - early)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--submits", type=int, default=2000)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--hour", type=int, default=20_000)
    parser.add_argument("--situations", nargs="+", metavar="NAME", help="only these rows, as the table names them")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--follow", nargs=2, metavar=("SOCKET", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow:
        await follow(arguments.follow[0], int(arguments.follow[1]))
        return
    table = Table(
        f"many: {arguments.idle:,} idle workers, {arguments.streams:,} streams, {arguments.finished:,} finished jobs"
    )
    for _ in range(arguments.runs):
        await run(arguments, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
