"""Machines with the real broker and real workers on them: started, stopped, killed, frozen, without power."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from broker.app import open_broker
from broker.client import BrokerClient
from broker.http.auth import Doorman
from broker.service.context import Broker
from broker.wire.settings import BrokerSettings
from broker.wire.workers import PROTOCOL, Registration
from simulation import nature
from simulation.disk import Disk
from simulation.loop import Machine, Process, VirtualLoop
from simulation.network import Link, Network
from simulation.shims import ModelShims, Truth, Yard
from worker.admission import Ground
from worker.agent import Agent, Setup
from worker.home import Home

URL = "http://127.0.0.1:1"
_LOGIN = {"HOME": "/", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}


class BrokerHost:
    """The broker's machine. `door`: its application, while it answers."""

    def __init__(
        self,
        loop: VirtualLoop,
        state: Path,
        settings: BrokerSettings,
        network: Network,
        disk: Disk,
        app: FastAPI,
        chance: random.Random,
    ) -> None:
        self.machine = Machine("broker")
        self.process: Process | None = None
        self.door: Callable[..., Any] | None = None
        self.broker: Broker | None = None
        self.powered = True
        self.state = state
        self.hears = lambda: True
        self.failed: Callable[[Exception], None] = lambda error: None
        self.disk = disk
        self._chance = chance
        self._loop, self._settings, self._network, self._app = loop, settings, network, app
        self._leave = asyncio.Event()
        self._leaving = self._again = False
        self.starts = 0
        self.gaps = 0
        self._listened_s = 0.0
        self._since: float | None = None

    def listened_s(self) -> float:
        """How long it was there and not frozen, in all."""
        return self._listened_s + (self._loop.time() - self._since if self._since is not None else 0.0)

    def freeze(self) -> None:
        self._gap()

    def thaw(self) -> None:
        self._since = self._loop.time()

    def _gap(self) -> None:
        self._listened_s, self._since = self.listened_s(), None
        self.gaps += 1

    def start(self) -> None:
        """Now, or once it has ended, if it was told to: one that is frozen has not heard it yet."""
        if self.process is not None:
            self._again = self._leaving
            return
        if not self.powered:
            return
        self._leaving = self._again = False
        self.starts += 1
        self.process = Process(self._loop, f"broker/{self.starts}", self.machine)
        self._since = self._loop.time()
        self.process.spawn(self._watched(self.process))

    async def _watched(self, process: Process) -> None:
        try:
            await self._live(process)
        except Exception as error:
            self._over(process, silently=False)
            self.failed(error)

    async def _live(self, process: Process) -> None:
        self._leave = asyncio.Event()
        async with open_broker(self._settings, self.state, connect=self.disk.connect) as broker:
            broker.store.listen(lambda notices: broker.wake.heard(notices) if self.hears() else None)
            self._app.state.broker = broker
            self.broker, self.door = broker, Doorman(self._app, broker)
            await self._leave.wait()
            self.door = None
            broker.wake.close()
            await asyncio.sleep(1.0)  # what is in flight is answered
        self._over(process, silently=False)
        if self._again:
            self.start()

    def stop(self) -> None:
        if self.process is not None and self.process.alive:
            self._leaving = True
            self.process.call_soon(self._leave.set)

    def kill(self, *, silently: bool = False) -> None:
        """`silently`: its machine is off, and its clients hear nothing."""
        if self.process is not None:
            self.process.kill()
            self._over(self.process, silently=silently)

    def power_off(self) -> None:
        self.kill(silently=True)
        self.powered = False
        nature.lose_power(self.state / "logs", self._chance)

    def power_on(self) -> None:
        self.machine.booted_at = self._loop.time()
        self.powered = True

    def _over(self, process: Process, *, silently: bool) -> None:
        if self.process is not process:
            return
        self._gap()
        self.process = self.door = self.broker = None
        self.disk.let_go()
        self._network.broker_died(silently=silently)


class WorkerHost:
    """One machine with a worker, its shims and the jobs' processes."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        state: Path,
        network: Network,
        truth: Truth,
        chance: random.Random,
        slots: float,
    ) -> None:
        self.machine = Machine(name)
        self.link = Link(name)
        self.yard = Yard(loop, self.machine, truth, chance)
        self.process: Process | None = None
        self.powered = True
        self.slots = slots
        self.state = state / name
        self.ended: Callable[[WorkerHost, int], None] = lambda host, code: None
        self.failed: Callable[[WorkerHost, Exception], None] = lambda host, error: None
        self._loop, self._network = loop, network
        self._home: Home | None = None
        self._starts = 0

    @property
    def name(self) -> str:
        return self.machine.name

    def start(self) -> None:
        if self.process is not None or not self.powered:
            return
        self._starts += 1
        self.process = Process(self._loop, f"{self.name}/{self._starts}", self.machine)
        self.process.spawn(self._watched(self.process))

    async def _watched(self, process: Process) -> None:
        try:
            await self._live(process)
        except Exception as error:
            self._over(process, silently=False)
            self.failed(self, error)

    async def _live(self, process: Process) -> None:
        home = self._home = Home.take(self.state)
        shims = ModelShims(self.state, self.yard)
        registration = Registration(
            name=self.name,
            epoch=home.epoch,
            machine=f"{self.name}:{self.machine.boots}",
            host=self.name,
            version="0",
            protocol=PROTOCOL,
            slots=self.slots,
            supervision=["simulated"],
        )
        ground = Ground(host=self.name, login=_LOGIN, state=home.directory)
        setup = Setup(registration, ground, home.directory / "checkpoints", linger_s=2.0, log_cap=1 << 20)
        client = BrokerClient(URL, line=self._network.line(self.link))
        code = await Agent(home, shims, client, setup).run()  # type: ignore[arg-type]
        self._over(process, silently=False)
        self.ended(self, code)

    def stop(self) -> None:
        if self.process is not None:
            self.process.signal(signal.SIGTERM)

    def kill(self, *, silently: bool = False) -> None:
        if self.process is not None:
            self.process.kill()
            self._over(self.process, silently=silently)

    def power_off(self) -> None:
        self.kill(silently=True)
        self.powered = False
        self.yard.power_off()

    def power_on(self) -> None:
        self.machine.booted_at = self._loop.time()
        self.machine.boots += 1
        self.powered = True

    def processes(self) -> list[Process]:
        """All of this machine, the jobs' included."""
        found = [self.process] if self.process is not None else []
        for life in self.yard.lives.values():
            found.append(life.process)
            if life.tree is not None:
                found += life.tree.processes()
        return [process for process in found if process.alive]

    def _over(self, process: Process, *, silently: bool) -> None:
        if self.process is not process:
            return
        process.alive = False
        self.process = None
        self._network.drop_calls_of(self.link, silently=silently)
        if self._home is not None:
            self._home.close()
            self._home = None
