"""One picture of `job top`, whatever there is to show and however small the terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from jobd_mcp.cli import cells
from jobd_mcp.cli.rendering import bar
from jobd_mcp.cli.top_feed import Snapshot
from jobd_mcp.cli.top_frame import Now, Size, as_text, frame

AT = "2026-01-02T03:04:05+00:00"
NOW = Now(100.0, datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC))
names = st.text(max_size=40) | st.sampled_from(["你好" * 20, "a\x1b[2Jb", "e\u0301" * 30, "x" * 300])
numbers = st.none() | st.integers(0, 10**12) | st.floats(0, 1e9)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, object]:
    state = draw(st.sampled_from(["running", "assigned", "queued"]))
    waiting = {"code": "capacity", "message": draw(names)} if state == "queued" else None
    known = {
        "id": draw(st.integers(1, 10**15)),
        "state": state,
        "command": draw(names),
        "worker": draw(names),
        "duration_s": draw(numbers),
        "created_at": draw(st.sampled_from([None, AT])),
        "stopping": draw(st.sampled_from([None, {"by": "x", "why": "y", "grace_s": 1}])),
        "waiting": waiting,
        "progress": draw(st.none() | st.fixed_dictionaries({"fraction": st.floats(0, 1)}, optional={"message": names})),
    }
    return {name: value for name, value in known.items() if value is not None}


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    worker = st.fixed_dictionaries(
        {"name": names, "state": st.sampled_from(["online", "lost"]), "last_seen_s": numbers},
        optional={
            "slots": st.fixed_dictionaries({"total": numbers, "used": numbers}),
            "running": st.lists(st.just("42.1"), max_size=60),
        },
    )
    event = st.fixed_dictionaries(
        {"type": st.sampled_from(["job_failed", "worker_lost"])},
        optional={"at": st.just(AT), "job": st.integers(1, 9), "data": st.dictionaries(names, names, max_size=3)},
    )
    shown = draw(st.lists(jobs(), max_size=15))
    return Snapshot(
        version="1.2.3",
        where=draw(names),
        workers=tuple(draw(st.lists(worker, max_size=6))),
        jobs=tuple(shown),
        counts=draw(st.sampled_from([{}, {"running": 1_000_000, "queued": 3, "failed": 2}])),
        events=tuple(draw(st.lists(event, max_size=6))),
        next_event=1,
        taken_at=90.0,
        trouble=draw(st.none() | names),
    )


@given(snapshots(), st.integers(1, 200), st.integers(1, 60), st.booleans())
def test_a_picture_never_goes_past_an_edge_nor_moves_the_cursor(
    shown: Snapshot, columns: int, lines: int, live: bool
) -> None:
    drawn = [as_text(line) for line in frame(shown, Size(columns, lines), NOW, live=live)]
    assert len(drawn) <= lines
    assert all(cells.width(line) <= columns for line in drawn)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for line in drawn for character in line)


def some_jobs(count: int, total: int) -> Snapshot:
    queued = tuple({"id": id_, "state": "queued", "command": f"command {id_}"} for id_ in range(1, count + 1))
    return Snapshot("1", "here", (), queued, {"queued": total}, (), 1, 100.0)


def test_jobs_that_have_no_line_are_counted() -> None:
    for lines in (8, 12, 30):
        drawn = [as_text(line) for line in frame(some_jobs(100, 2_500), Size(80, lines), NOW)]
        rows = sum("command" in line for line in drawn)
        assert rows > 0
        assert f"and {2_500 - rows:,} more" in drawn
    assert not any("more" in as_text(line) for line in frame(some_jobs(3, 3), Size(80, 24), NOW))


def test_times_go_on_between_two_looks_and_stand_still_while_the_broker_is_away() -> None:
    job = {"id": 1, "state": "running", "duration_s": 60.0}
    heard = Snapshot("1", "here", (), (job,), {"running": 1}, (), 1, 95.0)
    away = Snapshot("1", "here", (), (job,), {"running": 1}, (), 1, 95.0, trouble="no broker is running")
    assert "1:05" in "\n".join(map(as_text, frame(heard, Size(80, 24), NOW)))
    shown = "\n".join(map(as_text, frame(away, Size(80, 24), NOW)))
    assert "1:00" in shown
    assert "reconnecting; last heard 5.0 s ago: no broker is running" in shown


def test_a_job_that_says_how_far_it_is_has_a_bar() -> None:
    job = {"id": 1, "state": "running", "progress": {"fraction": 0.42, "message": "epoch 3\x1b[2J"}}
    shown = Snapshot("1", "here", (), (job,), {"running": 1}, (), 1, 95.0)
    drawn = "\n".join(map(as_text, frame(shown, Size(100, 24), NOW, plain_bars=True)))
    assert "####...... 42 % epoch 3 [2J" in drawn


def test_a_bar_is_full_only_if_all_is_used_and_empty_only_if_nothing_is() -> None:
    assert bar(0, 64, 8, plain=True) == "........"
    assert bar(0.1, 64, 8, plain=True) == "#......."
    assert bar(63.9, 64, 8, plain=True) == "#######."
    assert bar(64, 64, 8, plain=True) == "########"
    assert bar(70, 64, 8, plain=True) == "########"
    assert bar(0, 0, 8, plain=True) == "........"


def test_text_is_cut_and_padded_by_what_it_takes_in_a_terminal() -> None:
    assert [cells.width(text) for text in ("abc", "你好", "e\u0301", "👍")] == [3, 4, 1, 2]
    assert cells.cut("你好吗", 4) == "你…"
    assert cells.pad(cells.cut("你好吗", 4), 4) == "你… "
    assert cells.cut("abc", 3) == "abc"
    assert cells.cut("abc", 0) == ""
    assert cells.pad("7", 3, right=True) == "  7"
