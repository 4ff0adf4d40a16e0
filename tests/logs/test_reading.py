"""Views of a log: exactly the lines that were asked for, whatever their bytes, and cursors without gap or repeat."""

from __future__ import annotations

import random
import re
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.logs import lines, reading, searching
from broker.logs.files import LogFiles
from broker.logs.index import Segment, Stream, row
from broker.logs.lines import KEPT_BYTES
from broker.logs.reading import Shown, View
from broker.logs.searching import BadPattern, Request


def data(shown: Shown) -> bytes:
    assert not shown.line.skipped
    return shown.line.head + shown.line.tail


def contents(view: View) -> list[bytes]:
    return [data(shown) for shown in view.lines]


@pytest.mark.trial("B84")
@pytest.mark.parametrize("wanted", [1, 2, 99, 100, 101])
@pytest.mark.parametrize("count", [0, 1, 99, 100, 15_000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last_ended", [True, False])
def test_the_last_lines_are_exactly_those(log_of, wanted: int, count: int, ending: bytes, last_ended: bool) -> None:
    all_lines = [b"line %d" % number for number in range(count)]
    text = ending.join(all_lines) + (ending if last_ended and count else b"")
    view = reading.tail(log_of(text), wanted, complete=True)
    assert [line.removesuffix(b"\r") for line in contents(view)] == all_lines[-wanted:]
    assert view.end == len(text)
    assert text[: view.start].count(b"\n") == max(0, count - wanted)
    assert text[view.start :] == ending.join(all_lines[-wanted:]) + (ending if last_ended and count else b"")


def test_the_first_lines_are_numbered(log_of) -> None:
    view = reading.head(log_of(b"a\n\nc\nd\n"), 3)
    assert [(shown.number, data(shown)) for shown in view.lines] == [(1, b"a"), (2, b""), (3, b"c")]
    assert (view.start, view.end, view.size) == (0, 5, 7)


@pytest.mark.trial("B84")
def test_pages_from_cursor_to_cursor_give_every_line_once(log_of) -> None:
    text = b"".join(b"%d: %s\n" % (number, "é".encode() * (number % 7)) for number in range(1000))
    snapshot = log_of(text)
    cursor, seen = 0, []
    while cursor < len(text):
        view = reading.page(snapshot, cursor, 37)
        assert view.start == cursor
        seen += contents(view)
        cursor = view.end
    assert b"".join(line + b"\n" for line in seen) == text
    assert reading.page(snapshot, cursor, 37).lines == ()


@pytest.mark.trial("B78")
@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("padding", [*range(6), 4093, 4094, 4095])
def test_a_character_cut_at_the_end_waits_until_it_is_whole(files: LogFiles, character: str, padding: int) -> None:
    encoded = character.encode()
    whole = b"x" * padding + encoded
    for cut in range(1, len(encoded)):
        job = padding * 10 + cut + 1
        files.append(job, 1, "log", 0, whole[:-cut])
        with files.opened(job, 1) as snapshot:
            for view in (reading.tail(snapshot, 5), reading.page(snapshot, 0, 5)):
                assert (view.end, b"".join(contents(view))) == (padding, b"x" * padding)
            assert reading.changes(snapshot, 0, 1 << 20).end == padding
            assert reading.tail(snapshot, 5, complete=True).end == len(whole) - cut
        files.append(job, 1, "log", len(whole) - cut, whole[len(whole) - cut :])
        with files.opened(job, 1) as snapshot:
            assert b"".join(contents(reading.page(snapshot, padding, 5))) == encoded


@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_cursor_inside_a_character_begins_after_it(log_of, character: str) -> None:
    snapshot = log_of(b"ab" + character.encode() + b"cd\n")
    for inside in range(1, len(character.encode())):
        view = reading.page(snapshot, 2 + inside, 5)
        assert (view.start, contents(view)) == (2 + len(character.encode()), [b"cd"])
        assert not view.lines[0].line.whole


def test_a_cursor_among_invalid_bytes_skips_none_of_them(log_of) -> None:
    snapshot = log_of(b"\x80\x80\xbf\xe2\x28\xa1\n")
    for cursor in range(7):
        assert reading.page(snapshot, cursor, 5).start == cursor


@pytest.mark.trial("B78")
@given(text=st.text(max_size=300), steps=st.lists(st.integers(4, 40), min_size=1), cut=st.integers(0, 400))
@settings(max_examples=60)
def test_what_a_follower_gets_is_valid_text_at_every_step(tmp_path_factory, text: str, steps, cut: int) -> None:
    files, encoded = LogFiles(tmp_path_factory.mktemp("logs")), text.encode()
    files.append(1, 1, "log", 0, encoded[:cut])
    offset, got, turn = 0, "", 0
    while True:
        with files.opened(1, 1) as snapshot:
            new = reading.changes(snapshot, offset, steps[turn % len(steps)])
        assert new.start == offset
        got += new.data.decode()  # strict: no character is ever cut
        turn, offset = turn + 1, new.end
        if not new.data and files.size(1, 1) == len(encoded):
            break
        if not new.data:
            files.append(1, 1, "log", len(encoded[:cut]), encoded[cut:])
    assert got == text


MIXED = ((1, b"out 1\nout"), (2, b"err 1\n"), (1, b" 2\n"), (2, b"err 2\nerr"), (1, b"out 3\n"), (2, b" 3"))


def test_the_two_streams_are_told_apart(log_of) -> None:
    snapshot = log_of(*MIXED)
    out, err = Stream.STDOUT, Stream.STDERR
    assert contents(reading.head(snapshot, 9, stream=out)) == [b"out 1", b"out 2", b"out 3"]
    assert contents(reading.head(snapshot, 9, stream=err)) == [b"err 1", b"err 2", b"err 3"]
    assert contents(reading.tail(snapshot, 2, stream=out)) == [b"out 2", b"out 3"]
    assert contents(reading.tail(snapshot, 2, stream=err)) == [b"err 2", b"err 3"]
    assert reading.changes(snapshot, 0, 99, stream=err).data == b"err 1\nerr 2\nerr 3"
    found = reading.grep(snapshot, re.compile("2"), stream=err, context=1)
    assert [(shown.number, shown.matches) for shown in found.lines] == [(1, False), (2, True), (3, False)]


@given(st.data())
@settings(max_examples=80)
def test_pages_and_tails_of_a_stream_agree_with_its_bytes(tmp_path_factory, draw) -> None:
    pieces = draw.draw(
        st.lists(st.tuples(st.sampled_from([1, 2]), st.text("aé€\n", min_size=1, max_size=9)), max_size=30)
    )
    files, end = LogFiles(tmp_path_factory.mktemp("logs")), 0
    for at, (number, piece) in enumerate(pieces):
        files.append(1, 1, "index", at * 24, row(Segment(end, len(piece.encode()), number, 0.0)))
        end = files.append(1, 1, "log", end, piece.encode()).size
    with files.opened(1, 1) as snapshot:
        for stream in Stream:
            text = "".join(piece for number, piece in pieces if number == stream.number).encode()
            expected = text.split(b"\n")[: -1 if not text or text.endswith(b"\n") else None]
            count = draw.draw(st.integers(1, 6))
            assert contents(reading.tail(snapshot, count, stream=stream)) == expected[-count:]
            cursor, seen = 0, []
            while (view := reading.page(snapshot, cursor, count, stream=stream)).lines:
                seen += contents(view)
                cursor = view.end
            assert seen == expected
            limit = draw.draw(st.integers(4, 50))
            cursor, got = 0, b""
            while (new := reading.changes(snapshot, cursor, limit, stream=stream)).data:
                got, cursor = got + new.data, new.end
                got.decode()
            assert got == text


def test_an_index_that_lags_behind_or_is_torn_ends_the_view_where_it_ends(files: LogFiles) -> None:
    files.append(1, 1, "log", 0, b"out\nerr\nunknown\n")
    files.append(1, 1, "index", 0, row(Segment(0, 4, 1, 0.0)) + row(Segment(4, 4, 2, 0.0)) + b"torn")
    with files.opened(1, 1) as snapshot:
        view = reading.tail(snapshot, 9, stream=Stream.STDERR)
        assert (contents(view), view.end) == ([b"err"], 8)
        assert reading.tail(snapshot, 9, stream=Stream.STDERR, complete=True).end == 8
        assert len(reading.tail(snapshot, 9).lines) == 3


def test_grep_shows_context_once_and_numbers_lines(log_of) -> None:
    snapshot = log_of(b"".join(b"line %d\n" % number for number in range(1, 101)))
    view = reading.grep(snapshot, re.compile("^line (5|6|9|50)$"), context=2)
    assert [shown.number for shown in view.lines] == [3, 4, 5, 6, 7, 8, 9, 10, 11, 48, 49, 50, 51, 52]
    assert [shown.number for shown in view.lines if shown.matches] == [5, 6, 9, 50]
    assert (view.start, view.end) == (0, view.size)


def test_grep_goes_on_after_its_last_match_with_the_right_numbers(log_of) -> None:
    snapshot = log_of(b"".join(b"line %d\n" % number for number in range(1, 101)))
    cursor, numbers = 0, []
    while (view := reading.grep(snapshot, re.compile("0$"), most=3, context=1, cursor=cursor)).lines:
        numbers += [shown.number for shown in view.lines if shown.matches]
        cursor = view.end
    assert numbers == list(range(10, 101, 10))


def test_grep_finds_in_coloured_text_and_in_an_unfinished_line_again_when_it_has_grown(log_of) -> None:
    snapshot = log_of(b"\x1b[1;31mER\x1b[0mROR\nerr")
    view = reading.grep(snapshot, re.compile("(?i)^err"))
    assert [shown.number for shown in view.lines] == [1, 2]
    assert view.end == snapshot.size - 3
    assert reading.grep(snapshot, re.compile("err"), complete=True).end == snapshot.size


def test_grep_in_its_own_process_gives_the_same(log_of) -> None:
    snapshot = log_of(*MIXED)
    request = Request("ERR", context=1, ignore_case=True, stream=Stream.STDERR, most=2)
    expected = reading.grep(snapshot, re.compile("err", re.IGNORECASE), context=1, stream=Stream.STDERR, most=2)
    assert searching.grep(snapshot, request) == expected
    assert len(expected.lines) == 3


def test_a_pattern_that_takes_for_ever_is_stopped_and_says_so(log_of) -> None:
    snapshot = log_of(b"a" * 200 + b"\n")
    started = time.monotonic()
    with pytest.raises(BadPattern, match="nested repeats"):
        searching.grep(snapshot, Request("(a+)+$b", limit_s=0.2))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("pattern", ["(", "*", "a{99999999999}", "(?P<", "x" * 2000])
def test_what_is_no_pattern_is_refused_with_the_reason(log_of, pattern: str) -> None:
    with pytest.raises(BadPattern):
        searching.grep(log_of(b"a\n"), Request(pattern))


def test_a_search_that_has_had_its_time_says_how_far_it_came(log_of) -> None:
    snapshot = log_of(b"".join(b"line %d\n" % number for number in range(2000)))
    view = reading.grep(snapshot, re.compile("nothing"), enough=lambda: True)
    assert 0 < view.end < view.size
    assert snapshot.read(view.end - 1, 1) == b"\n"


def test_one_line_of_five_megabytes_is_read_in_little_memory(log_of) -> None:
    snapshot = log_of(b"before\n" + b"x" * 5_000_000 + b"y\n" + b"after\n")
    tracemalloc.start()
    views = [reading.tail(snapshot, 2), reading.page(snapshot, 7, 2)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    for view in views:
        long, after = (shown.line for shown in view.lines)
        assert (long.start, long.end, after.head) == (7, 5_000_009, b"after")
        assert len(long.head) + long.skipped + len(long.tail) == 5_000_001
        assert (len(long.head), long.head[:1], long.tail[-1:]) == (KEPT_BYTES, b"x", b"y")


def test_a_line_longer_than_a_view_looks_at_is_read_in_pieces(files: LogFiles) -> None:
    size = reading.SCAN_BYTES + 1000
    files.append(1, 1, "log", 0, b"x" * size)
    with files.opened(1, 1) as snapshot:
        last = reading.tail(snapshot, 1)
        first = reading.page(snapshot, 0, 1)
        second = reading.page(snapshot, first.end, 1)
    assert (last.start, last.end, last.lines[0].line.whole) == (1000, size, False)
    assert (first.end, first.lines[0].line.whole) == (reading.SCAN_BYTES, True)
    assert (second.end, second.lines[0].line.whole) == (size, False)


def test_views_of_many_long_lines_keep_a_bounded_part_at_their_own_end(log_of) -> None:
    snapshot = log_of(b"".join(b"%04d" % number + b"x" * 8000 + b"\n" for number in range(400)))
    last, first = reading.tail(snapshot, 400), reading.page(snapshot, 0, 400)
    assert 100 < len(last.lines) < 140
    assert last.lines[-1].line.head.startswith(b"0399")
    assert last.start == last.lines[0].line.start
    assert 100 < len(first.lines) < 140
    assert first.end == first.lines[-1].line.end


@pytest.mark.trial("B79")
def test_random_bytes_are_read_whole_by_every_view(log_of) -> None:
    text = random.Random(5).randbytes(300_000)
    snapshot = log_of(text)
    cursor, got = 0, b""
    while (new := reading.changes(snapshot, cursor, 7777, complete=True)).data:
        got, cursor = got + new.data, new.end
    assert got == text
    assert contents(reading.tail(snapshot, 50, complete=True)) == text.split(b"\n")[-50:]
    assert lines.start_of_last(snapshot, 10**9, 0, len(text), None) == (0, True)
