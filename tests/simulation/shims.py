"""A model of shims: the same files, commands and words as the real ones, on virtual time and without a process.

`contract` runs the same checks on both. Reading what a shim's files say is the worker's own code.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel

from simulation.loop import HERE, Machine, Process, VirtualLoop
from simulation.programs import Plan, Tree
from worker.handle import Shim, ShimSpec
from worker.process import records
from worker.process.clock import boot_s
from worker.process.limits import Limits
from worker.process.records import ExitRecord, ReachedRecord, SpecRecord
from worker.shims import LaunchError

PREPARED_LIMIT_S = 600.0
STRAY_GRACE_S = 1.0
UNRELEASED = ("prepared", "ready")


class Truth(Protocol):
    """Who writes down what really happened."""

    def executed(self, job: int, attempt: int, machine: Machine, tree: Tree, spec: ShimSpec) -> None: ...


@dataclass(frozen=True)
class Stop:
    outcome: str
    id: str | None
    limit: ReachedRecord | None = None


class Life:
    """One shim process. It is told by `hear`, and tells by its files and the bell."""

    def __init__(self, yard: Yard, spec: ShimSpec, directory: Path) -> None:
        self.process = Process(yard.loop, f"shim {spec.name}", yard.machine)
        self.listening = False
        self.tree: Tree | None = None
        self._yard, self._spec, self._directory = yard, spec, directory
        self._lines: deque[str] = deque()
        self._wake = asyncio.Event()
        self._phase = "prepared"
        self._ready = False
        self._go_until, self._lease_until = -math.inf, math.inf
        self._prepared_until = math.inf
        self._closing = self._ending = self._over = False
        self._asked: Stop | None = None
        self._stopped_by: Stop | None = None
        self._kill_at = self._linger_until = math.inf
        self._ended_at: float | None = None
        self._limits: Limits | None = None
        self._too_long: ReachedRecord | None = None
        self._unexecuted: ExitRecord | None = None
        self._sizes = [0, 0]

    def hear(self, line: str) -> bool:
        if not (self.process.alive and self.listening):
            return False
        self._lines.append(line)
        self._stir()
        return True

    def ring(self) -> None:
        self._yard.ring(self._spec.name)

    async def run(self) -> None:
        chance = self._yard.chance
        await asyncio.sleep(0.002 + 0.02 * chance.random())
        self.listening = True
        self._prepared_until = boot_s() + PREPARED_LIMIT_S
        self.ring()
        self.process.call_at(self._yard.loop.time() + 0.002 + 0.03 * chance.random(), self._is_ready)
        while not self._over:
            self._wake.clear()
            while self._lines:
                self._command(self._lines.popleft())
            self._hear_tree()
            self._judge(boot_s())
            if not self._over:
                await self._until_something(self._next_at() - boot_s())
        self.listening = False
        self.process.alive = False  # the lock is free
        self.ring()

    def _stir(self) -> None:
        if self.process.alive:
            self.process.call_soon(self._wake.set)

    async def _until_something(self, within_s: float) -> None:
        if within_s <= 0:
            await asyncio.sleep(0)
            return
        timer = self.process.call_at(self._yard.loop.time() + min(within_s, 3600.0), self._wake.set)
        await self._wake.wait()
        timer.cancel()

    def _is_ready(self) -> None:
        self._ready = True
        self._wake.set()

    # ---- commands

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        match name:
            case "go":
                if self._phase in UNRELEASED and not (self._closing or self._ending):
                    self._go_until = max(self._go_until, float(rest))
            case "until":
                until = float(rest)
                self._lease_until = until if self._lease_until == math.inf else max(self._lease_until, until)
            case "stop":
                stop_id, grace_s, *_ = rest.split(" ")
                self._ask(Stop("stopped", stop_id), float(grace_s))
            case "close":
                self._closing = True
                if self._phase in UNRELEASED:
                    self._end_unexecuted(None)

    def _ask(self, stop: Stop, grace_s: float) -> None:
        if self._ending:
            return
        if self._phase in UNRELEASED:
            self._end_unexecuted(self._record("stopped", stop=stop.id) if stop.id else None)
            return
        if self._ended_at is not None and self._stopped_by is None:
            self._stop_strays(boot_s())
            return
        self._kill_at = min(self._kill_at, boot_s() + max(0.0, grace_s))
        if self._stopped_by is None:
            self._stopped_by = stop
            if stop.id:
                (self._directory / records.STOPPING).write_text(stop.id)
            assert self.tree is not None
            self.tree.term()
        self.ring()

    # ---- start

    def _release(self) -> None:
        plan = Plan.of(self._spec.argv)
        (self._directory / records.START).write_bytes(
            records.encode(
                records.StartRecord(proto=records.PROTO, process=_identity(), shim=_identity(), started_at=time.time())
            )
        )
        for name in (records.OUT, records.IDX):
            (self._directory / name).touch(mode=0o600)
        if plan.no_program:
            self._end_unexecuted(self._record("launch_failed", code="launch_failed", reason="no such program (ENOENT)"))
            return
        yard = self._yard
        self._phase = "running"
        self._limits = Limits({code.value: limit_s for code, limit_s in self._spec.limits.items()}, boot_s())
        (self._directory / records.RUNNING).touch()
        chance = random.Random(yard.chance.getrandbits(64))
        self.tree = Tree(yard.loop, yard.machine, self._spec.name, plan, chance)
        self.tree.news = self._stir
        yard.truth.executed(self._spec.job, self._spec.attempt, yard.machine, self.tree, self._spec)
        self.tree.start()
        self.ring()

    # ---- the tree

    def _hear_tree(self) -> None:
        if self.tree is None:
            return
        taken, self.tree.pipe[:] = list(self.tree.pipe), []
        if taken:
            self._keep(taken)
            if self._limits is not None:
                self._limits.heard(boot_s())
            self.ring()
        if self.tree.status is not None and self._ended_at is None:
            self._ended_at = boot_s()
            self._linger_until = self._ended_at + self._spec.linger_s

    def _keep(self, taken: list[tuple[int, bytes]]) -> None:
        with (self._directory / records.OUT).open("ab") as out, (self._directory / records.IDX).open("ab") as idx:
            for stream, data in taken:
                out.write(data)
                idx.write(records.ROW.pack(self._sizes[0], len(data), stream, time.time()))
                self._sizes[0] += len(data)
                self._sizes[1] += records.ROW.size

    # ---- what time brings about

    def _judge(self, now: float) -> None:
        if self._phase in UNRELEASED and not self._ending:
            if now >= min(self._lease_until, self._prepared_until):
                self._end_unexecuted(None)
            elif self._ready and now <= min(self._go_until, self._lease_until):
                self._refuse_or_release()
        if self._ending:
            self._conclude(self._unexecuted)
        elif self.tree is not None:
            self._judge_executed(now)

    def _refuse_or_release(self) -> None:
        if Plan.of(self._spec.argv).refused_on == self._yard.machine.name:
            reason = f"the directory does not exist on {self._yard.machine.name}"
            self._end_unexecuted(self._record("refused", code="cwd_missing", reason=reason))
        else:
            self._release()

    def _judge_executed(self, now: float) -> None:
        assert self.tree is not None
        ended = self._ended_at is not None
        if not ended and now >= self._lease_until and self._stopped_by is None:
            self._ask(Stop("lease_ended", None), self._spec.grace_s)
        if not ended and self._limits is not None:
            self._judge_limits(self._limits, now)
        if self._lingers() and not self.tree.gone and now >= self._linger_until:
            self._stop_strays(now)
        if now >= self._kill_at:
            self.tree.kill()
            self._hear_tree()
        if self.tree.gone:
            self._hear_tree()
            stop = self._stopped_by
            record = self._record(stop.outcome if stop else "exited", stop=stop.id if stop else None)
            if stop is not None:
                record["limit"] = stop.limit or self._too_long
            self._conclude(record)

    def _judge_limits(self, limits: Limits, now: float) -> None:
        stopping = self._stopped_by is not None
        reached = None if self._too_long else limits.reached(now, stopping=stopping)
        if reached is not None and stopping:
            self._too_long = reached
        elif reached is not None:
            self._ask(Stop("limit", None, reached), self._spec.grace_s)

    def _lingers(self) -> bool:
        return self._ended_at is not None and self._stopped_by is None and self._kill_at == math.inf

    def _stop_strays(self, now: float) -> None:
        if self._kill_at == math.inf and self.tree is not None:
            self.tree.term()
        self._kill_at = min(self._kill_at, now + STRAY_GRACE_S)

    def _next_at(self) -> float:
        deadlines = [self._kill_at]
        if self._phase in UNRELEASED:
            deadlines += [self._prepared_until, self._lease_until]
        elif self._ended_at is None and self._stopped_by is None:
            deadlines.append(self._lease_until)
        if self._limits is not None and self._ended_at is None and self._too_long is None:
            deadlines.append(self._limits.next_at(stopping=self._stopped_by is not None))
        if self._lingers():
            deadlines.append(self._linger_until)
        return min(deadlines)

    # ---- end

    def _end_unexecuted(self, record: ExitRecord | None) -> None:
        self._unexecuted, self._ending = record, True

    def _conclude(self, record: ExitRecord | None) -> None:
        self._over = True
        if record is not None:
            record["final_size"], record["final_index_size"] = self._sizes
            draft = self._directory / (records.EXIT + ".tmp")
            try:
                draft.write_bytes(records.encode(record))
                draft.rename(self._directory / records.EXIT)
            except FileNotFoundError:
                return  # somebody removed the directory

    def _record(
        self, outcome: str, *, stop: str | None = None, code: str | None = None, reason: str | None = None
    ) -> ExitRecord:
        status = self.tree.status if self.tree is not None else None
        return ExitRecord(
            proto=records.PROTO,
            outcome=outcome,  # type: ignore[typeddict-item]
            exit_code=status.exit_code if status else None,
            signal=status.signal if status else None,
            reason_code=code,
            reason=reason,
            stop=stop,
            final_size=0,
            final_index_size=0,
            dropped=0,
            duration_s=None,
            max_rss_mb=None,
            cpu_s=None,
        )


class Yard:
    """All shims of one machine: they outlive the worker, and the machine's power ends them."""

    def __init__(self, loop: VirtualLoop, machine: Machine, truth: Truth, chance: random.Random) -> None:
        self.loop, self.machine, self.truth, self.chance = loop, machine, truth, chance
        self.lives: dict[str, Life] = {}
        self.ringers: list[Callable[[str], None]] = []
        self.no_room = 0.0
        """How likely it is that no shim can be made."""

    def born(self, spec: ShimSpec, directory: Path) -> None:
        life = self.lives[spec.name] = Life(self, spec, directory)
        life.process.spawn(life.run())

    def alive(self, name: str) -> bool:
        life = self.lives.get(name)
        return life is not None and life.process.alive

    def ring(self, name: str) -> None:
        for ring in self.ringers:
            ring(name)

    def kill_leftovers(self, name: str) -> None:
        life = self.lives.get(name)
        if life is not None and life.tree is not None:
            life.tree.kill()

    def power_off(self) -> None:
        """All is gone in one instant, and the disk forgets what was not synced: the end of some output."""
        for life in self.lives.values():
            life.process.kill()
            if life.tree is not None:
                life.tree.kill()
        for out in sorted(Path(life._directory / records.OUT) for life in self.lives.values()):
            if out.exists() and not out.with_name(records.EXIT).exists():
                os.truncate(out, int(out.stat().st_size * self.chance.random()))
        self.lives.clear()


