"""A broker that was started in the background keeps one worker running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobd_mcp.local import alive
from jobd_mcp.supervision import Patience, SupervisedWorker
from support.waiting import eventually

BRIEF = Patience(first_pause_s=0.05, stop_limit_s=5)
WRITES_ITS_PID = "import os,sys,time; open(sys.argv[1],'a').write(f'{os.getpid()} {os.getsid(0)}\\n'); "


def worker(directory: Path, then: str, patience: Patience = BRIEF) -> SupervisedWorker:
    script = (sys.executable, "-I", "-c", WRITES_ITS_PID + then, str(directory / "pids"))
    return SupervisedWorker({"PATH": os.environ["PATH"]}, directory / "worker.log", directory, script, patience)


def started(directory: Path) -> list[tuple[int, int]]:
    try:
        lines = (directory / "pids").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(int(pid), int(session)) for pid, session in (line.split() for line in lines)]


@contextmanager
def nothing_left(directory: Path) -> Iterator[None]:
    yield
    assert not any(alive(pid) for pid, _ in started(directory))


async def test_a_worker_that_is_killed_is_started_again_in_a_session_of_its_own(state_dir: Path) -> None:
    state_dir.mkdir()
    with nothing_left(state_dir):
        supervised = worker(state_dir, "time.sleep(60)")
        supervised.start()
        await eventually(lambda: len(started(state_dir)) == 1)
        first, session = started(state_dir)[0]
        assert session == first != os.getsid(0)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: len(started(state_dir)) == 2)
        assert alive(started(state_dir)[1][0])
        await supervised.stop()


async def test_a_worker_that_fails_at_once_is_not_started_in_a_tight_loop(state_dir: Path) -> None:
    state_dir.mkdir()
    supervised = worker(state_dir, "print('no luck', file=sys.stderr); sys.exit(3)")
    supervised.start()
    await eventually(lambda: len(started(state_dir)) >= 3, within_s=20)
    count = len(started(state_dir))
    assert supervised.pause_s >= 4 * 0.05
    await supervised.stop()
    assert len(started(state_dir)) <= count + 1
    assert "no luck" in (state_dir / "worker.log").read_text()
    assert (state_dir / "worker.log").stat().st_mode & 0o077 == 0


async def test_stopping_ends_a_worker_and_starts_no_other(state_dir: Path) -> None:
    state_dir.mkdir()
    supervised = worker(state_dir, "time.sleep(60)")
    supervised.start()
    await eventually(lambda: started(state_dir))
    await supervised.stop()
    [(pid, _)] = started(state_dir)
    assert not alive(pid)


async def test_a_worker_that_does_not_heed_the_signal_is_killed(state_dir: Path) -> None:
    state_dir.mkdir()
    ready = state_dir / "deaf"
    supervised = worker(
        state_dir,
        f"import signal; signal.signal(15, signal.SIG_IGN); open({str(ready)!r},'w'); time.sleep(60)",
        Patience(stop_limit_s=0.2),
    )
    supervised.start()
    await eventually(ready.exists)
    await supervised.stop()
    [(pid, _)] = started(state_dir)
    assert not alive(pid)


async def test_a_worker_that_cannot_be_executed_does_no_harm(state_dir: Path) -> None:
    state_dir.mkdir()
    supervised = SupervisedWorker({}, state_dir / "worker.log", state_dir, ("/nowhere/at/all",), BRIEF)
    supervised.start()
    await eventually(lambda: supervised.pause_s > 0.05)
    await supervised.stop()


async def test_a_worker_that_outlived_its_broker_is_left_to_its_work_and_stopped_in_the_end(state_dir: Path) -> None:
    state_dir.mkdir()
    left = subprocess.Popen(
        [sys.executable, "-I", "-c", "import time; time.sleep(60)", "jobd", "worker", str(state_dir)]
    )
    (state_dir / "lock").write_text(f"{left.pid}\n")
    supervised = worker(state_dir, "time.sleep(60)", Patience(first_pause_s=0.05, look_s=0.05))
    supervised.start()
    await asyncio.sleep(0)
    reaped = asyncio.create_task(asyncio.to_thread(left.wait))
    assert started(state_dir) == []
    await supervised.stop()
    await reaped
    assert started(state_dir) == []


async def test_when_the_worker_that_was_left_ends_a_new_one_is_started(state_dir: Path) -> None:
    state_dir.mkdir()
    left = subprocess.Popen(
        [sys.executable, "-I", "-c", "import time; time.sleep(60)", "jobd", "worker", str(state_dir)]
    )
    (state_dir / "lock").write_text(f"{left.pid}\n")
    supervised = worker(state_dir, "time.sleep(60)", Patience(first_pause_s=0.05, look_s=0.05))
    supervised.start()
    left.kill()
    await asyncio.to_thread(left.wait)
    await eventually(lambda: len(started(state_dir)) == 1)
    await supervised.stop()
