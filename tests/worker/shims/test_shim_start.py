"""What is executed when, and the proof of what never was."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal

import pytest

from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process import records
from worker.shims import LaunchError, ShimSpec, boot_s


async def test_a_prepared_shim_executes_nothing_and_closes_for_good(room, short_dir):
    shim = await room.prepare("touch", str(short_dir / "ran"))
    assert shim.alive()
    assert shim.listening()
    assert shim.final() is None
    assert await shim.closed_for_good()
    assert shim.final().outcome is Outcome.NEVER_EXECUTED
    assert not shim.go(boot_s() + 30)
    assert not (short_dir / "ran").exists()


async def test_a_go_that_comes_too_late_changes_nothing_and_a_later_one_counts(room):
    shim = await room.prepare("true")
    assert shim.go(boot_s() - 0.001)
    assert shim.until(boot_s() + 60)  # a command after it: when this was read, so was the other
    await eventually(lambda: shim.go(boot_s() - 0.001))
    assert not {records.START, records.RUNNING, records.OUT} & {path.name for path in shim.directory.iterdir()}
    assert shim.alive()
    shim.go(boot_s() + 30)
    assert (await room.ended(shim)).exit_code == 0


@pytest.mark.guarantee("G4")
async def test_a_repeated_go_starts_once(room, short_dir):
    shim = await room.bash(f"echo x >> {short_dir}/ran; sleep 0.2")
    for _ in range(20):
        shim.go(boot_s() + 30)
    await room.ended(shim)
    assert (short_dir / "ran").read_text() == "x\n"


async def test_a_child_frozen_at_the_gate_does_not_start_late(room, short_dir):
    """The deadline is looked at as the last thing before exec: the machine may have slept since `go`."""
    shim = await room.prepare("touch", str(short_dir / "ran"))
    frozen = None
    shim.go(boot_s() + 0.25)
    while frozen is None and not shim.started() and shim.alive():
        frozen = _stopped_before_exec(shim)
    if frozen is None:
        pytest.skip("the child was quicker than this test")
    deadline = boot_s() + 0.3
    await eventually(lambda: boot_s() > deadline)
    os.kill(frozen, signal.SIGCONT)
    await eventually(lambda: not os.path.exists(f"/proc/{frozen}"))
    assert not (short_dir / "ran").exists()
    assert shim.alive()
    assert not (shim.directory / records.START).exists()
    assert await shim.closed_for_good()


def _stopped_before_exec(shim) -> int | None:
    """SIGSTOP to the child of the shim, if it still runs the shim's own program."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/cwd") != "/" or not _is_child_of_shim(int(name), shim):
                continue
            os.kill(int(name), signal.SIGSTOP)
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if file.read().endswith(b"\0jobd\0shim\0"):
                    return int(name)
            os.kill(int(name), signal.SIGCONT)
    return None


def _is_child_of_shim(pid: int, shim) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        parent = int(file.read().rpartition(b")")[2].split()[1])
    return os.readlink(f"/proc/{parent}/cwd") == str(shim.directory)


async def test_a_shim_whose_lease_ends_before_go_closes_itself(room, short_dir):
    shim = await room.prepare("touch", str(short_dir / "ran"))
    shim.until(boot_s() + 0.05)
    final = await room.ended(shim)
    assert final.outcome is Outcome.NEVER_EXECUTED
    assert not (short_dir / "ran").exists()


async def test_a_prepared_shim_whose_directory_was_removed_ends(closed_room, broken_code):
    closed_room.open(code=broken_code(("shim.py", "LOOK_AROUND_S = 10.0", "LOOK_AROUND_S = 0.05")))
    shim = await closed_room.prepare("true")
    lock = os.open(shim.directory / records.LOCK, os.O_RDONLY)
    shim.remove()
    await eventually(lambda: _is_free(lock))
    os.close(lock)


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def test_a_stop_before_go_is_confirmed_and_nothing_is_executed(room, short_dir):
    shim = await room.prepare("touch", str(short_dir / "ran"))
    shim.stop("s1", 10, "the user asked")
    shim.go(boot_s() + 30)
    final = await room.ended(shim)
    assert (final.outcome, final.stop, final.exit_code) == (Outcome.STOPPED, "s1", None)
    assert not (shim.directory / records.START).exists()
    assert not (short_dir / "ran").exists()


async def test_close_after_the_start_is_without_effect(room):
    shim = await room.bash("echo begun; sleep 0.3; exit 4")
    await room.printed(shim, b"begun")
    shim.close()
    assert not await shim.closed_for_good()
    assert (await room.ended(shim)).exit_code == 4


