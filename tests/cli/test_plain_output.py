"""Output of jobs is not trusted with the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobd_mcp.cli.plain import Plain

SEQUENCES = [b"\x1b[31m", b"\x1b[0m", b"\x1b[2J", b"\x1b]0;title\x07", b"\x1b]8;;x\x1b\\", b"\x1bc", b"\x9b2J", b"\x00"]
bytes_with_sequences = st.lists(st.one_of(st.binary(max_size=8), st.sampled_from(SEQUENCES)), max_size=12).map(b"".join)


def shown(data: bytes, *, colours: bool = False) -> str:
    plain = Plain(colours=colours)
    return plain.feed(data) + plain.feed(b"", final=True)


def test_text_newlines_tabs_and_progress_returns_stay() -> None:
    assert shown("a\tb\r 50 %\rdone ✓\n".encode()) == "a\tb\r 50 %\rdone ✓\n"


def test_a_title_a_link_a_clear_and_a_reset_are_taken_out() -> None:
    assert shown(b"a\x1b]0;owned\x07b\x1b]8;;http://x\x1b\\c\x1b[2Jd\x1bce") == "abcde"


def test_colours_stay_only_where_they_are_wanted() -> None:
    data = b"\x1b[1;31mred\x1b[0m\x1b[2J"
    assert shown(data) == "red"
    assert shown(data, colours=True) == "\x1b[1;31mred\x1b[0m"


def test_invalid_utf8_is_shown_as_a_replacement() -> None:
    assert shown(b"a\xff\xfeb") == "a��b"


@given(bytes_with_sequences, st.data())
def test_where_the_bytes_are_cut_changes_nothing(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=5)))
    plain = Plain(colours=True)
    parts = [plain.feed(data[start:end]) for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert "".join([*parts, plain.feed(b"", final=True)]) == shown(data, colours=True)


@given(bytes_with_sequences)
def test_no_control_character_but_whitespace_is_ever_left(data: bytes) -> None:
    assert not [char for char in shown(data) if (ord(char) < 32 and char not in "\t\n\r") or 127 <= ord(char) < 160]
