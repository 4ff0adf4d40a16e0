"""How good the estimates are: of run times and of starts, on a fixed made-up history.

    python benchmarks/estimates.py [--jobs 2000] [--seed 1]

Nothing is measured here but the estimates themselves: the same seed gives the same figures on any machine. Jobs of eight
commands come at random to four workers and run as long as their command's law says: some steady, one with other values
each time, some widely spread, one that grows from run to run, one that often crashes early, one that is rare. A tenth of
the jobs has a higher priority, and comes after estimates were made that could not know of it. At each submit both
estimates are asked for, from the ends that were seen by then, and later compared with what became of it.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from broker.core.estimates import FEWEST, MOST_KEPT, Estimate, History, Run, estimate
from broker.core.fingerprint import exact, fingerprint, similar
from broker.core.forecast import Queued, Running, forecast
from broker.core.matching import Machine, Shape
from broker.wire.jobs import JobSpec

WORKERS, SLOTS = 4, 4.0
LOAD = 0.9
WORTH_COUNTING_S = 60.0
"""Of a wait that is shorter a relative error says little."""


@dataclass(frozen=True)
class Command:
    """`text` and `run_s` are given the number of the run. `share`: of all jobs. `cpus`: slots that it takes."""

    name: str
    share: float
    cpus: float
    text: Callable[[random.Random], str]
    run_s: Callable[[random.Random, str, int], float]
    crashes: float = 0.0


def spread(middle_s: float, sigma: float) -> Callable[[random.Random, str, int], float]:
    """Around `middle_s`, by a factor of about e^sigma both ways."""
    return lambda chance, _text, _number: middle_s * math.exp(chance.gauss(0, sigma))


def values(text: str, *choices: object) -> Callable[[random.Random], str]:
    return lambda chance: text.format(chance.choice(choices)) if choices else text


COMMANDS = (
    Command("steady", 0.2, 2, values("train.py --lr {}", 0.1, 0.01, 0.001), spread(1800, 0.05)),
    Command(
        "by its value",
        0.15,
        1,
        values("train.py --model small --epochs {}", 1, 5, 20),
        lambda chance, text, _: 120 * int(text.rpartition(" ")[2]) * math.exp(chance.gauss(0, 0.1)),
    ),
    Command("varies", 0.2, 1, values("pytest tests/{}", "unit", "http"), spread(120, 0.3)),
    Command("varies widely", 0.1, 1, values("simulate --seed {}", *range(1000)), spread(900, 0.8)),
    Command("grows", 0.1, 1, values("index.py"), lambda chance, _, n: 300 * 1.01**n * math.exp(chance.gauss(0, 0.1))),
    Command("crashes often", 0.15, 1, values("fetch.py --day {}", *range(365)), spread(600, 0.1), crashes=0.3),
    Command("large", 0.09, 4, values("./render scene.blend"), spread(1200, 0.2)),
    Command("rare", 0.01, 1, values("report.sh"), spread(600, 0.2)),
)


@dataclass
class Job:
    id: int
    command: Command
    key: str
    priority: int
    at: float
    run_s: float
    crashes: bool
    run: Estimate
    shape: Shape
    start_s: float | None = None
    started_at: float | None = None

    @property
    def turn(self) -> tuple[int, int]:
        return -self.priority, self.id


@dataclass
class Course:
    """What became of the jobs so far."""

    histories: dict[str, History] = field(default_factory=dict)
    queue: list[Job] = field(default_factory=list)
    running: dict[int, tuple[Job, str]] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=lambda: {f"w{n}": SLOTS for n in range(WORKERS)})
    ends: list[tuple[float, int]] = field(default_factory=list)

    def history(self, key: str) -> History:
        return self.histories.get(similar(key), History())

    def submit(self, job: Job) -> None:
        self.queue.append(job)
        self.queue.sort(key=lambda one: one.turn)
        job.start_s = self._forecast(job)
        self._give(job.at)

    def until(self, now: float) -> None:
        """All ends before this instant, and what starts after each."""
        while self.ends and self.ends[0][0] <= now:
            at, id_ = heappop(self.ends)
            job, worker = self.running.pop(id_)
            self.free[worker] += job.command.cpus
            self._note(job)
            self._give(at)

    def _note(self, job: Job) -> None:
        known, run = self.history(job.key), Run(exact(job.key), job.run_s)
        self.histories[similar(job.key)] = (
            History(known.runs, (*known.failed, run)[-MOST_KEPT:])
            if job.crashes
            else History((*known.runs, run)[-MOST_KEPT:], known.failed)
        )

    def _give(self, now: float) -> None:
        """One job a worker and round, the first in turn that fits."""
        given = True
        while given:
            given = False
            for worker in self.free:
                job = next((one for one in self.queue if one.command.cpus <= self.free[worker]), None)
                if job is not None:
                    given = True
                    self.queue.remove(job)
                    self.free[worker] -= job.command.cpus
                    self.running[job.id] = job, worker
                    job.started_at = now
                    heappush(self.ends, (now + job.run_s, job.id))

    def _forecast(self, job: Job) -> float | None:
        machines = [Machine(name, True, SLOTS, free, frozenset()) for name, free in self.free.items()]
        running = [
            Running(str(id_), worker, one.command.cpus, self._left_s(one, job.at))
            for id_, (one, worker) in self.running.items()
        ]
        ahead = [
            Queued(one.shape, estimate(one.key, self.history(one.key)).run_s)
            for one in self.queue
            if one.turn < job.turn
        ]
        return forecast(job.shape, ahead, machines, running).start_s

    def _left_s(self, job: Job, now: float) -> float | None:
        assert job.started_at is not None
        ran_s = now - job.started_at
        run_s = estimate(job.key, self.history(job.key), ran_s).run_s
        return None if run_s is None else max(0.0, run_s - ran_s)


def course(number: int, seed: int) -> list[Job]:
    """All jobs, with what was estimated of each and what became of it."""
    chance, went, jobs = random.Random(seed), Course(), list[Job]()
    counts: defaultdict[str, int] = defaultdict(int)
    work_s = sum(one.share * one.cpus * _middle_s(one) for one in COMMANDS)
    now = 0.0
    for id_ in range(1, number + 1):
        now += chance.expovariate(LOAD * WORKERS * SLOTS / work_s)
        went.until(now)
        command = chance.choices(COMMANDS, [one.share for one in COMMANDS])[0]
        text = command.text(chance)
        spec = JobSpec(command=text, cpus=command.cpus)
        key, crashes = fingerprint(spec), chance.random() < command.crashes
        run_s = chance.uniform(1, 30) if crashes else command.run_s(chance, text, counts[command.name])
        counts[command.name] += 1
        priority = 10 if chance.random() < 0.1 else 0
        known = estimate(key, went.history(key))
        job = Job(id_, command, key, priority, now, run_s, crashes, known, Shape.of(spec))
        went.submit(job)
        jobs.append(job)
    went.until(math.inf)
    return jobs


def _middle_s(command: Command) -> float:
    """About how long such a job runs: for how many come."""
    chance = random.Random(0)
    took = [command.run_s(chance, command.text(chance), 50) for _ in range(200)]
    return statistics.fmean(took) * (1 - command.crashes)


def of_runs(jobs: Sequence[Job]) -> list[str]:
    """A row for each command, and one for all."""
    rows = [_run_row(one.name, [job for job in jobs if job.command is one]) for one in COMMANDS]
    return [*rows, _run_row("all", jobs)]


def _run_row(name: str, jobs: Sequence[Job]) -> str:
    done = [job for job in jobs if not job.crashes]
    told = [job for job in done if job.run.run_s is not None]
    errors = [abs((job.run.run_s or 0) - job.run_s) / job.run_s for job in told]
    within = [job.run_s <= (job.run.upper_s or 0) for job in told]
    return f"| {name} | {len(done)} | {_percent(len(told), len(done))} | {_shown(errors)} | {_percent(sum(within), len(told))} |"


def of_starts(jobs: Sequence[Job]) -> list[str]:
    """Those that had to wait; and those for which `now` was right."""
    told = [job for job in jobs if job.start_s is not None]
    waited = [job for job in told if _waited_s(job) >= WORTH_COUNTING_S]
    errors = [abs((job.start_s or 0) - _waited_s(job)) / _waited_s(job) for job in waited]
    at_once = [job for job in told if job.start_s == 0]
    right = [job for job in at_once if _waited_s(job) == 0]
    return [
        f"| all | {len(jobs)} | {_percent(len(told), len(jobs))} | |",
        f"| waited a minute or more, and had an estimate | {len(waited)} | | {_shown(errors)} |",
        f"| told that they start now | {len(at_once)} | {_percent(len(right), len(at_once))} were right | |",
    ]


def _waited_s(job: Job) -> float:
    assert job.started_at is not None
    return job.started_at - job.at


def _percent(some: int, of: int) -> str:
    return f"{100 * some / of:.0f} %" if of else "-"


def _shown(errors: Sequence[float]) -> str:
    if not errors:
        return "-"
    ninth = sorted(errors)[math.ceil(0.9 * len(errors)) - 1]
    return f"{100 * statistics.median(errors):.0f} % ({100 * ninth:.0f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    jobs = course(asked.jobs, asked.seed)
    print(
        f"| run time of | successes | estimated (after {FEWEST}) | error: median (nine of ten below) | within upper |"
    )
    print("| --- | --- | --- | --- | --- |")
    print("\n".join(of_runs(jobs)))
    print(
        "\n| start of jobs that | number | estimated | error: median (nine of ten below) |\n| --- | --- | --- | --- |"
    )
    print("\n".join(of_starts(jobs)))


if __name__ == "__main__":
    main()