async def test_go_and_close_at_the_same_moment_agree_on_what_happened(room, short_dir):
    """Either it ran, or it is proved that it never did; never both, never neither."""
    for number in range(25):
        ran = short_dir / f"ran{number}"
        shim = await room.prepare("touch", str(ran))
        shim.go(boot_s() + 30)
        await asyncio.sleep(number % 5 * 0.001)
        closed = await shim.closed_for_good()
        final = await room.ended(shim)
        assert ran.exists() == (final.outcome is Outcome.EXITED)
        if closed:
            assert final.outcome is Outcome.NEVER_EXECUTED


async def _start_is_durable_before_the_command_runs(room) -> bool:
    """The command itself looks, as the first thing, whether start.json is there."""
    shim = await room.prepare("bash", "-c", 'test -e "$0"', str(room.state / "assignments" / "1.1" / records.START))
    assert shim.name == "1.1"
    shim.go(boot_s() + 30)
    return (await room.ended(shim)).exit_code == 0


@pytest.mark.guarantee("G3")
async def test_the_start_record_is_there_before_the_command_runs(room):
    assert await _start_is_durable_before_the_command_runs(room)


async def test_a_start_record_written_after_exec_would_be_noticed(closed_room, broken_code):
    code = broken_code(
        (
            "shim.py",
            "            records.publish(records.START)\n        except OSError",
            "            pass\n        except OSError",
        ),
        (
            "shim.py",
            "        child.release(min(self._go_until, self._lease_until))\n",
            (
                "        child.release(min(self._go_until, self._lease_until))\n"
                "        time.sleep(0.3)\n        records.publish(records.START)\n"
            ),
        ),
    )
    closed_room.open(code=code)
    assert not await _start_is_durable_before_the_command_runs(closed_room)


@pytest.mark.guarantee("G4")
async def test_an_assignment_is_launched_once(room):
    shim = await room.prepare("true")
    with pytest.raises(FileExistsError):
        await room.shims.launch(shim.spec)
    assert shim.alive()


async def test_a_zygote_that_was_killed_is_replaced_and_living_shims_do_not_notice(room):
    before = await room.bash("sleep 0.5; exit 6")
    await eventually(before.started)
    os.kill(room.shims.zygote, signal.SIGKILL)
    after = await room.run("sh", "-c", "exit 5")
    assert (await room.ended(after)).exit_code == 5
    assert (await room.ended(before)).exit_code == 6


async def test_the_copied_code_is_mended_when_a_cleaner_took_some_of_it(closed_room):
    await closed_room.open().aclose()
    (copy,) = (closed_room.state / "bin").iterdir()
    (copy / "worker" / "process" / "tree.py").unlink()
    (copy / "worker" / "shim.py").write_text("broken")
    closed_room.open()
    assert (await closed_room.final_of("true")).exit_code == 0


async def test_shims_run_the_copy_and_not_the_installed_code(closed_room, broken_code):
    code = broken_code()
    closed_room.open(code=code)
    for path in code.rglob("*.py"):
        path.write_text("raise SystemExit('the upgrade took me away')")
    assert (await closed_room.final_of("true")).exit_code == 0


async def test_a_launch_that_can_make_no_shim_says_why_and_leaves_nothing(closed_room, broken_code):
    code = broken_code(
        ("shim.py", "        shim = kind(spec)(", "        raise RuntimeError('planted')\n        shim = kind(spec)(")
    )
    shims = closed_room.open(code=code)
    with pytest.raises(LaunchError, match="planted"):
        await shims.launch(ShimSpec(1, 1, "t", ["true"], {}))
    assert shims.found() == []


async def test_the_bell_tells_of_each_step(room):
    heard: list[str] = []

    async def listen() -> None:
        async for name in room.shims.bell:
            heard.append(name)

    task = asyncio.create_task(listen())
    shim = await room.prepare("sh", "-c", "echo hi; sleep 0.3")
    await eventually(lambda: shim.name in heard)
    heard.clear()
    shim.go(boot_s() + 30)
    await eventually(lambda: shim.name in heard)
    await room.ended(shim)
    heard.clear()
    await eventually(lambda: not shim.alive())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kind", ["no reader", "full"])
async def test_a_bell_that_nobody_hears_holds_up_nothing(closed_room, kind):
    shims = closed_room.open()
    shim = await closed_room.prepare("head", "-c", "3000000", "/dev/zero")
    if kind == "full":
        bell = os.open(closed_room.state / "bell", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(bell, b"x" * 4096)
        os.close(bell)
    else:
        await shims.aclose()
    shim.go(boot_s() + 30)
    assert (await closed_room.ended(shim)).final_size == 3_000_000
