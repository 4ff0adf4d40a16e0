"""`job top` in a real terminal of 80 by 24, against a real broker and worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installation import JOB, Installation
from support.terminal import InTerminal
from support.waiting import eventually_sync


@pytest.fixture
def top(up: Installation) -> Iterator[InTerminal]:
    """It shows its first picture."""
    made = InTerminal([JOB, "top", "--every-s", "0.1"], up.environ, up.directory)
    try:
        made.until_text("q quits")
        yield made
    finally:
        made.close()


def given_back(program: InTerminal) -> bool:
    """The terminal is as it was before."""
    screen = program.screen
    as_before = program.mode() == program.mode_before
    return as_before and screen.cursor_shown and not screen.other_screen and screen.style == ""


def test_top_shows_a_job_from_its_submit_to_its_end(top: InTerminal, up: Installation) -> None:
    gate = up.directory / "gate"
    job = up.submit("--name", "shown-while-it-runs", f"until [ -e {gate} ]; do sleep 0.05; done")
    top.until(lambda screen: any(f"{job}  running" in row and "shown-while-it-runs" in row for row in screen.rows))
    [worker] = [row for row in top.screen.rows if "online" in row]
    assert f"{job}.1" in worker
    assert "█" in worker
    gate.touch()
    top.until(lambda screen: any("job_completed" in row and f"{job}.1" in row for row in screen.rows))
    top.until_text("nothing runs, and nothing waits")


def test_top_says_why_a_job_waits(top: InTerminal, up: Installation) -> None:
    job = up.submit("--needs", "no-such-tag", "true")
    top.until(lambda screen: any(f"{job}  queued" in row and "no worker fits" in row for row in screen.rows))
    up.good("cancel", str(job))


@pytest.mark.parametrize(("keys", "code"), [("q", 0), ("\x03", 0)], ids=["q", "ctrl-c"])
def test_q_and_ctrl_c_end_top_and_give_the_terminal_back(top: InTerminal, keys: str, code: int) -> None:
    assert top.screen.other_screen
    top.type(keys)
    assert top.ended() == code
    assert given_back(top)
    assert top.screen.text.strip() == ""


def test_top_that_is_terminated_gives_the_terminal_back(top: InTerminal) -> None:
    top.process.terminate()
    assert top.ended() == 128 + signal.SIGTERM
    assert given_back(top)


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(top: InTerminal) -> None:
    top.type("\x1a")
    eventually_sync(lambda: top.read(0) and state_of(top) == "T")
    top.read(0)
    assert given_back(top)
    top.process.send_signal(signal.SIGCONT)
    top.until(lambda screen: screen.other_screen and "q quits" in screen.text)
    top.type("q")
    assert top.ended() == 0
    assert given_back(top)


def test_top_fits_itself_into_every_size_that_the_terminal_takes(top: InTerminal) -> None:
    for columns, lines in [(120, 40), (40, 10), (20, 4), (1, 1), (80, 24)]:
        top.resize(columns, lines)
        if lines > 4:
            top.until(lambda screen, lines=lines: screen.rows[lines - 1] == "q quits" and "SLOTS" in screen.text)
    top.until(lambda screen: screen.rows[23] == "q quits" and screen.rows[0].startswith("jobd "))
    top.screen.faults.clear()  # of pictures that were on their way
    told = len(top.written)
    top.until(lambda _: len(top.written) > told)
    top.type("q")
    assert top.ended() == 0


def test_one_picture_goes_into_a_pipe_without_control_sequences(up: Installation) -> None:
    shown = up.good("top", "--once").text
    assert "\x1b" not in shown
    assert "SLOTS" in shown
    wide, narrow = (
        up.good("top", "--once", extra={"COLUMNS": f"{columns}", "LINES": "12"}).text for columns in (100, 30)
    )
    assert max(map(len, narrow.splitlines())) <= 30 < max(map(len, wide.splitlines()))
    assert set(up.good("top", "--json").json()) == {"version", "workers", "jobs", "counts", "events"}


def test_top_without_a_terminal_or_a_broker_says_so(up: Installation, tmp_path: Path) -> None:
    refused = up.job("top")
    assert (refused.code, "job top --once" in refused.err) == (125, True)
    nobody = up.job("top", "--once", extra={"JOBD_STATE_DIR": str(tmp_path / "state")})
    assert (nobody.code, nobody.err) == (125, "job: no broker is running; start it with job up\n")


def state_of(program: InTerminal) -> str:
    return Path(f"/proc/{program.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