class ModelShim(Shim):
    """The worker's side of a modelled shim: its files are real, its process is not."""

    yard: Yard

    def alive(self) -> bool:
        return self.yard.alive(self.name)

    def listening(self) -> bool:
        life = self.yard.lives.get(self.name)
        return life is not None and life.listening

    def _tell(self, line: str) -> bool:
        life = self.yard.lives.get(self.name)
        return life is not None and life.hear(line)

    def _leftovers_gone(self) -> bool:
        self.yard.kill_leftovers(self.name)
        return True


class ModelShims:
    """`worker.shims.Shims` for one worker process: what an agent asks of it."""

    def __init__(self, state: Path, yard: Yard) -> None:
        self._assignments = state / "assignments"
        self._assignments.mkdir(parents=True, exist_ok=True)
        self._yard = yard
        self._names: dict[str, None] = {}
        self._news = asyncio.Event()
        self._process = HERE.get()
        self._serial = 0
        yard.ringers[:] = [self._rung]
        self._shim = type("ModelShimHere", (ModelShim,), {"yard": yard})

    def begin(self, spec: ShimSpec) -> Shim:
        directory = self._assignments / spec.name
        if directory.exists():
            raise FileExistsError(f"there is a shim of assignment {spec.name}")
        if self._yard.chance.random() < self._yard.no_room:
            raise LaunchError("no directory for the assignment could be made: no room")
        shim: Shim = self._shim(directory, spec, self._record(spec))
        directory.mkdir()
        shim.write_spec(directory)
        self._yard.born(spec, directory)
        return shim

    async def listens(self, shim: Shim) -> None:
        while not shim.listening():
            if not shim.alive():
                if shim.ended():
                    break
                shutil.rmtree(shim.directory, ignore_errors=True)
                raise LaunchError("the shim ended at once")
            await asyncio.sleep(0.02)
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except asyncio.CancelledError:
            shim.close()
            raise

    def found(self) -> list[Shim]:
        shims = []
        for directory in sorted(self._assignments.iterdir()):
            if directory.name.startswith("."):
                shutil.rmtree(directory, ignore_errors=True)
            elif shim := self._shim.at(directory):
                shims.append(shim)
        return shims

    @property
    def bell(self) -> AsyncIterator[str]:
        return self._ringing()

    async def _ringing(self) -> AsyncIterator[str]:
        while True:
            await self._news.wait()
            self._news.clear()
            names, self._names = self._names, {}
            for name in names:
                yield name

    def _rung(self, name: str) -> None:
        if self._process.alive:
            self._names[name] = None
            self._process.call_soon(self._news.set)

    def _record(self, spec: ShimSpec) -> SpecRecord:
        self._serial += 1
        return spec.record(cookie=f"{self._process.name}/{self._serial}", bell="", cgroup=None)


def _identity() -> records.Identity:
    return records.Identity(pid=1, starttime=None, pidfs_ino=None, boot_id=None, pidns=None)
