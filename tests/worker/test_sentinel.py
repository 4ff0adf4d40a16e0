"""The line that tells of a safe checkpoint, in whichever pieces it comes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.process.records import STDERR, STDOUT
from worker.process.sentinel import LINE, Sentinel


def counted(*pieces: bytes) -> int:
    sentinel = Sentinel()
    buffer = bytearray(1 << 16)
    for piece in pieces:
        buffer[: len(piece)] = piece
        sentinel.look(STDOUT, buffer, len(piece))
    return sentinel.count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (LINE + b"\n", 1),
        (LINE + b"\r\n", 1),
        (b"step 5\n" + LINE + b"\nstep 6\n", 1),
        (b" 50%|####    |\r" + LINE + b"\n", 1),
        ((LINE + b"\n") * 3, 3),
        (LINE, 0),
        (LINE + b" no\n", 0),
        (b"say " + LINE + b"\n", 0),
        (LINE[:-1] + b"\n", 0),
        (b"", 0),
        (b"\n" * 1000, 0),
    ],
)
def test_a_line_of_its_own_counts_and_nothing_else(text: bytes, count: int) -> None:
    assert counted(text) == count
    assert counted(*(text[at : at + 1] for at in range(len(text)))) == count


PARTS = st.lists(st.sampled_from([LINE, LINE[:9], LINE[9:], b"\n", b"\r", b"x", b"\r\n", b"x" * 40]), max_size=12)


@given(PARTS, st.lists(st.integers(0, 400), max_size=8))
def test_it_does_not_matter_where_the_pieces_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(ends)]
    whole = sum(
        line.rpartition(b"\r")[2] == LINE for line in (one.removesuffix(b"\r") for one in text.split(b"\n")[:-1])
    )
    assert counted(*pieces) == whole


def test_the_streams_do_not_mix_and_old_bytes_of_the_buffer_do_not_count() -> None:
    sentinel = Sentinel()
    buffer = bytearray(1 << 10)
    for stream, piece in ((STDOUT, LINE[:10]), (STDERR, LINE[10:] + b"\n")):
        buffer[: len(piece)] = piece
        sentinel.look(stream, buffer, len(piece))
    assert sentinel.count == 0
    buffer[:40] = b"x\n" + LINE + b"\n" + b"y" * 13
    sentinel.look(STDERR, buffer, 1)
    assert sentinel.count == 0
