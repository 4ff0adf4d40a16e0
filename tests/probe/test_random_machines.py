"""Machines and jobs by chance, through the real probe, worker and broker: what is given away is never more than there is,
and what would fit is given away. What fits is reckoned here once more, in whole GiB and by a rule of three lines."""

from __future__ import annotations

import asyncio
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import CancelRequest, Job
from broker.wire.states import JobState
from support.fleet import Fleet, submit
from support.hardware import Hardware
from support.waiting import eventually

SETTINGS = {"heartbeat_s": "0.1", "lease_s": "60", "poll_s": "2", "probe_s": "0.05", "sweep_s": "0.5"}
DRIVER_GB = 1
SPARE_GB = 1  # between what must start and what must not: margins, and sizes told in steps
MARKS = count(1)


@dataclass
class Card:
    uuid: str
    gb: int
    foreign_gb: int = 0


@dataclass
class OneJob:
    """`each_gb` None: cards for itself."""

    id: int
    each_gb: int | None
    cards: list[Card] = field(default_factory=list)
    uses_gb: int = 0


@dataclass
class Machine:
    fleet: Fleet
    hardware: Hardware
    stranger: int
    pids: Path
    cards: list[Card] = field(default_factory=list)
    jobs: list[OneJob] = field(default_factory=list)

    def on(self, card: Card) -> list[OneJob]:
        return [job for job in self.jobs if card in job.cards]

    def free_gb(self, card: Card) -> int:
        """What nobody uses, and what is reserved and not used yet is not free."""
        if any(job.each_gb is None for job in self.on(card)):
            return 0
        ours = sum(max(job.each_gb or 0, job.uses_gb) for job in self.on(card))
        return card.gb - DRIVER_GB - card.foreign_gb - ours

    def fitting(self, each_gb: int | None, spare_gb: int) -> int:
        """How many cards could take it with so much left over."""
        if each_gb is None:
            return sum(not self.on(card) and card.foreign_gb + DRIVER_GB + spare_gb <= 2 for card in self.cards)
        return sum(self.free_gb(card) >= each_gb + spare_gb for card in self.cards)

    async def changed(self, client: BrokerClient) -> None:
        """The driver tells what is so now, and the broker has heard it."""
        lines = [f"gpu {card.uuid} {card.gb * 1024} {DRIVER_GB * 1024} A card" for card in self.cards]
        for number, card in enumerate(self.cards):
            if card.foreign_gb:
                lines.append(f"process {number} {self.stranger} {card.foreign_gb * 1024} both")
            for job in self.on(card):
                if job.uses_gb:
                    pid = (self.pids / str(job.id)).read_text().strip()
                    lines.append(f"process {number} {pid} {job.uses_gb * 1024} compute")
        mark = f"901.{next(MARKS)}"
        self.hardware.is_now("\n".join([*lines, f"driver {mark}"]))

        async def heard() -> bool:
            [worker] = (await client.worker_list()).workers
            return (worker.driver or "").startswith(f"{mark} ")

        await eventually(heard, within_s=40, every_s=0.02)

    async def submitted(self, client: BrokerClient, chance: random.Random) -> None:
        each_gb = chance.choice((None, 2, 4, 7, 11, 20, 40))
        cards = chance.choice((1, 1, 1, 2, 3))
        asked = {"gpus": cards} | ({"vram_gb": each_gb} if each_gb is not None else {})
        job = await submit(
            client,
            f"echo $$ > {self.pids}/new.$JOBD_JOB_ID; mv {self.pids}/new.$JOBD_JOB_ID {self.pids}/$JOBD_JOB_ID; "
            "exec sleep 900",
            **asked,
        )
        found = await decided(client, job)
        what = f"{cards} cards with {each_gb} GB each, of {[(c.gb, self.free_gb(c)) for c in self.cards]}"
        if found.state is JobState.QUEUED:
            assert self.fitting(each_gb, SPARE_GB) < cards, f"{what}: {found.waiting}"
            await client.job_cancel(CancelRequest(job=[job]))
            return
        given = [card for card in self.cards if card.uuid in (found.gpus or ())]
        assert len(given) == cards == len(found.gpus or ())
        for card in given:
            alone = each_gb is None or any(one.each_gb is None for one in self.on(card))
            assert not (alone and self.on(card)), f"{what}: {card} is not its own"
            assert self.free_gb(card) >= (each_gb or 0), f"{what}: {card} has less"
        self.jobs.append(OneJob(job, each_gb, given))
        await eventually((self.pids / str(job)).exists, within_s=30)

    async def cancelled(self, client: BrokerClient, job: OneJob) -> None:
        self.jobs.remove(job)
        await client.job_cancel(CancelRequest(job=[job.id]))

        async def gone() -> bool:
            return (await client.job_get(job.id)).state is JobState.CANCELLED

        await eventually(gone, within_s=30, every_s=0.02)

    async def befalls(self, client: BrokerClient, chance: random.Random) -> None:
        """Someone takes memory, or gives it back; one of ours ends, or comes to use what it asked for, or more."""
        what = chance.choice(("foreign", "foreign", "end", "use", "use"))
        if what == "foreign":
            card = chance.choice(self.cards)
            most = card.gb - DRIVER_GB - sum(job.uses_gb for job in self.on(card))
            card.foreign_gb = chance.choice((0, chance.randint(0, max(0, most))))
        elif what == "end" and self.jobs:
            await self.cancelled(client, chance.choice(self.jobs))
        elif self.jobs:
            job = chance.choice(self.jobs)
            least = min(card.gb - DRIVER_GB - card.foreign_gb - self.used_gb(card, but=job) for card in job.cards)
            asked = job.each_gb if job.each_gb is not None else least
            job.uses_gb = max(0, min(chance.choice((0, asked // 2, asked, asked, asked + 1)), least))
        await self.changed(client)

    def used_gb(self, card: Card, but: OneJob) -> int:
        return sum(job.uses_gb for job in self.on(card) if job is not but)


async def decided(client: BrokerClient, job: int) -> Job:
    """As it is once it runs, or waits for devices."""
    found: list[Job] = []

    async def check() -> bool:
        found.append(await client.job_get(job))
        one = found[-1]
        if one.state is JobState.QUEUED:
            return one.waiting is not None and one.waiting.code.startswith(("gpus", "no_worker", "too_few"))
        return one.state is JobState.RUNNING

    await eventually(check, within_s=40, every_s=0.02)
    return found[-1]


@pytest.fixture(scope="module")
def machine(libraries: dict[str, Path]) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="jobd-", dir="/tmp") as name:
        directory = Path(name)
        hardware = Hardware(libraries["new"], directory / "hardware")
        hardware.is_now("count 0")
        fleet = Fleet(directory, settings=dict(SETTINGS), within={"w1": hardware.words})
        stranger = subprocess.Popen(["sleep", "900"])
        try:
            asyncio.run(started(fleet))
            yield Machine(fleet, hardware, stranger.pid, directory)
        finally:
            stranger.kill()
            stranger.wait()
            fleet.close()


async def started(fleet: Fleet) -> None:
    await fleet.start_broker()
    await fleet.start_worker("w1", slots=64)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.guarantee("G31")
async def test_by_chance_never_more_is_given_away_than_there_is_and_what_fits_starts(
    machine: Machine, seed: int
) -> None:
    chance = random.Random(seed)
    machine.cards = [
        Card(f"GPU-{seed:04}{n:04}-0000-0000-0000-000000000000", chance.choice((8, 12, 24, 48, 80)))
        for n in range(chance.randint(1, 5))
    ]
    async with machine.fleet.client() as client:
        await machine.changed(client)
        for _ in range(12):
            await machine.submitted(client, chance)
            if chance.random() < 0.6:
                await machine.befalls(client, chance)
        for job in list(machine.jobs):
            await machine.cancelled(client, job)
