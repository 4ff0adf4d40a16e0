"""What the simulation believes of shims: the same checks for the model and for real ones with real processes.

`python -m simulation.contract` runs all of them on the model, and prints a line for each.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from broker.wire.workers import Final, Outcome
from simulation import nature
from simulation.loop import Machine, Process, VirtualLoop, run
from simulation.programs import Plan, Tree
from simulation.shims import ModelShims, Yard
from support.waiting import eventually
from worker.handle import Shim, ShimSpec
from worker.process import records
from worker.process.clock import boot_s

LONG_S = 60.0


class Ground(Protocol):
    """Where shims are made: the model's, or this machine."""

    async def begin(self, plan: Plan, **fields: object) -> Shim: ...
    def kill(self, shim: Shim) -> None: ...
    def freeze(self, shim: Shim) -> None: ...
    def thaw(self, shim: Shim) -> None: ...
    def found(self) -> list[Shim]: ...
    def rung(self) -> list[str]: ...
    def spec(self, plan: Plan, **fields: object) -> ShimSpec: ...
    def begin_again(self, spec: ShimSpec) -> Shim: ...


async def _ended(shim: Shim) -> Final:
    return await eventually(shim.final, within_s=30)


async def _started(shim: Shim) -> None:
    assert shim.go(boot_s() + 30)
    await eventually(shim.started, within_s=30)


async def _ready_to_obey(shim: Shim) -> None:
    """It runs, and has set up what it does on TERM: it says so by its first line."""
    await _started(shim)
    await eventually(lambda: shim.out_size() > 0, within_s=30)


async def nothing_is_executed_before_a_go(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0, lines=1))
    assert shim.alive() and shim.final() is None and shim.started() is None
    await asyncio.sleep(0.3)
    assert shim.started() is None and not shim.out.exists()


async def a_closed_shim_never_executes(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0, lines=1))
    assert await shim.closed_for_good()
    assert not shim.go(boot_s() + 30)
    final = await _ended(shim)
    assert final.outcome is Outcome.NEVER_EXECUTED and not shim.out.exists()


async def a_shim_that_executed_can_not_be_closed(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=1, lines=1))
    await _started(shim)
    assert not await shim.closed_for_good()
    assert (await _ended(shim)).outcome is Outcome.EXITED


async def a_go_that_comes_too_late_changes_nothing(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0))
    shim.go(boot_s() - 0.1)
    await asyncio.sleep(0.3)
    assert shim.started() is None and shim.final() is None
    await _started(shim)


async def output_and_exit_are_told_whole(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0.2, lines=3, exit=7))
    await _started(shim)
    final = await _ended(shim)
    wrote = shim.out.read_bytes()
    rows = list(records.ROW.iter_unpack(shim.idx.read_bytes()))
    assert (final.outcome, final.exit_code, final.signal, final.dropped) == (Outcome.EXITED, 7, None, 0)
    assert wrote.count(b"\n") == 3
    assert (final.final_size, final.final_index_size) == (len(wrote), shim.index_size())
    assert sum(row[1] for row in rows) == len(wrote) and rows[0][0] == 0


async def the_bell_rings_for_its_end(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0.1))
    await _started(shim)
    await _ended(shim)
    await eventually(lambda: shim.name in ground.rung())


async def a_stop_that_is_obeyed_is_a_stop_whatever_the_exit_code(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=LONG_S, lines=1, term_s=0, term_exit=0))
    await _ready_to_obey(shim)
    assert shim.stop("s1", 30)
    final = await _ended(shim)
    assert (final.outcome, final.stop, final.exit_code) == (Outcome.STOPPED, "s1", 0)
    assert shim.stopping() == "s1"


async def a_stop_that_is_ignored_is_a_kill_after_the_grace(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=LONG_S, lines=1, term_s=None))
    await _ready_to_obey(shim)
    assert shim.stop("s1", 0.3)
    final = await _ended(shim)
    assert (final.outcome, final.stop, final.exit_code, final.signal) == (Outcome.STOPPED, "s1", None, "SIGKILL")


