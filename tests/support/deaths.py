"""A process of a fleet dies at a chosen point of its code, and whoever looks after it starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.fleet import EndedEarly, Fleet
from support.ledger import AGAIN_S, Asked, Ledger, jobs_processes, kept_assignments
from support.waiting import eventually

KILLED = -signal.SIGKILL
TRIES = 4


@dataclass
class Keeper:
    """Starts again what has ended, as a service manager would. `ends`: process name and exit code, in order."""

    fleet: Fleet
    kept: set[str] = field(default_factory=set)
    ends: list[tuple[str, int]] = field(default_factory=list)
    options: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each worker: what `start_worker` is told."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def start(self, name: str) -> None:
        """Start it, again if it ends before it can be of use. Four ends in a row are a fault."""
        for tries_left in reversed(range(TRIES)):
            try:
                if name == "broker":
                    await self.fleet.start_broker()
                else:
                    await self.fleet.start_worker(name, **self.options.get(name, {}))
                self.kept.add(name)
                return
            except EndedEarly:
                self._note(name)
                if not tries_left:
                    raise

    async def hand_over(self) -> None:
        """A successor asks the broker to end. If the successor dies over it, the service manager starts one."""
        assert self.fleet.broker is not None
        older = self.fleet.broker
        self.kept.discard("broker")
        try:
            await self.fleet.succeed_broker()
        except EndedEarly:
            self._note("broker")
            await self.start("broker")
        self.kept.add("broker")
        self.ends.append(("broker", await asyncio.to_thread(older.wait, 20)))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            for name in list(self.kept):
                if self._note(name):
                    await self.start(name)

    def _note(self, name: str) -> bool:
        process = self.fleet.broker if name == "broker" else self.fleet.workers[name]
        assert process is not None
        if process.poll() is None:
            return False
        self.ends.append((name, process.returncode))
        return True

    @property
    def killed(self) -> list[str]:
        return [name for name, code in self.ends if code == KILLED]


async def everything_holds(
    fleet: Fleet, ledger: Ledger, hurt: frozenset[int] = frozenset(), *, once: bool = False, workers: bool = True
) -> None:
    """When all has ended and everybody is well again: nothing is lost, doubled, untrue or left over.

    `hurt`: jobs whose shim or machine was killed. `once`: nothing was given up for lost, so all ran once at most.
    `workers`: see `Ledger.differences`.
    """
    async with fleet.client() as client:
        await ledger.settled(client)
        await eventually(lambda: not jobs_processes(fleet), within_s=20)
        await eventually(lambda: not kept_assignments(fleet), within_s=20)
        different = await ledger.differences(client, fleet.state / "jobd.sqlite3", hurt, workers=workers)
    if once:
        different += [f"executed as {names}" for job in ledger.asked if len(names := ledger.started(job)) > 1]
    assert not different, "\n".join(different)


async def a_bit_of_everything(ledger: Ledger, client) -> tuple[Asked, Asked]:
    """Jobs of all policies, ends and lengths; one that talks for a while, and one to be cancelled."""
    first = await ledger.submit(client)
    await ledger.submit(client, lines=3, exit_code=7, depends_on=[first.id])
    talker = await ledger.submit(client, lines=30, pause_s=0.03, exit_code=3)
    endless = await ledger.submit(client, lines=1000, pause_s=0.3, checkpoint_grace_s=0.2)
    await ledger.submit(client, lines=10, pause_s=0.03, on_worker_lost="orphan")
    await ledger.submit(client, lines=10, pause_s=0.03, on_worker_lost="requeue_exclusive")
    return talker, endless
