"""`job top`: workers, jobs and events, live."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import click

from jobd_mcp.cli import colours
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.operation_command import JSON_FLAG
from jobd_mcp.cli.screen import Screen, painted_line, signals
from jobd_mcp.cli.top_feed import Feed, Snapshot, snapshot
from jobd_mcp.cli.top_frame import Now, Size, frame

EVERY_S = 1.0
TICK_S = 1.0  # clocks and running times go on
_PIPE_SIZE = Size(100, 40)  # where no terminal and no COLUMNS and LINES say another
_QUIT_KEYS = frozenset(b"qQ")
_ENDING: Mapping[int, int] = {
    signal.SIGINT: 0,
    signal.SIGTERM: 128 + signal.SIGTERM,
    signal.SIGHUP: 128 + signal.SIGHUP,
}


def top_command() -> click.Command:
    def call(once: bool, every_s: float, as_json: bool) -> int:
        connection = connect(os.environ)
        first = snapshot(connection, None)
        if as_json:
            click.echo(json.dumps(_facts(first)))
            return 0
        if once:
            _print(first)
            return 0
        if not sys.stdout.isatty():
            raise Failure("job top needs a terminal", hint="job top --once prints one picture, --json its facts")
        return _live(lambda writer: Feed(connection, first, every_s, lambda: _wake(writer)))

    return click.Command(
        "top",
        callback=call,
        params=[
            click.Option(["--once"], is_flag=True, help="Print one picture and end; also into a pipe."),
            click.Option(
                ["--every-s"],
                type=click.FloatRange(min=0.1, max=3600),
                default=EVERY_S,
                show_default=True,
                help="Seconds between two looks.",
            ),
            click.Option(["--json", JSON_FLAG], is_flag=True, help="Print what one picture shows as JSON, and end."),
        ],
        help=(
            "Workers, what runs, what waits and why, and what happens, live. q or Ctrl-C ends it; Ctrl-Z and fg work. "
            "A broker that restarts is waited for."
        ),
        short_help="Workers, jobs and events, live.",
    )


def _live(made: Callable[[int], Feed]) -> int:
    """Until somebody ends it; the exit code."""
    screen = Screen(sys.stdin.fileno(), sys.stdout.fileno(), colours=colours.wanted(sys.stdout, os.environ))
    with signals() as (told, writer):
        feed = made(writer)
        feed.start()
        screen.take()
        try:
            return _until_the_end(screen, feed, told)
        finally:
            screen.give_back()


def _until_the_end(screen: Screen, feed: Feed, told: int) -> int:
    listening = [told, sys.stdin.fileno()]
    while True:
        screen.draw(frame(feed.latest, screen.size(), _now(), plain_bars=not colours.has_blocks(sys.stdout)))
        ready, _, _ = select.select(listening, [], [], TICK_S)
        if told in ready:
            for number in os.read(told, 256):
                if number in _ENDING:
                    return _ENDING[number]
                _heed(screen, number)
        if listening[1] in ready:
            keys = _keys(listening[1])
            if not keys and sys.stdin.isatty():
                return 0  # the terminal is gone
            if _QUIT_KEYS & set(keys):
                return 0
            listening = listening if keys else listening[:1]


def _heed(screen: Screen, number: int) -> None:
    if number == signal.SIGWINCH:
        screen.forget()
    elif number == signal.SIGTSTP:
        screen.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        screen.take()  # somebody said fg


def _keys(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 64)
    except OSError:
        return b""


def _wake(writer: int) -> None:
    with contextlib.suppress(OSError):  # full: it wakes anyway; closed: nobody looks any more
        os.write(writer, b"\0")


def _print(shown: Snapshot) -> None:
    """As it would stand in a terminal of this size."""
    columns, lines = shutil.get_terminal_size((_PIPE_SIZE.columns, _PIPE_SIZE.lines))
    in_colours = colours.wanted(sys.stdout, os.environ)
    for line in frame(shown, Size(columns, lines), _now(), plain_bars=not colours.has_blocks(sys.stdout), live=False):
        print(painted_line(line, colours=in_colours))


def _now() -> Now:
    return Now(time.monotonic(), datetime.now(UTC))


def _facts(shown: Snapshot) -> dict[str, object]:
    return {name: getattr(shown, name) for name in ("version", "workers", "jobs", "counts", "events")}
