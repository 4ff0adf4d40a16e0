"""Time limits are the shim's: they hold without worker and broker, and name themselves."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from broker.wire.states import LimitCode
from broker.wire.workers import Outcome
from support.waiting import eventually
from worker.process import records
from worker.process.limits import Limits
from worker.shims import boot_s

WALL, IDLE, FIRST = LimitCode.MAX_WALL, LimitCode.IDLE_TIMEOUT, LimitCode.FIRST_OUTPUT_TIMEOUT
TALKS = "while :; do echo x; sleep 0.05; done"
SILENT = "while :; do sleep 0.05; done"
SAVES = "exec 2>/dev/null; trap 'echo saved; exit 0' TERM; "
IGNORES = "trap '' TERM; "


def reached(final) -> tuple[Outcome, LimitCode, float]:
    assert final.limit is not None
    assert final.limit.seen_s >= final.limit.limit_s
    return final.outcome, final.limit.code, final.limit.limit_s


@pytest.mark.parametrize(
    ("limit", "script"),
    [(WALL, TALKS), (WALL, SILENT), (IDLE, "echo once; " + SILENT), (IDLE, SILENT), (FIRST, SILENT)],
)
@pytest.mark.guarantee("G25")
@pytest.mark.trial("B65")
async def test_each_limit_stops_the_job_names_itself_and_says_what_was_seen(room, limit, script) -> None:
    shim = await room.bash(script, limits={limit: 0.5})

    final = await room.ended(shim)

    assert reached(final) == (Outcome.LIMIT, limit, 0.5)
    assert (final.exit_code, final.signal, final.stop) == (None, "SIGTERM", None)


@pytest.mark.guarantee("G25")
async def test_a_trainer_that_saves_and_exits_0_on_the_term_of_a_limit_was_stopped_by_it(room) -> None:
    shim = await room.bash(SAVES + SILENT, limits={WALL: 0.5}, grace_s=20)

    final = await room.ended(shim)

    assert reached(final) == (Outcome.LIMIT, WALL, 0.5)
    assert final.exit_code == 0
    assert shim.out.read_bytes() == b"saved\n"


@pytest.mark.guarantee("G25")
async def test_who_ignores_the_term_of_a_limit_is_killed_when_its_grace_is_over(room) -> None:
    shim = await room.bash(IGNORES + SILENT, limits={WALL: 0.3}, grace_s=0.5)

    final = await room.ended(shim)

    assert reached(final) == (Outcome.LIMIT, WALL, 0.3)
    assert final.signal == "SIGKILL"
    assert final.duration_s >= 0.8


async def test_output_puts_an_idle_limit_off_and_ends_one_on_the_first_output(room) -> None:
    """Bytes count, not lines; and stderr is output too."""
    script = "for i in $(seq 30); do printf . >&2; sleep 0.1; done; exit 3"
    shim = await room.bash(script, limits={IDLE: 2, FIRST: 2.5})

    final = await room.ended(shim)

    assert (final.outcome, final.exit_code, final.limit) == (Outcome.EXITED, 3, None)


async def test_of_two_limits_each_stops_the_job_alone_and_the_first_to_be_reached_names_the_end(room) -> None:
    both = await room.bash(SILENT, limits={WALL: 30, IDLE: 0.4})
    other = await room.bash(SILENT, limits={WALL: 0.4, IDLE: 30})

    assert reached(await room.ended(both)) == (Outcome.LIMIT, IDLE, 0.4)
    assert reached(await room.ended(other)) == (Outcome.LIMIT, WALL, 0.4)


async def test_a_job_that_ends_in_time_is_not_touched_and_what_it_leaves_behind_is_not_timed(room) -> None:
    shim = await room.bash("sleep 300 & echo done; exit 4", limits={WALL: 2.0, IDLE: 2.0}, linger_s=3)

    final = await room.ended(shim)

    assert (final.outcome, final.exit_code, final.limit) == (Outcome.EXITED, 4, None)


async def test_a_limit_that_passes_while_the_job_is_stopped_for_something_else_brings_no_second_term(room) -> None:
    trap = "exec 2>/dev/null; trap 'echo T' TERM; echo ready; "
    shim = await room.bash(trap + SILENT, limits={WALL: 4.0, IDLE: 3.5}, grace_s=60)
    await room.printed(shim, b"ready")
    shim.stop("s1", 5)

    final = await room.ended(shim)

    assert (final.outcome, final.stop, final.signal) == (Outcome.STOPPED, "s1", "SIGKILL")
    assert final.limit.code is WALL  # that it also ran too long is told; that it was silent while it saved is not
    assert shim.out.read_bytes() == b"ready\nT\n"


async def test_a_stop_after_the_limit_changes_no_reason_and_can_bring_the_kill_nearer(room) -> None:
    shim = await room.bash(IGNORES + "echo ready; " + SILENT, limits={WALL: 0.5}, grace_s=3600)
    await eventually(lambda: b"ready" in shim.out.read_bytes() if shim.out.exists() else False)
    await eventually(lambda: _runs_for(shim) > 1.0)
    shim.stop("s1", 0.1)

    final = await room.ended(shim)

    assert reached(final) == (Outcome.LIMIT, WALL, 0.5)


async def test_a_limit_holds_without_a_worker_and_after_another_has_come(closed_room) -> None:
    first = closed_room.open()
    shim = await closed_room.bash(TALKS, limits={WALL: 1.5})
    await closed_room.printed(shim, b"x")
    await first.aclose()
    closed_room.open()
    [found] = closed_room.shims.found()

    final = await closed_room.ended(found)

    assert found.spec.limits == {WALL: 1.5}
    assert reached(final) == (Outcome.LIMIT, WALL, 1.5)


@pytest.mark.guarantee("G25")
async def test_what_was_printed_while_the_shim_was_frozen_is_no_silence(room) -> None:
    shim = await room.bash(TALKS, limits={IDLE: 2.0})
    await room.printed(shim, b"x")
    pid = records.read_start(str(shim.directory))["shim"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    thaw_at = boot_s() + 3.0
    await eventually(lambda: boot_s() > thaw_at)
    size = shim.out.stat().st_size
    os.kill(pid, signal.SIGCONT)

    await eventually(lambda: shim.out.stat().st_size > size)
    later = boot_s() + 0.5
    await eventually(lambda: boot_s() > later)
    assert shim.final() is None
    shim.stop("s1", 0)
    assert (await room.ended(shim)).outcome is Outcome.STOPPED


async def test_a_frozen_shim_stops_what_ran_too_long_within_a_second_of_its_thaw(room) -> None:
    shim = await room.bash(TALKS, limits={WALL: 0.5})
    await room.printed(shim, b"x")
    pid = records.read_start(str(shim.directory))["shim"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    thaw_at = boot_s() + 1.0
    await eventually(lambda: boot_s() > thaw_at)
    os.kill(pid, signal.SIGCONT)

    assert reached(await room.ended(shim)) == (Outcome.LIMIT, WALL, 0.5)


async def test_a_record_of_an_earlier_worker_has_no_limits(closed_room) -> None:
    closed_room.open()
    shim = await closed_room.bash("sleep 60", limits={WALL: 50})
    path = shim.directory / records.SPEC
    record = json.loads(path.read_text())
    assert record.pop("limits") == {"max_wall": 50}
    path.write_text(json.dumps(record))

    [found] = closed_room.shims.found()

    assert found.spec.limits == {}


@pytest.mark.parametrize(
    ("heard", "now", "stopping", "code"),
    [
        (None, 9.0, False, None),
        (None, 10.0, False, "first_output_timeout"),
        (5.0, 10.0, False, None),
        (5.0, 25.0, False, "idle_timeout"),
        (None, 31.0, False, "first_output_timeout"),
        (29.0, 31.0, False, "max_wall"),
        (5.0, 29.0, True, None),
        (5.0, 30.0, True, "max_wall"),
    ],
)
def test_when_each_limit_is_reached(heard: float | None, now: float, stopping: bool, code: str | None) -> None:
    """Started at 0: 30 s in all, 20 s of silence, 10 s until the first byte."""
    limits = Limits({"max_wall": 30, "idle_timeout": 20, "first_output_timeout": 10}, started_at=0.0)
    if heard is not None:
        limits.heard(heard)

    found = limits.reached(now, stopping=stopping)

    assert (found["code"] if found else None) == code
    assert (limits.next_at(stopping=stopping) <= now) == (code is not None)


def _runs_for(shim) -> float:
    started = shim.started()
    return time.time() - started.started_at
