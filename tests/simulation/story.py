"""One seed's story: ten virtual minutes. Work comes and faults befall; then all is healed, must end, and be quiet."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import sqlite3
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from fastapi import FastAPI

from broker.app import DATABASE_NAME
from broker.client import Unreachable
from broker.core.states import TERMINAL
from broker.wire.jobs import JobSpec
from broker.wire.problems import Refused
from broker.wire.settings import BrokerSettings
from broker.wire.workers import WorkerUpdate
from simulation import nature
from simulation.clients import Client
from simulation.disk import Disk
from simulation.hosts import BrokerHost, WorkerHost
from simulation.loop import HERE, Machine, Process, Stuck, VirtualLoop, run
from simulation.network import Link, Network, Weather
from simulation.oracle import Oracle
from simulation.programs import Plan
from simulation.shims import Life
from simulation.swarm import Swarm, befall

SUBMITS_UNTIL_S = 370.0
FAULTS_UNTIL_S = 420.0
IN_FLIGHT_S = 45.0
"""How long a call that nobody answers is waited for at most, and then some."""
DONE_BY_S = 545.0
"""When all has ended, if what was left to do when all was healed is not more than that: else later."""
SETTLE_S = 25.0
QUIET_S = 30.0
LONGEST_S = 3600.0
PROBE_MARGIN_S = 5.0
SLOWEST_START_S = 3.0


@dataclass
class Told:
    """The story of one seed. `digest` of all that happened: the same for the same seed, in whichever process."""

    seed: int
    digest: str = ""
    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    jobs: int = 0
    faults: int = 0
    ended_at: float = 0.0


def _back_off_s(spec: JobSpec) -> float:
    """How long all of its retries wait at most."""
    return spec.retry_delay_s * ((1 << spec.retries) - 1)


class Story:
    """Puts it all together, and is what faults act on."""

    def __init__(self, seed: int, directory: Path, app: FastAPI, *, keep: bool = False) -> None:
        self.seed = seed
        self._directory = str(directory)  # another one each time: no part of the story
        self.loop = VirtualLoop(LONGEST_S)
        nature.take_over(self.loop, seed)
        self.chance = self._random("story")
        self.told = Told(seed)
        self._digest, self._keep = hashlib.sha256(), keep
        self.oracle = Oracle(self.loop.time, self.tell)
        self.swarm = Swarm.drawn(self._random("swarm"))
        self.network = Network(self.loop, self._random("network"), lambda text: self.tell("network", text))
        self.crash_at_commit = 0
        self._frozen: dict[Process, None] = {}
        self._make(directory, app)
        self._listen_to_logs()

    def _make(self, directory: Path, app: FastAPI) -> None:
        chance = self._random("make")
        self.settings = BrokerSettings(
            lease_s=chance.choice((8.0, 12.0, 20.0)),
            sweep_s=2.0,
            poll_s=10.0,
            exclusive_lease_s=chance.choice((8.0, 16.0)),
            exclusive_margin_s=1.0,
            start_limit_s=15.0,
            max_losses=chance.choice((1, 3, 5)),
        )
        self.oracle.start_limit_s = self.settings.start_limit_s
        self.oracle.lease_s = self.settings.lease_s
        self.oracle.exclusive_s = self.settings.exclusive_lease_s + self.settings.exclusive_margin_s
        self.oracle.listened = lambda: (self.broker.listened_s(), self.broker.gaps)
        disk = Disk(self._random("disk"))
        disk.opened, disk.committed, disk.crash_at = self.oracle.watch, self.oracle.committed, self._crash_at
        state = directory / "broker"
        state.mkdir()
        self.broker = BrokerHost(self.loop, state, self.settings, self.network, disk, app, self._random("power"))
        self.network.served = self.broker
        self.broker.failed = self._broker_failed
        deaf = self._random("deaf")
        if "no_wakes" in self.swarm.others:
            self.broker.hears = lambda: deaf.random() < 0.2
        self.workers = [
            WorkerHost(
                self.loop,
                f"w{number}",
                directory,
                self.network,
                self.oracle,
                self._random(f"w{number}"),
                slots=chance.choice((1, 2, 3)) if number else 3,
            )
            for number in range(chance.choice((1, 2, 3)))
        ]
        for worker in self.workers:
            worker.ended, worker.failed = self._worker_ended, self._worker_failed
            if "no_room" in self.swarm.others:
                worker.yard.no_room = 0.1
        names = [worker.name for worker in self.workers]
        self.clients = [
            Client(self.loop, name, self.network, self.oracle, self._random(name), self.tell, names)
            for name in ("alice", "bob")
        ]

    # ---- the story

    def tell_it(self) -> Told:
        self.tell("story", f"{self.swarm}")
        try:
            run(self.loop, self._live())
        except Stuck as stuck:
            self.oracle.wrong(9, str(stuck))
        except Exception as error:
            self.oracle.violations.append(f"the story broke off: {_why(error)}")
        told = self.told
        told.violations = self.oracle.violations + [f"a fault: {fault}" for fault in self.loop.faults]
        told.digest, told.ended_at = self._digest.hexdigest(), self.loop.time()
        told.jobs = len(self.oracle.states)
        return told

    async def _live(self) -> None:
        self.network.weather = self.swarm.weather
        self.broker.start()
        for worker in self.workers:
            self.later(self.chance.random() * 2, worker.start)
        for client in self.clients:
            client.live(SUBMITS_UNTIL_S, self.chance.choice((3.0, 8.0, 15.0)))
        self.loop.create_task(self._faults())
        self.loop.create_task(self._look_now_and_then())
        await asyncio.sleep(FAULTS_UNTIL_S)
        await self._heal()
        done_by = max(DONE_BY_S, self.loop.time() + self._left_s())
        while self.loop.time() < done_by and not self._all_over():
            await asyncio.sleep(1)
        if not self._all_over():
            self.oracle.wrong(9, "not all has ended, long after all was healed")
        await self._probe()
        await asyncio.sleep(max(0.0, done_by + SETTLE_S - self.loop.time()))
        before = self._connection().execute("SELECT count(*) FROM events").fetchone()
        await asyncio.sleep(QUIET_S)
        after = self._connection().execute("SELECT count(*) FROM events").fetchone()
        if before != after:
            self.oracle.wrong(12, f"{after[0] - before[0]} events while nothing happened")
        self._check_end()

    async def _faults(self) -> None:
        while self.swarm.kinds:
            await asyncio.sleep(self.chance.expovariate(1 / self.swarm.every_s))
            if self.loop.time() > FAULTS_UNTIL_S:
                return
            self.told.faults += 1
            befall(self, self.chance.choice(self.swarm.kinds))

    async def _look_now_and_then(self) -> None:
        while self.loop.time() < FAULTS_UNTIL_S:
            await asyncio.sleep(60)
            self.oracle.check_logs(self.broker.state / "logs")
            if (self.broker.state / DATABASE_NAME).exists():
                with contextlib.closing(self._connection()) as connection:
                    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'events'").fetchone():
                        self.oracle.check_fold(connection)

    async def _heal(self) -> None:
        """No more faults: what is down comes up, what is cut is mended, what is frozen thaws."""
        self.tell("story", "all is healed")
        self.network.weather = Weather()
        self.crash_at_commit = 0
        self.broker.disk.slow_s = 0.004
        self.broker.disk.limit(full=False)
        for link in self._links():
            link.there = link.back = True
        for process in list(self._frozen):
            self._thaw(process)
        if not self.broker.powered:
            self.broker.power_on()
        self.broker.start()
        for worker in self.workers:
            worker.yard.no_room = 0.0
            worker.machine.full = False
            if not worker.powered:
                worker.power_on()
            worker.start()
        await asyncio.sleep(IN_FLIGHT_S)
        for worker in self.workers:
            await self.clients[0].process.spawn(self.clients[0].resume(worker.name))

    async def _probe(self) -> None:
        """A job that comes to an idle fleet starts within one poll, whatever was lost on the way."""
        asked_at = self.loop.time()
        client = self.clients[0]

        async def ask() -> int | None:
            try:
                return await client.submit(JobSpec(command=Plan(run_s=0.1).command))
            except (Unreachable, Refused) as error:
                self.oracle.wrong(9, f"nothing can be submitted when all is healed: {error}")
                return None

        job = await client.process.spawn(ask())
        limit_s = self.settings.poll_s + PROBE_MARGIN_S
        while job is not None and self.loop.time() < asked_at + limit_s:
            if (job, 1) in self.oracle.executions:
                return
            await asyncio.sleep(0.1)
        if job is not None and "refused" not in self.oracle.assignments.values():
            self.oracle.wrong(9, f"job {job} did not start within {limit_s:g} s on an idle fleet")

    def _left_s(self) -> float:
        """What those that have not ended take if they run one after the other, as on a fleet of one slot they must; and each
        waits for the next poll where wakes are lost."""
        with contextlib.closing(self._connection()) as connection:
            rows = connection.execute(
                "SELECT specs.json FROM jobs JOIN specs ON specs.id = jobs.spec WHERE jobs.ended_at IS NULL"
            ).fetchall()
        specs = [JobSpec.model_validate_json(row[0]) for row in rows]
        plans = [(Plan.of([spec.command or ""]), spec) for spec in specs]
        waits_s = SLOWEST_START_S + (self.settings.poll_s if "no_wakes" in self.swarm.others else 0)
        return sum(
            (plan.run_s + plan.stray_s + waits_s) * (spec.retries + 1) + _back_off_s(spec) for plan, spec in plans
        )

    def _all_over(self) -> bool:
        return all(states[-1][1] in TERMINAL for states in self.oracle.states.values())

    def _check_end(self) -> None:
        with contextlib.closing(self._connection()) as connection:
            self.oracle.check_end(connection, self.broker.state / "logs")
        for worker in self.workers:
            left = sorted(path.name for path in (worker.state / "assignments").iterdir())
            if left:
                self.oracle.wrong(11, f"{worker.name} still keeps {left}")
            for life in worker.yard.lives.values():
                if life.process.alive:
                    self.oracle.wrong(11, f"{life.process} lives on")

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.broker.state / DATABASE_NAME}?mode=ro", uri=True)

    # ---- what faults ask for

    def some_s(self, least: float, most: float) -> float:
        """Short spans as likely as long ones."""
        return least * (most / least) ** self.chance.random()

    def some_worker(self) -> WorkerHost:
        return self.chance.choice(self.workers)

    def some_link(self) -> Link:
        return self.chance.choice(self._links()[: len(self.workers)] if self.chance.random() < 0.8 else self._links())

    def some_machine(self) -> Machine:
        return self.chance.choice([self.broker.machine, *(worker.machine for worker in self.workers)])

    def update_worker(self, worker: WorkerHost, request: WorkerUpdate) -> None:
        client = self.chance.choice(self.clients)
        client.process.spawn(client.update(worker.name, request))

    def some_life(self) -> Life | None:
        lives = [life for worker in self.workers for life in worker.yard.lives.values() if life.process.alive]
        return self.chance.choice(lives) if lives else None

    def freeze(self, processes: list[Process], for_s: float) -> None:
        self.tell("story", f"frozen for {for_s:.3f} s: {processes}")
        for process in processes:
            process.freeze()
            self._frozen[process] = None
        self.later(for_s, lambda: [self._thaw(process) for process in processes])

    def freeze_broker(self, for_s: float) -> None:
        process = self.broker.process
        if process is not None and process not in self._frozen:
            self.broker.freeze()
            self.freeze([process], for_s)

    def _thaw(self, process: Process) -> None:
        if self._frozen.pop(process, self) is None and process.alive:
            self.tell("story", f"thawed: {process}")
            if process is self.broker.process:
                self.broker.thaw()
            process.thaw()

    def disturb(self, machine: Machine) -> None:
        for execution in self.oracle.executions.values():
            if execution.machine is machine and not execution.tree.gone:
                execution.disturbed = True

    def disturb_life(self, life: Life) -> None:
        for execution in self.oracle.executions.values():
            if execution.tree is life.tree:
                execution.disturbed = True

    def later(self, after_s: float, call: Callable[[], object]) -> None:
        self.loop.call_at(self.loop.time() + after_s, call, context=Context())

    def _crash_at(self, where: str) -> bool:
        if self.crash_at_commit and (self.loop.time() < FAULTS_UNTIL_S):
            self.crash_at_commit -= 1
            if self.crash_at_commit == 0:
                self.tell("broker", f"killed {where}")
                self.broker.kill()
                self.later(self.some_s(0.1, 10), self.broker.start)
                return True
        return False

    def _broker_failed(self, error: Exception) -> None:
        self._failed("the broker", error, self.broker.start)

    def _worker_failed(self, worker: WorkerHost, error: Exception) -> None:
        self._failed(worker.name, error, worker.start)

    def _failed(self, who: str, error: Exception, again: Callable[[], None]) -> None:
        """A process of ours came to an end that it did not choose."""
        self.tell(who, f"failed: {error!r}")
        if "StorageFull" not in _why(error) and "disk is full" not in str(error):
            self.oracle.violations.append(f"{self.loop.time():.3f} s: {who} fails: {_why(error)}")
        self.later(2.0, again)

    def _worker_ended(self, worker: WorkerHost, code: int) -> None:
        self.tell(worker.name, f"worker ended with {code}")
        self.later(self.some_s(0.2, 8), worker.start)

    def _links(self) -> list[Link]:
        return [*(worker.link for worker in self.workers), *(client.link for client in self.clients)]

    # ---- the trace

    def tell(self, who: str, what: str) -> None:
        line = f"{self.loop.time():10.3f} {who}: {what.replace(self._directory, '')}"
        self._digest.update(line.encode())
        if self._keep:
            self.told.lines.append(line)

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def _listen_to_logs(self) -> None:
        """What the product logs is part of the trace; what it calls a fault of its own is one."""

        def heard(_: object, level: str, said: dict[str, object]) -> str:
            event = str(said.pop("event"))
            error = said.pop("exc_info", None)
            process = HERE.get(None)
            self.tell(str(process), f"{event} {said}")
            if error and "StorageFull" not in _why(error):  # a full disk is told of, and no fault of ours
                self.oracle.violations.append(f"{self.loop.time():.3f} s: {process} says: {event} {said} {_why(error)}")
            raise structlog.DropEvent

        structlog.configure(
            processors=[heard],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            cache_logger_on_first_use=False,
        )
        logging.basicConfig(level=logging.ERROR, handlers=[_Faults(self)], force=True)


class _Faults(logging.Handler):
    def __init__(self, story: Story) -> None:
        super().__init__()
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        self._story.oracle.violations.append(
            f"{self._story.loop.time():.3f} s: {record.getMessage()} {record.exc_info}"
        )


def _why(error: object) -> str:
    import sys
    import traceback

    found = error if isinstance(error, BaseException) else sys.exc_info()[1]
    return "".join(traceback.format_exception(found))[-3000:] if found is not None else ""
