"""What commands tell a person at a terminal beyond what they tell a program, and that a pipe gets none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.installation import JOB, Installation
from support.terminal import InTerminal
from support.waiting import eventually_sync

Start = Callable[..., InTerminal]


@pytest.fixture
def at_terminal(up: Installation) -> Iterator[Start]:
    """Begin `job WORDS` in a terminal of its own."""
    began: list[InTerminal] = []

    def start(*words: str, columns: int = 80, settings: dict[str, str] | None = None) -> InTerminal:
        began.append(InTerminal([JOB, *words], {**up.environ, **(settings or {})}, up.directory, columns))
        return began[-1]

    yield start
    for program in began:
        program.close()


def gated(up: Installation, name: str) -> tuple[str, Callable[[], None]]:
    """Shell text that ends when the function is called."""
    gate = up.directory / name
    return f"until [ -e {gate} ]; do sleep 0.05; done", gate.touch


def test_a_wait_tells_how_the_job_stands_and_leaves_only_its_end(up: Installation, at_terminal: Start) -> None:
    command, open_gate = gated(up, "one")
    waiting = at_terminal("submit", "--wait", f"{command}; exit 3")
    waiting.until(lambda screen: "running on" in screen.text)
    open_gate()
    assert waiting.ended() == 3
    shown = [row for row in waiting.screen.rows if row]
    assert len(shown) == 1
    assert "failed: exit code 3" in shown[0]


def test_a_wait_for_an_array_counts_its_ends(up: Installation, at_terminal: Start) -> None:
    command, open_gate = gated(up, "array")
    answer = up.good("submit", "--json", "--count", "3", f"[ $JOBD_ARRAY_INDEX = 0 ] || {command}").json()
    waiting = at_terminal("wait", "--array", str(answer["array"]))
    waiting.until(lambda screen: "█" in screen.text and "░ 1 of 3 ended; " in screen.text)
    blocks = str(answer["ids"])
    several = at_terminal("wait", blocks, "--mode", "all")
    several.until(lambda screen: "running" in screen.text or "queued" in screen.text)
    open_gate()
    assert waiting.ended() == several.ended() == 0


def test_ctrl_c_ends_a_wait_and_not_the_job(up: Installation, at_terminal: Start) -> None:
    command, open_gate = gated(up, "left")
    job = up.submit(command)
    waiting = at_terminal("wait", str(job))
    waiting.until_text("running on")
    waiting.type("\x03")
    assert waiting.ended() == 130
    assert "nothing was cancelled" in waiting.screen.text
    assert "running on" not in waiting.screen.text
    open_gate()
    assert up.job("wait", str(job)).code == 0


def test_a_pipe_gets_no_live_line(up: Installation) -> None:
    command, open_gate = gated(up, "piped")
    waiting = up.start("submit", "--wait", f"{command}; exit 4")
    eventually_sync(lambda: b"running" in up.good("list", "--state", "running").out)
    open_gate()
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, err) == (4, b"")
    assert b"\x1b" not in out


def test_a_restart_of_the_broker_ends_neither_a_wait_nor_top(installation: Installation) -> None:
    command, open_gate = gated(installation, "restart")
    job = installation.submit(f"{command}; exit 5")
    place = (installation.environ, installation.directory)
    waiting, top = InTerminal([JOB, "wait", str(job)], *place), InTerminal([JOB, "top", "--every-s", "0.1"], *place)
    try:
        waiting.until_text("running on")
        top.until_text("q quits")
        installation.good("down", "--keep-jobs")
        top.until_text("reconnecting")
        installation.good("up")
        open_gate()
        assert waiting.ended(60) == 5
        top.until(lambda screen: any("job_failed" in row and f"{job}.1" in row for row in screen.rows))
        assert "reconnecting" not in top.screen.text
        top.type("q")
        assert top.ended() == 0
    finally:
        waiting.close()
        top.close()


def test_the_first_submit_finds_a_worker_and_stopping_jobs_tells_what_still_runs(installation: Installation) -> None:
    shown = installation.good("submit", "--checkpoint-grace-s", "2", "trap '' TERM; while :; do sleep 0.1; done").text
    assert "no worker" not in shown
    assert installation.good("workers", "--json").json()["workers"]
    eventually_sync(lambda: installation.state_of(1) == "running")
    down = InTerminal([JOB, "down", "--stop-jobs"], installation.environ, installation.directory)
    try:
        down.until_text("stopping; 1 running")
        assert down.ended(60) == 0
        assert [row for row in down.screen.rows if row] == ["the broker is down"]
    finally:
        down.close()


def test_a_list_fits_its_terminal_and_is_whole_in_a_pipe(up: Installation, at_terminal: Start) -> None:
    name = "a name that takes more room than a narrow terminal has " + "x" * 60
    job = up.submit("--name", name, "--needs", "no-such-tag", "true")
    assert name in up.good("list").text
    listing = at_terminal("list", "--state", "queued", columns=60)
    assert listing.ended() == 0
    [row] = [row for row in listing.screen.rows if "queued  " in row]
    assert "…" in row
    assert len(row) <= 60
    up.good("cancel", str(job))


def test_colours_are_for_terminals_without_no_color(up: Installation, at_terminal: Start) -> None:
    job = up.submit("exit 3")
    up.job("wait", str(job))
    red = b"\x1b[31m"
    for settings, coloured in [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]:
        listing = at_terminal("list", settings=settings)
        assert listing.ended() == 0
        assert (red in listing.written) is coloured
        assert (b"\x1b[" in listing.written) is coloured
    assert b"\x1b" not in up.good("list").out


def test_events_without_options_are_the_last_ones(up: Installation) -> None:
    first = up.good("events", "--since", "0", "--limit", "2").text.splitlines()
    job = up.submit("true")
    up.job("wait", str(job))
    last = up.good("events", "--limit", "2").text.splitlines()
    assert len(first) == len(last) == 2
    assert first[0].startswith("1  ")
    assert "job_completed" in last[1]
    assert f"{job}.1" in last[1]


def test_a_run_that_must_wait_says_why_nothing_comes(up: Installation, at_terminal: Start) -> None:
    running = at_terminal("run", "--needs", "no-such-tag", "true")
    running.until_text("no worker fits")
    running.type("\x03")
    assert running.ended() == 130


def test_followed_logs_of_a_job_that_waits_say_why_nothing_comes(up: Installation, at_terminal: Start) -> None:
    job = up.submit("--needs", "no-such-tag", "true")
    following = at_terminal("logs", "-f", str(job))
    following.until_text("no worker fits")
    up.good("cancel", str(job))
    assert following.ended() == 0
    assert f"job {job} cancelled" in following.screen.text.replace("\n", " ")


def test_status_begins_with_why_a_job_waits(up: Installation) -> None:
    job = up.submit("--needs", "no-such-tag", "true")
    first = up.good("status", str(job)).text.splitlines()[0]
    assert first.startswith(f"job {job} queued: no worker fits: ")
    assert first.endswith("lacks no-such-tag")
    up.good("cancel", str(job))
