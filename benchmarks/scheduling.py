"""How queued jobs are given out, against two simpler orders: 8 workers, 2,000 jobs, in virtual time.

    python benchmarks/scheduling.py [--jobs 2000] [--seed 1] [--plot docs/pictures/scheduling.svg]

No broker runs: the decisions are those of the broker's own code (`core/order.py`, `core/reservation.py`, matching and
placement), the rest is a made-up world, the same for a seed on any machine. "first come": the oldest job waits for room,
and all others behind it. "first fit": whatever fits is started, oldest first. "jobd": shares between projects, room kept
for the first that fits nowhere, and others past it that are over in time, by their limit or their history.

One project submits most of its jobs in bursts. Half of all jobs have a limit, two or three times what they take; of the
others a history is known, off by a third. A look is taken at each arrival and each end.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, pairwise
from pathlib import Path

from figures import percentile

from broker.core.matching import Machine, Shape, could, fits
from broker.core.order import Terms, Used, rank
from broker.core.placement import Held, Host, choose
from broker.core.reservation import NEVER, Running, Start, expected_end, may_pass, start_on, where_first
from broker.wire.jobs import JobSpec
from broker.wire.machines import Cpus, Facts, Given, Gpu, GpuHealth, GpuState, Ram

WORKERS = (("eight", 32, 8), ("four-a", 16, 4), ("four-b", 16, 4), ("two-a", 8, 2), ("two-b", 8, 2), ("one", 8, 1))
WITHOUT = (("plain-a", 16, 0), ("plain-b", 16, 0))
CARD_MB = 24 * 1024
LOAD = 0.9
TERMS = Terms(half_life_s=86_400, gpu_weight=16)
BURST = 60
LARGE = 4


@dataclass(frozen=True)
class Kind:
    """`share`: of all jobs. `middle_s`: median of a log-normal run time."""

    name: str
    share: float
    middle_s: float
    asks: dict[str, object]


KINDS = (
    Kind("one GPU", 0.55, 1200, {"gpus": 1, "cpus": 2}),
    Kind("part of a GPU", 0.1, 1800, {"vram_gb": 8, "cpus": 1}),
    Kind("two GPUs", 0.12, 2400, {"gpus": 2, "cpus": 4}),
    Kind("four GPUs", 0.06, 5400, {"gpus": 4, "cpus": 8}),
    Kind("eight GPUs", 0.01, 3600, {"gpus": 8, "cpus": 16}),
    Kind("no GPU", 0.16, 900, {"cpus": 4}),
)


@dataclass
class Job:
    id: int
    project: str
    kind: Kind
    wants: Shape
    arrives: float
    run_s: float
    limit_s: float | None
    estimate_s: float | None
    started: float = math.nan
    given: Given | None = None
    worker: str = ""

    @property
    def gpus(self) -> int:
        return self.wants.demand.gpus

    @property
    def waited_s(self) -> float:
        return self.started - self.arrives

    def ends_at(self, from_s: float) -> float:
        """As far as anybody knows, in milliseconds."""
        return expected_end(int(from_s * 1000), limit_s=self.limit_s, grace_s=0, estimate_s=self.estimate_s)


def made_up(number: int, chance: random.Random) -> list[Job]:
    """Jobs in the order in which they come."""
    plan = []
    for n in range(number):
        kind = chance.choices(KINDS, [kind.share for kind in KINDS])[0]
        run_s = kind.middle_s * math.exp(chance.gauss(0, 0.9))
        plan.append((kind, run_s, "burst" if n % 3 == 0 else chance.choice(("thesis", "vision", "lab"))))
    gpu_s = sum(Shape.of(_spec(kind, "x")).demand.gpus * run_s for kind, run_s, _ in plan)
    span_s = gpu_s / (sum(gpus for _, _, gpus in WORKERS) * LOAD)
    jobs = []
    burst_at = 0.0
    for n, (kind, run_s, project) in enumerate(plan):
        if project == "burst" and n // 3 % BURST == 0:
            burst_at = chance.uniform(0, span_s)
        arrives = burst_at if project == "burst" else chance.uniform(0, span_s)
        limited = chance.random() < 0.5
        limit_s = run_s * chance.uniform(2, 3) if limited else None
        estimate_s = None if limited else run_s * math.exp(chance.gauss(0.1, 0.3))
        jobs.append(Job(0, project, kind, Shape.of(_spec(kind, project)), arrives, run_s, limit_s, estimate_s))
    jobs.sort(key=lambda job: job.arrives)
    for n, job in enumerate(jobs):
        job.id = n + 1
    return jobs


def _spec(kind: Kind, project: str) -> JobSpec:
    return JobSpec.model_validate({"command": kind.name, "project": project, **kind.asks})


def machines() -> dict[str, Machine]:
    found = {}
    for name, slots, gpus in (*WORKERS, *WITHOUT):
        cards = [
            Gpu(
                uuid=f"{name}-{index}",
                index=index,
                total_mb=CARD_MB,
                free_mb=CARD_MB - 400,
                driver_mb=400,
                health=GpuHealth.OK,
                processes=[],
            )
            for index in range(gpus)
        ]
        cpus, ram = Cpus(logical=slots, usable=slots), Ram(total=256, available=256)
        facts = Facts(number=1, cpus=cpus, ram_gb=ram, gpu_state=GpuState.OK, gpus=cards)
        found[name] = Machine(name, True, slots, slots, frozenset(), gpus=gpus, host=Host(name, facts))
    return found


@dataclass
class World:
    """What runs where, at `now`."""

    now: float = 0.0
    machines: dict[str, Machine] = field(default_factory=machines)
    running: dict[int, Job] = field(default_factory=dict)
    used: dict[str, Used] = field(default_factory=lambda: defaultdict(Used))
    in_use: list[tuple[float, int]] = field(default_factory=list)
    kept: dict[int, tuple[str, Start]] = field(default_factory=dict)

    def start(self, job: Job, worker: str) -> None:
        machine = self.machines[worker]
        assert machine.host is not None, "each was made with one"
        job.given = choose(job.wants.demand, machine.host) if job.wants.demand else None
        job.started, job.worker = self.now, worker
        host = machine.host.with_(Held(str(job.id), job.given)) if job.given is not None else machine.host
        self.machines[worker] = replace(machine, free=machine.free - job.wants.cpus, host=host)
        self.running[job.id] = job
        self.kept.pop(job.id, None)
        self._uses(job, 1)

    def end(self, job: Job) -> None:
        machine = self.machines[job.worker]
        assert machine.host is not None, "each was made with one"
        free = machine.free + job.wants.cpus
        self.machines[job.worker] = replace(machine, free=free, host=machine.host.without({str(job.id)}))
        del self.running[job.id]
        self._uses(job, -1)

    def free_workers(self, job: Job) -> list[str]:
        """Those that have room, the fullest first."""
        found = [machine for machine in self.machines.values() if fits(job.wants, machine)]
        return [machine.name for machine in sorted(found, key=lambda machine: (machine.gpus, machine.free))]

    def runs_on(self, worker: str) -> list[Running]:
        now = self.now * 1000
        return [
            Running(str(job.id), job.wants.cpus, max(now, job.ends_at(job.started)), job.given)
            for job in self.running.values()
            if job.worker == worker
        ]

    def share(self, project: str) -> float:
        return TERMS.with_what_runs(self.used[project], int(self.now * 1000))

    def _uses(self, job: Job, by: int) -> None:
        used, now = self.used[job.project], int(self.now * 1000)
        held_ms = now - used.since
        self.used[job.project] = replace(
            used,
            millicpus=used.millicpus + by * int(job.wants.cpus * 1000),
            gpus=used.gpus + by * job.gpus,
            since=now,
            cpu_us=used.cpu_us + used.millicpus * held_ms,
            gpu_ms=used.gpu_ms + used.gpus * held_ms,
        )
        self.in_use.append((self.now, sum(one.gpus for one in self.running.values() if not one.wants.demand.vram_mb)))


Policy = Callable[[World, list[Job]], "tuple[Job, str] | None"]


def first_come(world: World, queue: list[Job]) -> tuple[Job, str] | None:
    """The oldest, or nobody."""
    workers = world.free_workers(queue[0]) if queue else []
    return (queue[0], workers[0]) if workers else None


def first_fit(world: World, queue: list[Job]) -> tuple[Job, str] | None:
    """The oldest that fits."""
    for job in _heads(queue):
        if workers := world.free_workers(job):
            return job, workers[0]
    return None


def jobd(world: World, queue: list[Job]) -> tuple[Job, str] | None:
    """By rank; whoever does not come before one for which room is kept passes it only where that holds it up by nothing."""
    kept_for: dict[str, Job] = {}
    heads = sorted(_heads(queue), key=lambda job: rank(0, world.share(job.project), job.id))
    rooms = {job.id: world.free_workers(job) for job in heads}
    for job in heads:  # what was kept stays so, whoever has used least meanwhile
        if job.id in world.kept and not rooms[job.id] and (worker := _kept(world, job, kept_for)) is not None:
            kept_for[worker] = job
    for job in heads:
        workers = rooms[job.id]
        for worker in workers:
            if worker not in kept_for or _may_pass(world, kept_for[worker], job, worker):
                return job, worker
        if not workers and job not in kept_for.values():
            worker = _kept(world, job, kept_for)
            if worker is not None:
                kept_for[worker] = job
    return None


def _kept(world: World, job: Job, taken: dict[str, Job]) -> str | None:
    """The worker where it starts first, if it is not much sooner on another one than on that of before."""
    now = int(world.now * 1000)
    starts = {}
    for machine in world.machines.values():
        if machine.name not in taken and could(job.wants, machine):
            start = start_on(job.wants, machine, world.runs_on(machine.name), now)
            if start is not None:
                starts[machine.name] = start
    if not starts:
        return None
    before = world.kept.get(job.id)
    best = where_first(starts, before[0] if before is not None else None, now)
    world.kept[job.id] = best, starts[best]
    return best


def _may_pass(world: World, first: Job, job: Job, worker: str) -> bool:
    machine, running = world.machines[worker], world.runs_on(worker)
    start = start_on(first.wants, machine, running, int(world.now * 1000))
    if start is None:
        return True
    what = choose(job.wants.demand, machine.host) if job.wants.demand and machine.host is not None else None
    # A bound from history must hold for nine of ten: what is known of made-up jobs is off by a third.
    ends_at = job.ends_at(world.now) if job.limit_s is not None else world.now * 1000 + (job.estimate_s or NEVER) * 1500
    return may_pass(first.wants, start, machine, running, Running("", job.wants.cpus, ends_at, what))


def _heads(queue: Sequence[Job]) -> list[Job]:
    """The oldest of each kind of requirements and project, oldest first: the others can do no better."""
    heads: dict[Shape, Job] = {}
    for job in queue:
        heads.setdefault(job.wants, job)
    return list(heads.values())


def simulate(jobs: Sequence[Job], policy: Policy) -> World:
    """From the first arrival to the last end."""
    world, queue = World(), list[Job]()
    numbers = count()
    events: list[tuple[float, int, str, Job]] = []
    for job in jobs:
        heappush(events, (job.arrives, next(numbers), "arrives", job))
    while events:
        at, _, what, job = heappop(events)
        world.now = at
        if what == "arrives":
            queue.append(job)
        else:
            world.end(job)
        while (found := policy(world, queue)) is not None:
            starts, worker = found
            queue.remove(starts)
            world.start(starts, worker)
            heappush(events, (at + starts.run_s, next(numbers), "ends", starts))
    assert not queue, "each job fits some worker"
    return world


@dataclass(frozen=True)
class Outcome:
    name: str
    jobs: list[Job]
    world: World

    def waits_h(self, of: Callable[[Job], bool] = lambda _: True) -> list[float]:
        return [job.waited_s / 3600 for job in self.jobs if of(job)]

    def utilisation(self, until_s: float) -> float:
        """Of devices that jobs have for themselves, while jobs still come."""
        used = 0.0
        for (at, busy), (then, _) in pairwise(self.world.in_use):
            used += busy * max(0.0, min(then, until_s) - min(at, until_s))
        return used / (until_s * sum(gpus for _, _, gpus in WORKERS))


def told(outcomes: Sequence[Outcome], until_s: float) -> str:
    rows = ["| | " + " | ".join(outcome.name for outcome in outcomes) + " |", "| --- |" + " --- |" * len(outcomes)]

    def row(what: str, value: Callable[[Outcome], str]) -> None:
        rows.append(f"| {what} | " + " | ".join(value(outcome) for outcome in outcomes) + " |")

    def waits(of: Callable[[Job], bool]) -> Callable[[Outcome], str]:
        def said(outcome: Outcome) -> str:
            found = outcome.waits_h(of)
            return f"{statistics.median(found):.2f}; {percentile(found, 0.95):.1f}; {max(found):.1f}"

        return said

    row("devices in use while jobs come", lambda outcome: f"{outcome.utilisation(until_s):.0%}")
    row("waits, all jobs, hours: median; 95 %; longest", waits(lambda _: True))
    row(f"· of jobs for {LARGE} or 8 GPUs", waits(lambda job: job.gpus >= LARGE))
    row("· of jobs for one GPU", waits(lambda job: job.gpus == 1))
    row("· of the project that comes in bursts", waits(lambda job: job.project == "burst"))
    row("· of the three others", waits(lambda job: job.project != "burst"))
    return "\n".join(rows)


COLOURS = ("#9aa5b1", "#d08770", "#3b7dd8")


def plot(outcomes: Sequence[Outcome], until_s: float) -> str:
    """Left: how long the unluckiest twentieth waits. Right: devices in use over time."""
    groups = (
        ("all jobs", lambda _: True),
        ("4 or 8 GPUs", lambda job: job.gpus >= LARGE),
        ("one GPU", lambda job: job.gpus == 1),
        ("burst project", lambda job: job.project == "burst"),
        ("other projects", lambda job: job.project != "burst"),
    )
    values = [[percentile(outcome.waits_h(of), 0.95) for outcome in outcomes] for _, of in groups]
    most = max(max(row) for row in values)
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 330" font-family="sans-serif" font-size="12">',
        '<rect width="900" height="330" fill="white"/>',
        '<text x="20" y="22" font-size="14">Waits, 95th percentile, hours (logarithmic)</text>',
        '<text x="500" y="22" font-size="14">Devices in use, of 21</text>',
    ]
    for n, outcome in enumerate(outcomes):
        out.append(f'<rect x="{20 + 110 * n}" y="32" width="10" height="10" fill="{COLOURS[n]}"/>')
        out.append(f'<text x="{34 + 110 * n}" y="41">{outcome.name}</text>')
    least = 0.05
    for g, ((name, _), row) in enumerate(zip(groups, values, strict=True)):
        for n, value in enumerate(row):
            height = 200 * math.log(max(value, least * 1.02) / least) / math.log(most / least)
            x = 25 + 90 * g + 24 * n
            out.append(f'<rect x="{x}" y="{280 - height:.1f}" width="22" height="{height:.1f}" fill="{COLOURS[n]}"/>')
            out.append(
                f'<text x="{x + 11}" y="{275 - height:.1f}" text-anchor="middle" font-size="10">{value:.1f}</text>'
            )
        out.append(f'<text x="{25 + 90 * g + 35}" y="298" text-anchor="middle" font-size="11">{name}</text>')
    for level in (0, 7, 14, 21):
        y = 280 - level * 220 / 21
        out.append(f'<line x1="520" x2="890" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="514" y="{y + 4:.1f}" text-anchor="end" font-size="10">{level}</text>')
    last_s = max(outcome.world.in_use[-1][0] for outcome in outcomes)
    for n, outcome in enumerate(outcomes):
        points = " ".join(
            f"{520 + 370 * at / last_s:.1f},{280 - busy * 220 / 21:.1f}" for at, busy in _by_hour(outcome, last_s)
        )
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[n]}" stroke-width="1.5"/>')
    x = 520 + 370 * until_s / last_s
    out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="55" y2="280" stroke="#888" stroke-dasharray="3"/>')
    out.append(f'<text x="{x - 4:.1f}" y="52" text-anchor="end" font-size="10">the last job comes</text>')
    out.append(f'<text x="890" y="298" text-anchor="end" font-size="11">{last_s / 3600:.0f} hours</text></svg>')
    return "\n".join(out) + "\n"


def _by_hour(outcome: Outcome, last_s: float, step_s: float = 7200) -> list[tuple[float, float]]:
    """Means, so that a line can be read."""
    found, at = [], 0.0
    changes = [*outcome.world.in_use, (last_s, 0)]
    while at < last_s:
        used = sum(
            busy * max(0.0, min(then, at + step_s) - max(since, at)) for (since, busy), (then, _) in pairwise(changes)
        )
        found.append((min(last_s, at + step_s / 2), used / step_s))
        at += step_s
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="where to write a picture")
    arguments = parser.parse_args()
    outcomes = []
    for name, policy in (("first come", first_come), ("first fit", first_fit), ("jobd", jobd)):
        jobs = made_up(arguments.jobs, random.Random(arguments.seed))
        outcomes.append(Outcome(name, jobs, simulate(jobs, policy)))
    until_s = max(job.arrives for job in outcomes[0].jobs)
    print(told(outcomes, until_s))
    if arguments.plot is not None:
        arguments.plot.write_text(plot(outcomes, until_s))


if __name__ == "__main__":
    main()