async def a_second_stop_keeps_the_first_ones_name_and_brings_the_kill_nearer(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=LONG_S, lines=1, term_s=None))
    await _ready_to_obey(shim)
    shim.stop("s1", 600)
    shim.stop("s2", 0.1)
    final = await _ended(shim)
    assert (final.outcome, final.stop) == (Outcome.STOPPED, "s1")


async def a_stop_before_the_go_prevents_it(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0, lines=1))
    assert shim.stop("s1", 1)
    final = await _ended(shim)
    assert (final.outcome, final.stop, final.exit_code) == (Outcome.STOPPED, "s1", None)
    assert not shim.out.exists()


async def a_lease_that_ends_stops_the_tree(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=LONG_S, lines=1, term_s=None), grace_s=0.2)
    shim.until(boot_s() + 3)
    await _ready_to_obey(shim)
    final = await _ended(shim)
    assert (final.outcome, final.stop, final.signal) == (Outcome.LEASE_ENDED, None, "SIGKILL")


async def a_lease_is_never_shortened(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=1.5, lines=1))
    shim.until(boot_s() + 60)
    shim.until(boot_s() + 0.2)
    await _started(shim)
    assert (await _ended(shim)).outcome is Outcome.EXITED


async def a_lease_that_ends_before_the_go_closes_the_shim(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0, lines=1))
    shim.until(boot_s() + 0.2)
    assert (await _ended(shim)).outcome is Outcome.NEVER_EXECUTED
    assert not shim.out.exists()


async def a_go_after_the_end_of_the_lease_executes_nothing(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0, lines=1))
    shim.until(boot_s() - 1)
    shim.go(boot_s() + 30)
    assert (await _ended(shim)).outcome is Outcome.NEVER_EXECUTED


async def what_is_not_there_failed_to_launch(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0, no_program=True))
    assert shim.go(boot_s() + 30)
    final = await _ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.LAUNCH_FAILED, None)


async def the_end_waits_for_what_outlives_the_main_process(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0.1, lines=1, exit=3, stray_s=1.5), linger_s=10.0)
    began = boot_s()
    await _started(shim)
    final = await _ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 3)
    assert boot_s() - began >= 1.5


async def what_outlives_the_main_process_for_too_long_is_ended(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0.1, exit=3, stray_s=LONG_S), linger_s=0.3)
    await _started(shim)
    final = await _ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 3)


async def a_killed_shim_leaves_an_end_that_is_not_known_and_no_process(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=LONG_S, lines=1))
    await _ready_to_obey(shim)
    ground.kill(shim)
    await eventually(lambda: not shim.alive())
    final = await _ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.LOST, None)
    assert final.final_size == shim.out_size() > 0
    assert not shim.stop("s1", 0)


async def a_frozen_shim_stops_its_tree_when_it_is_thawed(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=LONG_S, lines=1), grace_s=0.1)
    shim.until(boot_s() + 3)
    await _ready_to_obey(shim)
    ground.freeze(shim)
    await asyncio.sleep(3.5)
    assert shim.alive() and shim.final() is None
    ground.thaw(shim)
    assert (await _ended(shim)).outcome is Outcome.LEASE_ENDED


async def a_renewal_during_the_freeze_is_heard_before_the_lease_is_judged(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=8, lines=1), grace_s=0.1)
    shim.until(boot_s() + 3)
    await _ready_to_obey(shim)
    ground.freeze(shim)
    await asyncio.sleep(3.5)
    assert shim.until(boot_s() + 60)
    ground.thaw(shim)
    assert (await _ended(shim)).outcome is Outcome.EXITED


async def a_later_worker_finds_it_and_what_it_was_for(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0.2, exit=5), extra={"lease_s": 12.5})
    await _started(shim)
    found = [one for one in ground.found() if one.name == shim.name]
    assert (found[0].token, found[0].id, found[0].spec.extra) == (shim.token, shim.id, {"lease_s": 12.5})
    assert (await _ended(found[0])).exit_code == 5
    found[0].remove()
    assert shim.name not in [one.name for one in ground.found()]


async def one_assignment_has_one_shim(ground: Ground) -> None:
    shim = await ground.begin(Plan(run_s=0))
    try:
        ground.begin_again(ground.spec(Plan(run_s=0), job=shim.job))
    except FileExistsError:
        return
    raise AssertionError("a second shim was made for the same assignment")


