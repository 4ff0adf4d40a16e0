"""One picture of `job top`: what is known, laid out for a terminal of a given size. Nothing here does anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jobd_mcp.cli import cells, machines
from jobd_mcp.cli.colours import OF_STATE
from jobd_mcp.cli.columns import Column, laid_out
from jobd_mcp.cli.machines import number
from jobd_mcp.cli.rendering import bar, duration, how_far, reason, text, what
from jobd_mcp.cli.top_feed import SHOWN_STATES, Snapshot
from jobd_mcp.schemas import Schema, as_list, as_object

KEYS = "q quits"
BAR = 12
_EVENTS_SHARE = 4  # of the lines, events get a quarter at most
_WORKERS_SHARE = 3
_LINES_FOR_GAPS = 20
_TOLD_OTHERWISE = ("cause", "worker", "reason_code")


@dataclass(frozen=True)
class Span:
    """Text in one style: a colour's name, `bold`, `dim`, or none."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Size:
    """Of a terminal, in cells."""

    columns: int
    lines: int


@dataclass(frozen=True)
class Now:
    """The time in both ways it is told: what has passed, and what the clock shows."""

    monotonic: float
    wall: datetime


def frame(shown: Snapshot, size: Size, now: Now, *, plain_bars: bool = False, live: bool = True) -> list[Line]:
    """At most `size.lines` lines of at most `size.columns` cells. The less room there is, the less is told.

    `live`: it fills the screen, and says which keys there are.
    """
    head = _head(shown, now)
    gap_line: list[Line] = [()] if size.lines >= _LINES_FOR_GAPS else []
    head += gap_line
    keys: list[Line] = [(Span(KEYS, "dim"),)] if live else []
    room = size.lines - len(head) - len(keys)
    events = _events(shown, min(room // _EVENTS_SHARE, 8))
    workers = _workers(shown.workers, size.columns, max(2, (room - len(events)) // _WORKERS_SHARE), plain_bars)
    workers += gap_line
    jobs = _jobs(shown, size.columns, room - len(events) - len(workers), now, plain_bars)
    gap: list[Line] = [()] * (room - len(events) - len(workers) - len(jobs)) if live else []
    body = [*workers, *jobs, *gap, *events]
    lines = [*head, *body[: max(0, room)], *keys]
    return [_fitted(line, size.columns) for line in lines[: size.lines]]


def as_text(line: Line) -> str:
    return "".join(span.text for span in line)


def _head(shown: Snapshot, now: Now) -> list[Line]:
    clock = now.wall.astimezone().strftime("%H:%M:%S")
    title: Line = (Span("jobd", "bold"), Span(f" {shown.version} on {text(shown.where)}  "), Span(clock, "dim"))
    if shown.trouble is not None:
        away = duration(now.monotonic - shown.taken_at)
        return [title, (Span("reconnecting", "red"), Span(f"; last heard {away} ago: {text(shown.trouble)}"))]
    order = dict.fromkeys([*SHOWN_STATES, *shown.counts])
    counts = [(state, count) for state in order if isinstance(count := shown.counts.get(state), int) and count]
    if not counts:
        return [title, (Span("no jobs yet: job submit 'COMMAND'", "dim"),)]
    told = [Span(f"{count:,} {state}  ", OF_STATE.get(state, "")) for state, count in counts]
    return [title, tuple(told)]


def _workers(workers: Sequence[Schema], columns: int, most: int, plain_bars: bool) -> list[Line]:
    if not workers:
        return [(Span("no worker has registered: job up starts one here", "yellow"),)]
    rows = []
    for worker in workers:
        slots = as_object(worker.get("slots"))
        used, total = number(slots.get("used")), number(slots.get("total"))
        rows.append(
            [
                text(worker.get("name")),
                text(worker.get("state")),
                f"{bar(used, total, BAR, plain=plain_bars)} {used:g}/{total:g}",
                machines.ram(worker),
                machines.gpus(worker),
                duration(worker.get("last_seen_s")),
                " ".join(text(entry) for entry in as_list(worker.get("running"))),
            ]
        )
    head = [
        Column("WORKER", 20),
        Column("STATE", 8),
        Column("SLOTS", 24),
        Column("RAM", 9, right=True),
        Column("GPUS", 24),
        Column("SEEN", 8, right=True),
        Column("RUNS", is_open=True),
    ]
    return _table(head, rows, columns, most)


def _jobs(shown: Snapshot, columns: int, most: int, now: Now, plain_bars: bool) -> list[Line]:
    if not shown.jobs:
        nothing: Line = (Span("nothing runs, and nothing waits", "dim"),)
        return [nothing] if most > 0 else []
    rows = [
        [
            text(job.get("id")),
            "stopping" if job.get("stopping") else text(job.get("state")),
            text(job.get("worker")),
            _time(job, shown, now),
            what(job),
            reason(job.get("waiting")) or how_far(job, plain=plain_bars),
        ]
        for job in shown.jobs
    ]
    counts = [shown.counts.get(state) for state in SHOWN_STATES]
    total = sum(count for count in counts if isinstance(count, int))
    head = [Column("JOB", 9, right=True), Column("STATE", 9), Column("WORKER", 16), Column("TIME", 10, right=True)]
    waits = any(row[-1] for row in rows[: max(0, most - 1)])
    head += (
        [Column("WHAT", is_open=True), Column("HOW IT STANDS", is_open=True)]
        if waits
        else [Column("WHAT", is_open=True)]
    )
    return _table(head, [row[: len(head)] for row in rows], columns, most, total)


def _events(shown: Snapshot, most: int) -> list[Line]:
    if most < 2 or not shown.events:
        return []
    return [(Span("EVENTS", "bold"),), *map(_event, shown.events[1 - most :])]


def _event(event: Schema) -> Line:
    at = event.get("at")
    clock = datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S") if isinstance(at, str) else ""
    kind = text(event.get("type"))
    about = ".".join(text(event.get(name)) for name in ("job", "attempt") if event.get(name) is not None)
    data = as_object(event.get("data"))
    detail = " ".join(f"{text(name)}={text(value)}" for name, value in data.items() if name not in _TOLD_OTHERWISE)
    colour = OF_STATE.get(kind.partition("_")[2], "")
    rest = "  ".join(part for part in (about, text(event.get("worker")), detail) if part)
    return (Span(f"{clock}  ", "dim"), Span(cells.pad(kind, 18), colour), Span(f"  {rest}"))


def _time(job: Schema, shown: Snapshot, now: Now) -> str:
    """How long it has run, going on while the broker is heard; of a job that waits, how long since the submit."""
    took = job.get("duration_s")
    if isinstance(took, int | float):
        return duration(took + (0.0 if shown.trouble else max(0.0, now.monotonic - shown.taken_at)))
    made = job.get("created_at")
    if not isinstance(made, str):
        return ""
    return duration(max(0.0, (now.wall.astimezone(UTC) - datetime.fromisoformat(made)).total_seconds()))


def _table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int, most: int, total: int | None = None
) -> list[Line]:
    """Head and rows in at most `most` lines; what does not fit is counted in the last one."""
    total = len(rows) if total is None else total
    fits = most - 1 if total <= most - 1 else most - 2
    if fits < 1:
        return []
    shown = rows[:fits]
    told = laid_out(columns, shown, room)
    lines: list[Line] = [(Span(told[0], "bold"),)]
    lines += [(Span(line, _colour(row)),) for line, row in zip(told[1:], shown, strict=True)]
    return lines if total <= len(shown) else [*lines, (Span(f"and {total - len(shown):,} more", "dim"),)]


def _colour(row: Sequence[str]) -> str:
    return next((OF_STATE[cell] for cell in row if cell in OF_STATE), "")


def _fitted(line: Line, columns: int) -> Line:
    fitted, left = [], columns
    for span in line:
        shown = cells.cut(span.text, left)
        if shown:
            fitted.append(Span(shown, span.style))
        left -= cells.width(shown)
        if shown != span.text:
            break
    return tuple(fitted)
