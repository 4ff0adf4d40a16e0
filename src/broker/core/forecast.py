"""When a queued job would start: what runs ends, and what stands before it is given its turn, as dispatch would. Pure.

A small simulation of events over shapes and workers. It knows nothing of jobs that are still to come, and of foreign
processes only that they stay. What has no history never ends in it, so a number is given only where none is needed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from broker.core.matching import Machine, Shape, never, reasons
from broker.core.placement import Held, choose

MOST_AHEAD = 500
"""Jobs and shapes that are looked at: the work of one forecast is bounded, whatever the queue."""
MOST_SHAPES = 50
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Running:
    """What holds room on a worker. `left_s` None: nobody knows when it ends."""

    assignment: str
    worker: str
    cpus: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Queued:
    """What stands before it. `run_s` None: there is too little history."""

    shape: Shape
    run_s: float | None


@dataclass(frozen=True, slots=True)
class Start:
    """`start_s`: from now; None: it can't be known, and `basis` says why. No basis: no worker could ever take it."""

    start_s: float | None
    basis: str | None


def able(shape: Shape, machines: Iterable[Machine], barred: frozenset[str] = frozenset()) -> list[Machine]:
    """Workers that take new work and could take such a job, if not now. `barred`: those that said no to its place."""
    return [
        machine
        for machine in machines
        if machine.online and machine.closed is None and machine.name not in barred and not never(shape, machine)
    ]


def forecast(
    shape: Shape, ahead: Sequence[Queued], machines: Sequence[Machine], running: Sequence[Running], ready_s: float = 0.0
) -> Start:
    """When a job of this shape starts on one of `machines`, which are `able`. `ahead`: in the order of their turns.
    `ready_s`: when what it depends on will have ended."""
    if not machines:
        return Start(None, None)
    if len(ahead) > MOST_AHEAD:
        return Start(None, f"more than {MOST_AHEAD} jobs are ahead of it")
    course = _Course(shape, ahead, machines, running, ready_s)
    start_s = course.start_s()
    return Start(None, course.why_unknown()) if start_s is None else Start(_rounded(start_s), course.basis(start_s))


class _Course:
    """How it goes on from now. The job's own place is behind all that are ahead."""

    def __init__(
        self,
        shape: Shape,
        ahead: Sequence[Queued],
        machines: Sequence[Machine],
        running: Sequence[Running],
        ready_s: float,
    ) -> None:
        self._mine, self._ready_s, self._now = shape, ready_s, 0.0
        self._machines = {machine.name: machine for machine in machines}
        self._full: defaultdict[str, set[Shape]] = defaultdict(set)
        self._lines: defaultdict[Shape, deque[tuple[int, float | None]]] = defaultdict(deque)
        for turn, job in enumerate(ahead):
            self._lines[job.shape].append((turn, job.run_s))
        self._last = len(ahead)
        self._ends: list[tuple[float, int, Running]] = []
        self._ids = count()
        self._ran = {one.assignment for one in running}
        self._unknown = [one for one in running if one.left_s is None and one.worker in self._machines]
        self._ended = self._started = self._started_unknown = 0
        for one in running:
            if one.worker in self._machines:
                self._will_end(one)

    def start_s(self) -> float | None:
        """None: everything that is known to end has ended, and it has not started."""
        touched = set(self._machines)
        while True:
            if self._give(touched):
                return self._now
            if self._ends:
                touched = self._pass()
            elif self._now < self._ready_s:
                self._now, touched = self._ready_s, set(self._machines)
            else:
                return None

    def basis(self, start_s: float) -> str:
        if start_s == 0:
            return "a worker has room for it now"
        if not (self._ended or self._started):
            return "what it depends on ends as before"
        that_run = f"{self._ended} that run" if self._ended else ""
        others = f"{self._started} ahead of it" if self._started else ""
        return f"if {' and '.join(filter(None, (that_run, others)))} take as long as such jobs did before"

    def why_unknown(self) -> str:
        if self._unknown:
            named = ", ".join(one.assignment for one in self._unknown[:MOST_NAMED])
            return f"too little is known of how long what is in its way runs: {named}"
        if self._started_unknown:
            return f"too little is known of how long jobs ahead of it run ({self._started_unknown} of {self._started})"
        return "no end of a job makes room for it: others use what it needs"

    def _pass(self) -> set[str]:
        """To the next end, or to when the job is ready: on which workers something has changed."""
        at = self._ends[0][0]
        if self._now < self._ready_s < at:
            self._now = self._ready_s
            return set(self._machines)
        self._now = at
        touched = set()
        while self._ends and self._ends[0][0] <= at:
            one = heappop(self._ends)[2]
            touched.add(one.worker)
            self._ended += one.assignment in self._ran
            self._release(one)
        return touched if self._now != self._ready_s else set(self._machines)

    def _release(self, one: Running) -> None:
        machine = self._machines[one.worker]
        host = machine.host.without({one.assignment}) if machine.host is not None else None
        self._machines[one.worker] = replace(machine, free=machine.free + one.cpus, host=host)
        self._full[one.worker].clear()

    def _give(self, workers: set[str]) -> bool:
        """One job a worker and round, as dispatch does it. True: the job itself was given away."""
        active = sorted(workers)
        while active:
            still = []
            for worker in active:
                taken = self._take(worker)
                if taken == self._last:
                    return True
                if taken is not None:
                    still.append(worker)
            active = still
        return False

    def _take(self, worker: str) -> int | None:
        """The first in the order of turns that this worker has room for now; its turn."""
        machine, full = self._machines[worker], self._full[worker]
        heads = [(line[0][0], shape) for shape, line in self._lines.items() if line and shape not in full]
        heads.sort(key=lambda head: head[0])
        for turn, shape in heads:
            if not _fits(shape, machine):
                full.add(shape)
                continue
            _, run_s = self._lines[shape].popleft()
            self._started += 1
            self._started_unknown += run_s is None
            self._occupy(machine, shape, run_s, f"ahead {turn}")
            return turn
        mine = self._now >= self._ready_s and self._mine not in full and _fits(self._mine, machine)
        return self._last if mine else None

    def _occupy(self, machine: Machine, shape: Shape, run_s: float | None, name: str) -> None:
        host = machine.host
        if host is not None and shape.demand:
            given = choose(shape.demand, host)
            host = host.with_(Held(name, given)) if given is not None else host
        self._machines[machine.name] = replace(machine, free=machine.free - shape.cpus, host=host)
        self._will_end(Running(name, machine.name, shape.cpus, run_s))

    def _will_end(self, one: Running) -> None:
        if one.left_s is not None:
            heappush(self._ends, (self._now + max(0.0, one.left_s), next(self._ids), one))


def _fits(shape: Shape, machine: Machine) -> bool:
    """Cpus first: that needs no words."""
    return shape.cpus <= machine.free and not reasons(shape, machine)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}") if seconds < 1000 else float(round(seconds))