CHECKS: dict[str, Callable[[Ground], Awaitable[None]]] = {
    check.__name__: check
    for check in (
        nothing_is_executed_before_a_go,
        a_closed_shim_never_executes,
        a_shim_that_executed_can_not_be_closed,
        a_go_that_comes_too_late_changes_nothing,
        output_and_exit_are_told_whole,
        the_bell_rings_for_its_end,
        a_stop_that_is_obeyed_is_a_stop_whatever_the_exit_code,
        a_stop_that_is_ignored_is_a_kill_after_the_grace,
        a_second_stop_keeps_the_first_ones_name_and_brings_the_kill_nearer,
        a_stop_before_the_go_prevents_it,
        a_lease_that_ends_stops_the_tree,
        a_lease_is_never_shortened,
        a_lease_that_ends_before_the_go_closes_the_shim,
        a_go_after_the_end_of_the_lease_executes_nothing,
        what_is_not_there_failed_to_launch,
        the_end_waits_for_what_outlives_the_main_process,
        what_outlives_the_main_process_for_too_long_is_ended,
        a_killed_shim_leaves_an_end_that_is_not_known_and_no_process,
        a_frozen_shim_stops_its_tree_when_it_is_thawed,
        a_renewal_during_the_freeze_is_heard_before_the_lease_is_judged,
        a_later_worker_finds_it_and_what_it_was_for,
        one_assignment_has_one_shim,
    )
}


class ModelGround:
    """The model's ground: made on the loop, in a worker's process."""

    def __init__(self, state: Path, yard: Yard) -> None:
        self._shims, self._yard, self._jobs = ModelShims(state, yard), yard, 0
        self._rung: list[str] = []
        yard.ringers.append(self._rung.append)

    def spec(self, plan: Plan, **fields: object) -> ShimSpec:
        self._jobs += 1
        values = {"job": self._jobs, "attempt": 1, "token": "t", "env": {}, "grace_s": 5.0, "linger_s": 2.0, **fields}
        return ShimSpec(argv=["sh", "-c", plan.command], **values)  # type: ignore[arg-type]

    async def begin(self, plan: Plan, **fields: object) -> Shim:
        shim = self._shims.begin(self.spec(plan, **fields))
        await self._shims.listens(shim)
        return shim

    def begin_again(self, spec: ShimSpec) -> Shim:
        return self._shims.begin(spec)

    def kill(self, shim: Shim) -> None:
        self._yard.lives[shim.name].process.kill()

    def freeze(self, shim: Shim) -> None:
        self._yard.lives[shim.name].process.freeze()

    def thaw(self, shim: Shim) -> None:
        self._yard.lives[shim.name].process.thaw()

    def found(self) -> list[Shim]:
        return self._shims.found()

    def rung(self) -> list[str]:
        return self._rung


class _Nobody:
    """Nobody asks what was executed here."""

    def executed(self, job: int, attempt: int, machine: Machine, tree: Tree, spec: ShimSpec) -> None:
        pass


def main() -> int:
    """All checks on the model, on one loop and one machine."""
    loop, failed = VirtualLoop(), 0
    nature.take_over(loop, 1)
    machine = Machine("m")
    for number, (name, check) in enumerate(CHECKS.items()):
        directory = Path(tempfile.mkdtemp(prefix="jobd-contract-"))
        process = Process(loop, "worker", machine)
        yard = Yard(loop, machine, _Nobody(), random.Random(number))

        async def checked(check: Callable[[Ground], Awaitable[None]] = check, yard: Yard = yard) -> None:
            await check(ModelGround(directory, yard))  # noqa: B023

        try:
            run(loop, _in(process, checked))
            said = "holds"
        except Exception:
            failed += 1
            said = "fails\n" + traceback.format_exc()
        finally:
            with suppress(OSError):
                shutil.rmtree(directory)
        sys.stdout.write(f"{name} {said}\n")
    return 1 if failed else 0


async def _in(process: Process, life: Callable[[], Awaitable[None]]) -> None:
    async def lived() -> None:
        await life()

    await process.spawn(lived())


if __name__ == "__main__":
    sys.exit(main())
