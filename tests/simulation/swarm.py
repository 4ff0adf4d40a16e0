"""What goes wrong in one story: each seed draws its own kinds of faults and how often, so that few of them meet often."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.wire.workers import WorkerUpdate
from simulation.network import Weather

if TYPE_CHECKING:
    from simulation.story import Story

KINDS = (
    "worker_killed",
    "worker_told_to_end",
    "worker_machine_off",
    "worker_frozen",
    "machine_suspended",
    "shim_frozen",
    "shim_killed",
    "broker_killed",
    "broker_told_to_end",
    "broker_machine_off",
    "broker_frozen",
    "cut",
    "cut_there",
    "cut_back",
    "wall_jumps",
    "slow_disk",
    "crash_at_commit",
    "broker_disk_full",
    "worker_disk_full",
    "worker_closed",
)
WEATHERS = ("lost", "answer_lost", "doubled", "late", "slow")
OTHERS = ("no_wakes", "no_room")


@dataclass
class Swarm:
    """`every_s`: mean time between two faults."""

    kinds: list[str]
    every_s: float
    weather: Weather
    others: list[str] = field(default_factory=list)

    @classmethod
    def drawn(cls, chance: random.Random) -> Swarm:
        kinds = [kind for kind in KINDS if chance.random() < 0.35]
        weather = Weather()
        for name in WEATHERS:
            if chance.random() < 0.4:
                _worsen(weather, name, chance)
        others = [name for name in OTHERS if chance.random() < 0.15]
        return cls(kinds, chance.choice((6.0, 12.0, 25.0, 50.0)), weather, others)


def _worsen(weather: Weather, name: str, chance: random.Random) -> None:
    match name:
        case "lost":
            weather.lost = chance.choice((0.02, 0.1, 0.3))
        case "answer_lost":
            weather.answer_lost = chance.choice((0.02, 0.1, 0.3))
        case "doubled":
            weather.doubled = chance.choice((0.05, 0.3))
        case "late":
            weather.late, weather.late_s = chance.choice((0.02, 0.2)), chance.choice((2.0, 15.0))
        case "slow":
            weather.delay_s = chance.choice((0.05, 0.4))


def befall(story: Story, kind: str) -> None:
    """One fault of this kind, with what ends it later."""
    _FAULTS[kind](story)


def _worker_killed(story: Story) -> None:
    host = story.some_worker()
    story.tell(host.name, "worker killed")
    host.kill()
    story.later(story.some_s(0.1, 30), host.start)


def _worker_told_to_end(story: Story) -> None:
    host = story.some_worker()
    story.tell(host.name, "worker told to end")
    host.stop()


def _worker_machine_off(story: Story) -> None:
    host = story.some_worker()
    story.tell(host.name, "machine off")
    story.disturb(host.machine)
    host.power_off()

    def back() -> None:
        host.power_on()
        host.start()

    story.later(story.some_s(2, 60), back)


def _worker_frozen(story: Story) -> None:
    host = story.some_worker()
    if host.process is None:
        return
    story.freeze([host.process], story.some_s(0.5, 40))


def _machine_suspended(story: Story) -> None:
    host = story.some_worker()
    story.disturb(host.machine)
    story.freeze(host.processes(), story.some_s(0.5, 60))


def _shim_frozen(story: Story) -> None:
    life = story.some_life()
    if life is not None:
        story.disturb_life(life)
        story.freeze([life.process], story.some_s(0.5, 40))


def _shim_killed(story: Story) -> None:
    life = story.some_life()
    if life is not None:
        story.tell(str(life.process), "killed")
        story.disturb_life(life)
        life.process.kill()


def _broker_killed(story: Story) -> None:
    story.tell("broker", "killed")
    story.broker.kill()
    story.later(story.some_s(0.1, 20), story.broker.start)


def _broker_told_to_end(story: Story) -> None:
    story.tell("broker", "told to end")
    story.broker.stop()
    story.later(story.some_s(3, 20), story.broker.start)


def _broker_machine_off(story: Story) -> None:
    story.tell("broker", "machine off")
    story.broker.power_off()

    def back() -> None:
        story.broker.power_on()
        story.broker.start()

    story.later(story.some_s(1, 40), back)


def _broker_frozen(story: Story) -> None:
    if story.broker.process is not None:
        story.freeze_broker(story.some_s(0.5, 60))


def _cut(story: Story, *, there: bool = False, back: bool = False) -> None:
    link = story.some_link()
    link.there, link.back = there, back
    story.tell(link.name, f"cut: there {there}, back {back}")

    def mend() -> None:
        link.there = link.back = True
        story.tell(link.name, "mended")

    story.later(story.some_s(0.5, 45), mend)


def _wall_jumps(story: Story) -> None:
    machine = story.some_machine()
    machine.wall_s += story.chance.choice((-1, 1)) * story.some_s(1, 7200)
    story.tell(machine.name, f"its wall clock is {machine.wall_s:.3f} s off")


def _slow_disk(story: Story) -> None:
    story.broker.disk.slow_s = story.some_s(0.5, 8)
    story.tell("broker", "slow disk")

    def fast() -> None:
        story.broker.disk.slow_s = 0.004

    story.later(story.some_s(1, 20), fast)


def _crash_at_commit(story: Story) -> None:
    """At one of the next commits: before it, or after it and before anybody hears of it."""
    story.crash_at_commit = story.chance.randint(1, 12)


def _broker_disk_full(story: Story) -> None:
    story.tell("broker", "its disk is full")
    story.broker.disk.limit(full=True)
    story.later(story.some_s(1, 20), lambda: story.broker.disk.limit(full=False))


def _worker_disk_full(story: Story) -> None:
    machine = story.some_worker().machine
    machine.full = True
    story.tell(machine.name, "its disk is full")

    def room() -> None:
        machine.full = False

    story.later(story.some_s(1, 40), room)


def _worker_closed(story: Story) -> None:
    """Somebody lets it take no more work for a while."""
    worker = story.some_worker()
    story.update_worker(worker, WorkerUpdate(drain=True) if story.chance.random() < 0.5 else WorkerUpdate(cordon=True))
    story.later(story.some_s(2, 40), lambda: story.update_worker(worker, WorkerUpdate(resume=True)))


_FAULTS: dict[str, Callable[[Story], None]] = {
    "worker_killed": _worker_killed,
    "worker_told_to_end": _worker_told_to_end,
    "worker_machine_off": _worker_machine_off,
    "worker_frozen": _worker_frozen,
    "machine_suspended": _machine_suspended,
    "shim_frozen": _shim_frozen,
    "shim_killed": _shim_killed,
    "broker_killed": _broker_killed,
    "broker_told_to_end": _broker_told_to_end,
    "broker_machine_off": _broker_machine_off,
    "broker_frozen": _broker_frozen,
    "cut": _cut,
    "cut_there": lambda story: _cut(story, back=True),
    "cut_back": lambda story: _cut(story, there=True),
    "wall_jumps": _wall_jumps,
    "slow_disk": _slow_disk,
    "crash_at_commit": _crash_at_commit,
    "broker_disk_full": _broker_disk_full,
    "worker_disk_full": _worker_disk_full,
    "worker_closed": _worker_closed,
}
