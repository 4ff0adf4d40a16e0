"""What every room's tests share: profiles, private places, and the check that nothing is left running."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.ports import port_that_was_free
from support.processes import kill_all, processes_of
from support.requirements import absent
from support.waiting import eventually_sync

# A shell without job control starts what it puts into the background deaf to Ctrl-C, and so would be all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=int, default=1, help="run each selected test so often")
    parser.addoption("--seed", type=int, help="of a campaign of faults; without it chance chooses one")
    parser.addoption("--jobs", type=int, default=42, help="of a campaign of faults")
    parser.addoption("--faults", type=int, default=42, help="of a campaign of faults")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("--times")
    if times > 1:
        metafunc.fixturenames.append("again")
        metafunc.parametrize("again", range(times), indirect=True, ids=lambda number: f"time{number + 1}")


@pytest.fixture
def again(request: pytest.FixtureRequest) -> int:
    """Which of several times this is; see `--times`."""
    return int(getattr(request, "param", 0))


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own JOBD_* settings change no test."""
    for name in [name for name in os.environ if name.startswith("JOBD_") and name != "JOBD_TEST_REQUIRE"]:
        monkeypatch.delenv(name)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private directory whose path is short: the path of a unix socket holds 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def state_dir(short_dir: Path) -> Iterator[Path]:
    """A state directory. After the test no process may be left that belongs to it; what is left is killed."""
    directory = short_dir / "state"
    yield directory
    if not sys.platform.startswith("linux"):
        return
    try:
        eventually_sync(lambda: not processes_of(short_dir), within_s=5)
    except AssertionError:
        left = kill_all(short_dir)
        pytest.fail("left running: " + "; ".join(f"{process.pid} {process.command}" for process in left))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for said, count in absent.items():
        terminalreporter.write_line(f"{count} skipped: {said}")


@pytest.fixture
def free_port() -> int:
    return port_that_was_free()
