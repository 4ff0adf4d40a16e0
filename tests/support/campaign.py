"""Jobs of all kinds on a fleet of real processes that are killed, frozen, cut off and lied to, by a seeded choice.

The seed fixes which faults come, with what lengths and pauses; the machine decides what they meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from broker.client import BrokerClient
from support import torn_logs
from support.deaths import Keeper, everything_holds
from support.fleet import Fleet
from support.ledger import Ledger, kept_assignments
from support.lossy_proxy import LossyProxy
from support.waiting import eventually
from worker.process import records

SETTINGS = {
    "lease_s": "3",
    "sweep_s": "0.5",
    "heartbeat_s": "0.4",
    "poll_s": "2",
    "exclusive_lease_s": "4",
    "exclusive_margin_s": "1",
    "start_limit_s": "60",
    "max_losses": "1000",
}
WORKERS = ("w1", "w2", "w3")
LEASE_S = 3.0
HEALING_S = 120.0


@dataclass
class Campaign:
    """`run()` it; afterwards everything must hold. `say` hears what happens."""

    fleet: Fleet
    seed: int
    jobs: int
    faults: int
    say: Callable[[str], None] = lambda _: None
    done: Counter[str] = field(default_factory=Counter)
    hurt: set[int] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"faults {self.seed}")
        self.ledger = Ledger(self.fleet.directory / "record")
        self.keeper = Keeper(self.fleet)
        self.proxies: dict[str, LossyProxy] = {}
        self._over = False
        self._busy: set[str] = set()
        self._healing: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self.fleet.settings |= SETTINGS
        self.fleet.patience_s = HEALING_S  # it starts while others are cut off and killed
        await self.keeper.start("broker")
        async with AsyncExitStack() as stack:
            for name in WORKERS:
                socket = self.fleet.directory / f"{name}.sock"
                proxy = LossyProxy(socket, self.fleet.state / "broker.sock", random.Random(f"{name} {self.seed}"))
                self.proxies[name] = await stack.enter_async_context(proxy)
                self.keeper.options[name] = {"url": f"unix://{socket}"}
                await self.keeper.start(name)
            client = await stack.enter_async_context(self.fleet.client())
            await stack.enter_async_context(self.keeper.watching())
            submitting = asyncio.create_task(self._submit(client))
            await self._hurt()
            await submitting
            await self._healed()
            self.note("healed; waiting for the end of all")
            await self.ledger.all_ended(client, within_s=HEALING_S)
            await eventually(lambda: not kept_assignments(self.fleet), within_s=HEALING_S)
            await self.ledger.all_ended(client, within_s=HEALING_S)  # none came back to life meanwhile
            await everything_holds(self.fleet, self.ledger, frozenset(self.hurt))

    def note(self, text: str) -> None:
        self.say(f"{time.monotonic() - self._began:7.1f} s  {text}")

    # The work.

    async def _submit(self, client: BrokerClient) -> None:
        """Spread over the time that the faults take; one in eight is cancelled, some wait for others."""
        chance = random.Random(f"jobs {self.seed}")
        for number in range(self.jobs):
            while not self._over and len(self.ledger.asked) > self.jobs * sum(self.done.values()) / self.faults:
                await asyncio.sleep(0.05)
            fields: dict[str, object] = {}
            if number % 5 == 4:
                fields = {"depends_on": [self.ledger.asked[-1].id], "dependency_policy": "any_exit"}
            asked = await self.ledger.submit(
                client,
                lines=chance.choice([2, 20, 50, 80]),
                pause_s=chance.choice([0, 0.05, 0.1]),
                exit_code=chance.choice([0, 0, 3, 7]),
                on_worker_lost=chance.choice(["requeue", "requeue", "requeue_exclusive", "orphan"]),
                checkpoint_grace_s=chance.choice([0.2, 1]),
                **fields,
            )
            if number % 8 == 7:
                await self.ledger.cancel(client, asked)

    # The faults.

    async def _hurt(self) -> None:
        kinds = list(FAULTS)
        while sum(self.done.values()) < self.faults:
            kind = self.chance.choices(kinds, [FAULTS[kind] for kind in kinds])[0]
            name, length_s, pause_s = (
                self.chance.choice(WORKERS),
                self.chance.choice([0.2, 0.5, 1.0, 1.5 * LEASE_S, 2 * LEASE_S]),
                self.chance.uniform(0.05, 0.7),
            )
            if await kind(self, name, length_s):
                self.done[kind.__name__] += 1
                self.note(f"fault {sum(self.done.values())}: {kind.__name__} {name} {length_s:g} s")
            await asyncio.sleep(pause_s)
        self._over = True

    def _later(self, name: str, length_s: float, heal: Callable[[], Awaitable[None]]) -> None:
        """Heal it after that time, and leave `name` alone until then."""
        self._busy.add(name)

        async def wait() -> None:
            try:
                await asyncio.sleep(length_s)
                await heal()
            finally:
                self._busy.discard(name)

        task = asyncio.create_task(wait())
        self._healing.append(task)

    async def _healed(self) -> None:
        await asyncio.gather(*self._healing)

    def _restart_later(self, name: str, length_s: float) -> None:
        async def restart() -> None:
            await self.keeper.start(name)

        self.keeper.kept.discard(name)
        self._later(name, length_s, restart)

    async def broker_killed(self, _: str, length_s: float) -> bool:
        if "broker" in self._busy:
            return False
        self.keeper.kept.discard("broker")
        self.fleet.kill_broker()
        self._restart_later("broker", length_s)
        return True

    async def broker_killed_and_logs_torn(self, name: str, length_s: float) -> bool:
        if not await self.broker_killed(name, max(length_s, 1.0)):
            return False
        torn = torn_logs.tear(self.fleet.state, self.chance)
        self.note(f"{torn} log files cut short")
        return True

    async def broker_frozen(self, _: str, length_s: float) -> bool:
        return self._frozen("broker", self.fleet.broker.pid if self.fleet.broker else 0, 1.5 * length_s)

    async def broker_restarted(self, _: str, length_s: float) -> bool:
        if "broker" in self._busy or self.fleet.broker is None:
            return False
        self.keeper.kept.discard("broker")
        self.fleet.broker.terminate()
        await asyncio.to_thread(self.fleet.broker.wait, 30)
        self._restart_later("broker", length_s)
        return True

    async def worker_killed(self, name: str, length_s: float) -> bool:
        if name in self._busy:
            return False
        self.keeper.kept.discard(name)
        self.fleet.kill_worker(name)
        self._restart_later(name, length_s)
        return True

    async def worker_restarted(self, name: str, length_s: float) -> bool:
        if name in self._busy:
            return False
        self.keeper.kept.discard(name)
        self.fleet.workers[name].terminate()
        await asyncio.to_thread(self.fleet.workers[name].wait, 30)
        self._restart_later(name, length_s)
        return True

    async def worker_frozen(self, name: str, length_s: float) -> bool:
        """The worker process alone: its shims see to their own leases."""
        return self._frozen(name, self.fleet.workers[name].pid, 1.5 * length_s)

    async def machine_killed(self, name: str, length_s: float) -> bool:
        if name in self._busy:
            return False
        self.keeper.kept.discard(name)
        self.hurt |= {job for job, _ in self._shims(name)}
        self.fleet.kill_machine(name)
        self.hurt |= {job for job, _ in self._shims(name)}  # what had begun meanwhile
        self._restart_later(name, length_s)
        return True

    async def shim_killed(self, name: str, _: float) -> bool:
        shims = self._shims(name)
        if not shims:
            return False
        job, pid = self.chance.choice(shims)
        self.hurt.add(job)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    async def messages_lost(self, name: str, length_s: float) -> bool:
        proxy = self.proxies[name]
        proxy.requests_lost, proxy.answers_lost = self.chance.choice([(0.3, 0), (0, 0.3), (0.2, 0.2)])
        self._later(f"{name}'s line", length_s, self._honest(proxy))
        return True

    async def answers_late(self, name: str, length_s: float) -> bool:
        proxy = self.proxies[name]
        proxy.answers_late_s = length_s
        self._later(f"{name}'s line", 2 * length_s, self._honest(proxy))
        return True

    async def cut_off(self, name: str, length_s: float) -> bool:
        proxy = self.proxies[name]
        proxy.cut_off()
        self._later(f"{name}'s line", 1.5 * length_s, self._honest(proxy))
        return True

    def _honest(self, proxy: LossyProxy) -> Callable[[], Awaitable[None]]:
        async def heal() -> None:
            proxy.be_honest()

        return heal

    def _frozen(self, name: str, pid: int, length_s: float) -> bool:
        if name in self._busy:
            return False

        async def thaw() -> None:
            os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        self._later(name, length_s, thaw)
        return True

    def _shims(self, name: str) -> list[tuple[int, int]]:
        """Job and process id of each living shim of this worker whose job has started."""
        found = []
        for directory in sorted(self.fleet.directory.glob(f"{name}/workers/*/assignments/[1-9]*")):
            with contextlib.suppress(OSError, ValueError):
                record = records.read_start(str(directory))
                if record is not None and not (directory / records.EXIT).exists():
                    found.append((int(directory.name.partition(".")[0]), record["shim"]["pid"]))
        return found


Fault = Callable[[Campaign, str, float], Awaitable[bool]]
FAULTS: dict[Fault, float] = {
    Campaign.broker_killed: 2,
    Campaign.broker_killed_and_logs_torn: 2,
    Campaign.broker_frozen: 2,
    Campaign.broker_restarted: 1,
    Campaign.worker_killed: 4,
    Campaign.worker_restarted: 2,
    Campaign.worker_frozen: 3,
    Campaign.machine_killed: 3,
    Campaign.shim_killed: 4,
    Campaign.messages_lost: 2,
    Campaign.answers_late: 1,
    Campaign.cut_off: 2,
}
"""Each kind, and how often it comes."""
