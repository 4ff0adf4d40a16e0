"""The worker process: it reads what an earlier epoch left, then holds assignments until it is told to end.

When it ends, in whatever way, the shims go on; the next epoch finds them by their files.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import anyio
import anyio.abc
import structlog

from broker.wire.machines import Gpu
from broker.wire.workers import Delivery, Held, Registration, Stop, Verdict
from worker import exchange, parcels, spool
from worker.admission import Ground, has_room
from worker.assignment import Assignment, Desk
from worker.copies import Copies
from worker.exchange import Exchange, MustEnd
from worker.home import Home
from worker.parcels import Parcels
from worker.patience import OutOfPatience, within
from worker.probe.devices import Tree
from worker.probe.trees import TreeUse
from worker.probe.watch import Watch
from worker.process.failpoint import failpoint
from worker.shims import Shim, Shims
from worker.spool import Key, Spool

log = structlog.get_logger("worker.agent")

LAST_WORD_S = 1.0
RENEW_S = 1.0
"""How often shims hear that their worker lives, at least: no delivery waits longer for its first time."""
MOST_NAMED = 20
MEASURE_LIMIT_S = 10.0
EXIT_OK = 0
EXIT_MUST_END = 3


class Broker(exchange.Broker, spool.Broker, parcels.Broker, Protocol):
    """The broker as a worker speaks with it: `broker.client.BrokerClient` is one."""

    async def snapshot_get(self, sha256: str, /) -> bytes: ...


@dataclass(frozen=True)
class Setup:
    """What this worker is and offers."""

    registration: Registration
    ground: Ground
    checkpoints: Path
    linger_s: float
    log_cap: int
    on_term: Literal["leave", "finish", "checkpoint"] = "leave"
    copies_bytes: int = 1 << 30


class Agent:
    """Holds the assignments of one worker. `run()` returns the exit code."""

    def __init__(self, home: Home, shims: Shims, broker: Broker, setup: Setup, watch: Watch | None = None) -> None:
        self._shims = shims
        self._home = home
        self._held: dict[Key, Assignment] = {}
        self._lives: anyio.abc.TaskGroup | None = None
        self._exchange = Exchange(broker, home.worker_id, setup.registration, self)
        self._spool = Spool(broker, home.worker_id, home.epoch, self._exchange.superseded)
        self._exchange.on_reachable = self._spool.reachable
        self._watch = watch
        if watch is not None:
            self._exchange.facts = lambda: watch.facts
            watch.on_change = self._exchange.nudge
            watch.trees = self._trees
            watch.on_look = self._devices_seen
        self._desk = Desk(
            home,
            setup.ground,
            shims,
            self._exchange,
            self._spool,
            Parcels(broker, home.worker_id, home.epoch, self._exchange.superseded),
            setup.checkpoints,
            setup.linger_s,
            setup.log_cap,
            Copies(home.directory / "copies", broker.snapshot_get, setup.copies_bytes, setup.ground.host),
            watch,
        )
        self._short_of_room = False
        self._on_term = setup.on_term
        self._more = anyio.Event()  # something is held that was not
        self._finishing = False  # nothing new is taken, and this process ends with its last assignment
        self._fewer = anyio.Event()

    async def run(self) -> int:
        """Until SIGTERM or SIGINT (with on_term=finish: and the end of the last job), or until the broker will not have this process any more."""
        code = EXIT_OK
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_on_signal, tasks)
                async with anyio.create_task_group() as self._lives:
                    # First the own records: every list from here on is complete.
                    self._recover()
                    failpoint("recovered")
                    tasks.start_soon(self._hear_the_bell)
                    tasks.start_soon(self._renew_forever)
                    if self._watch is not None:
                        tasks.start_soon(self._watch.run)
                        tasks.start_soon(self._measure_forever, self._watch.every_s)
                    await self._exchange.register()
                    failpoint("registered")
                    tasks.start_soon(self._spool.run)
                    tasks.start_soon(self._exchange.report_forever)
                    await self._exchange.poll_forever()
        except* MustEnd as group:
            log.error("this worker ends; its jobs go on", reason=str(_first(group)))
            code = EXIT_MUST_END
        return code

    # What the exchange asks of the holder.

    def held(self) -> list[Held]:
        return [assignment.held() for assignment in self._held.values() if assignment.listed]

    def accepts(self) -> bool:
        """False while this process finishes; and while a job's records could not be kept: better to wait for room than
        to refuse each job."""
        if self._finishing:
            return False
        room = has_room(self._home.directory)
        if self._short_of_room == room:
            self._short_of_room = not room
            (log.info if room else log.error)("room on the disk", enough=room, directory=str(self._home.directory))
        return room

    def ends(self) -> bool:
        """Whether what runs here is to be stopped, and to go on elsewhere."""
        return self._finishing and self._on_term == "checkpoint"

    def heard(self, verdict: Verdict, sent_boot_s: float) -> None:
        assignment = self._held.get((verdict.job, verdict.attempt))
        if assignment is not None:
            assignment.heard(verdict, sent_boot_s)

    def stop(self, stop: Stop) -> None:
        assignment = self._held.get((stop.job, stop.attempt))
        if assignment is not None:
            assignment.stop(stop)

    def deliver(self, delivery: Delivery) -> None:
        """Take it; what is held already is a repeat, and dropped."""
        if (delivery.job, delivery.attempt) not in self._held:
            log.info("delivered", assignment=f"{delivery.job}.{delivery.attempt}")
            self._begin(Assignment.delivered(self._desk, delivery))

    # What goes on beside.

    def _trees(self) -> list[Tree]:
        return [tree for assignment in self._held.values() if (tree := assignment.tree()) is not None]

    def _devices_seen(self, gpus: Sequence[Gpu], longest_gap_s: float) -> None:
        for assignment in self._held.values():
            assignment.devices_seen(gpus, longest_gap_s)

    async def _measure_forever(self, every_s: float) -> None:
        """Look at the trees of all jobs, on a thread: there may be many, of many processes."""
        while True:
            await anyio.sleep(every_s)
            shims = {key: shim for key, one in self._held.items() if (shim := one.measurable) is not None}
            if not shims:
                continue
            try:
                used = await within(MEASURE_LIMIT_S, partial(_used, shims))
            except OutOfPatience:
                continue
            for key, use in used.items():
                if key in self._held:
                    self._held[key].measured(use)

    def _recover(self) -> None:
        found = self._shims.found()
        for shim in found:
            self._begin(Assignment.resumed(self._desk, shim))
        self._home.remove_rooms_except(shim.name for shim in found)
        if found:
            log.info("found what an earlier start left", assignments=[shim.name for shim in found])

    def _begin(self, assignment: Assignment) -> None:
        assert self._lives is not None, "assignments begin while the worker runs"
        self._held[assignment.key] = assignment
        self._more.set()
        self._lives.start_soon(self._live, assignment, name=f"assignment {assignment.job}.{assignment.attempt}")

    async def _live(self, assignment: Assignment) -> None:
        await assignment.run()
        del self._held[assignment.key]
        self._fewer.set()
        if not assignment.accepted:  # else the broker has known since its end that it is gone
            self._exchange.nudge()

    async def _hear_the_bell(self) -> None:
        """The bell only wakes; whoever waits for a file looks at it now and then anyway."""
        async for name in self._shims.bell:
            key = _key(name)
            self._spool.news(key)
            if key in self._held:
                self._held[key].wake()

    async def _renew_forever(self) -> None:
        while True:
            for assignment in self._held.values():
                assignment.renew()
            self._more = anyio.Event()  # whose lease is shorter than this pause must not wait for its end
            with anyio.move_on_after(min([RENEW_S, *(assignment.renew_every_s for assignment in self._held.values())])):
                await self._more.wait()

    async def _end_on_signal(self, finish: anyio.abc.TaskGroup) -> None:
        scope = finish.cancel_scope
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                name = signal.Signals(number).name
                if self._on_term != "leave" and not self._finishing:
                    log.info("nothing new is taken; a second signal ends at once", signal=name)
                    finish.start_soon(self._finish, scope)
                    continue
                log.info("ending on a signal; jobs go on in their shims", signal=name)
                for assignment in self._held.values():
                    assignment.leave()
                failpoint("leaving")
                await self._exchange.last_word(LAST_WORD_S)
                scope.cancel()
                return

    async def _finish(self, scope: anyio.CancelScope) -> None:
        """Take nothing new, and end once the broker has the end and the output of all that is held."""
        self._finishing = True
        self._exchange.poll_again()  # the parked poll says that this worker accepts
        while awaited := [key for key, assignment in self._held.items() if self._is_awaited(assignment)]:
            waiting_for = [f"{job}.{attempt}" for job, attempt in sorted(awaited)]
            log.info("waiting for", count=len(waiting_for), assignments=waiting_for[:MOST_NAMED])
            self._fewer = anyio.Event()
            await self._fewer.wait()
        log.info("ending: all has ended", left_to_their_shims=len(self._held))
        scope.cancel()

    def _is_awaited(self, assignment: Assignment) -> bool:
        """What ends by itself, or will be stopped. One that must never run twice is not stopped for a worker's sake."""
        return self._on_term == "finish" or assignment.final is not None or not assignment.never_again


def _used(shims: Mapping[Key, Shim]) -> dict[Key, TreeUse | None]:
    return {key: shim.used() for key, shim in shims.items()}


def _key(name: str) -> Key:
    """42.1 → (42, 1). What is garbled names nothing."""
    job, _, attempt = name.partition(".")
    return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else (0, 0)


def _first(group: BaseExceptionGroup[MustEnd]) -> BaseException:
    """The innermost cause: task groups nest."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
