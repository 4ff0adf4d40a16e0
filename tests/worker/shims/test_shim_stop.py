"""TERM, grace, KILL; and whose word counts."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process import records
from worker.shims import boot_s


async def test_a_trainer_that_saves_and_exits_0_after_term_is_stopped_not_finished(room):
    shim = await room.bash("exec 2>/dev/null; trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    await room.printed(shim, b"ready")
    shim.stop("s1", 20, "cancelled by a person")
    final = await room.ended(shim)
    assert (final.outcome, final.stop, final.exit_code, final.signal) == (Outcome.STOPPED, "s1", 0, None)
    assert shim.out.read_bytes() == b"ready\nsaved\n"


@pytest.mark.guarantee("G13")
async def test_who_ignores_term_is_killed_when_the_grace_is_over(room):
    shim = await room.bash("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await room.printed(shim, b"ready")
    asked = time.monotonic()
    shim.stop("s1", 0.6)
    await eventually(lambda: shim.stopping() == "s1")
    final = await room.ended(shim)
    assert 0.6 <= time.monotonic() - asked < 5
    assert (final.outcome, final.stop, final.signal) == (Outcome.STOPPED, "s1", "SIGKILL")


async def test_term_reaches_a_program_below_a_shell_once_and_it_has_the_whole_grace(room):
    """bash dies of TERM at once; the trainer below it is saving."""
    trainer = "exec 2>/dev/null; trap 'echo -n T; sleep 0.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    shim = await room.bash(f'bash -c "{trainer}"; echo not reached', linger_s=0.0)
    await room.printed(shim, b"ready")
    shim.stop("s1", 20)
    final = await room.ended(shim)
    assert final.outcome is Outcome.STOPPED
    assert shim.out.read_bytes() == b"ready\nTsaved\n"


async def test_a_second_stop_shortens_the_grace_and_the_first_gives_the_reason(room):
    shim = await room.bash("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await room.printed(shim, b"ready")
    shim.stop("s1", 3600)
    await eventually(shim.stopping)
    shim.stop("s2", 0.1)
    shim.stop("s3", 3600)
    assert (await room.ended(shim)).stop == "s1"


async def test_a_repeated_stop_sends_no_second_term(room):
    shim = await room.bash("exec 2>/dev/null; trap 'echo -n T' TERM; echo ready; while :; do sleep 0.05; done")
    await room.printed(shim, b"ready")
    for _ in range(5):
        shim.stop("s1", 1)
    final = await room.ended(shim)
    assert shim.out.read_bytes() == b"ready\nT"
    assert final.outcome is Outcome.STOPPED


@pytest.mark.trial("B92")
async def test_a_stop_after_the_end_changes_nothing(room):
    shim = await room.bash("sleep 300 & exit 3", linger_s=60)
    await eventually(lambda: _main_is_gone(shim))
    shim.stop("s1", 3600)
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code, final.stop) == (Outcome.EXITED, 3, None)


def _main_is_gone(shim) -> bool:
    started = shim.started()
    return started is not None and not os.path.exists(f"/proc/{started.pid}")


async def test_an_exit_and_a_stop_in_the_same_instant_end_one_way(room):
    """Ended by itself with its own code, or stopped by this request: never a mixture."""
    outcomes = []
    for number in range(20):
        shim = await room.bash("echo ready; sleep 0.03; exit 7")
        await room.printed(shim, b"ready")
        await asyncio.sleep(0.015 + number * 0.001)
        shim.stop("s1", 5)
        final = await room.ended(shim)
        outcomes.append(final.outcome)
        if final.outcome is Outcome.EXITED:
            assert (final.exit_code, final.stop) == (7, None)
        else:
            assert (final.outcome, final.stop) == (Outcome.STOPPED, "s1")
            assert (final.exit_code, final.signal) in [(7, None), (None, "SIGTERM")]
    assert outcomes


async def test_the_end_of_the_lease_stops_the_tree_and_says_so(room):
    shim = await room.bash("trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done")
    await room.printed(shim, b"ready")
    shim.until(boot_s() + 0.2)
    final = await room.ended(shim)
    assert (final.outcome, final.stop, final.exit_code) == (Outcome.LEASE_ENDED, None, 0)


async def test_a_lease_that_is_fed_does_not_end(room):
    shim = await room.bash("echo ready; sleep 1; exit 6")
    await room.printed(shim, b"ready")
    for _ in range(8):
        shim.until(boot_s() + 0.5)
        await asyncio.sleep(0.1)
    shim.until(boot_s() + 60)
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 6)


async def test_a_lease_extended_while_the_shim_was_frozen_has_not_ended(room):
    shim = await room.bash("echo ready; sleep 1; exit 6")
    await room.printed(shim, b"ready")
    supervisor = records.read_start(str(shim.directory))["shim"]["pid"]
    shim.until(boot_s() + 0.3)
    os.kill(supervisor, signal.SIGSTOP)
    end = boot_s() + 0.4
    await eventually(lambda: boot_s() > end)
    shim.until(boot_s() + 60)
    os.kill(supervisor, signal.SIGCONT)
    assert (await room.ended(shim)).outcome is Outcome.EXITED


async def test_a_frozen_shim_stops_its_tree_soon_after_the_thaw(room):
    shim = await room.bash("echo ready; sleep 60")
    await room.printed(shim, b"ready")
    supervisor = records.read_start(str(shim.directory))["shim"]["pid"]
    shim.until(boot_s() + 0.2)
    os.kill(supervisor, signal.SIGSTOP)
    end = boot_s() + 0.4
    await eventually(lambda: boot_s() > end)
    os.kill(supervisor, signal.SIGCONT)
    assert (await room.ended(shim, within_s=3)).outcome is Outcome.LEASE_ENDED


@pytest.mark.trial("B99")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
async def test_a_service_managers_signal_to_the_shim_does_not_end_the_job(room, name):
    shim = await room.bash("echo ready; sleep 0.3; exit 8")
    await room.printed(shim, b"ready")
    for pid in (records.read_start(str(shim.directory))["shim"]["pid"], room.shims.zygote):
        os.kill(pid, signal.Signals[name])
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code) == (Outcome.EXITED, 8)
    assert (await room.final_of("true")).exit_code == 0


async def test_garbled_commands_are_no_commands(room):
    shim = await room.bash("echo ready; sleep 0.3; exit 8")
    await room.printed(shim, b"ready")
    with (shim.directory / records.CTL).open("wb", buffering=0) as ctl:
        ctl.write(b"stop\nuntil soon\n\xff\xfe\ngo nan\nuntil nan\nstop x y\nexplode\n\n")
    assert (await room.ended(shim)).exit_code == 8


async def test_an_id_that_would_garble_a_command_is_refused(room):
    shim = await room.prepare("true")
    with pytest.raises(ValueError, match="not a stop's id"):
        shim.stop("s 1", 1)
    shim.stop("s1", 1, "many\nlines\nclose")
    assert (await room.ended(shim)).stop == "s1"
