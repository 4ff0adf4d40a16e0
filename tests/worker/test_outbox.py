"""What jobs leave in their files, whatever they put there, and how it gets to the broker over all faults."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from broker.client import Unreachable
from broker.wire.jobs import Progress
from broker.wire.outcomes import MOST_RESULT_BYTES, MOST_WARNINGS, OutcomeLimits
from broker.wire.problems import ProblemCode, Refused
from support.scripted_broker import ScriptedBroker
from worker.outbox import Outbox
from worker.parcels import PIECE_BYTES, Parcels, Sender

LIMITS = OutcomeLimits(artifact_bytes=10_000_000, artifacts_bytes=20_000_000, artifacts=50)
SENDER = Sender(1, 1, "t")


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    made = Outbox(tmp_path / "outbox" / "1.1")
    made.make()
    return made


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


def parcels(broker: ScriptedBroker) -> Parcels:
    return Parcels(broker, "a" * 32, 1, lambda refusal: None)


async def send_all(broker: ScriptedBroker, outbox: Outbox) -> None:
    left = outbox.collect(LIMITS)
    await asyncio.wait_for(parcels(broker).rest(SENDER, outbox, left, with_result=True), 30)


# ---- progress


def test_the_last_whole_line_counts_and_at_the_end_also_one_without_its_newline(outbox: Outbox) -> None:
    assert outbox.how_far() is None
    outbox.progress.write_text("0.1 a\n0.2 b\n0.")
    assert outbox.how_far() == Progress(fraction=0.2, message="b")
    with outbox.progress.open("a") as file:
        file.write("3 c")
    assert outbox.how_far() == Progress(fraction=0.2, message="b")
    assert outbox.how_far(at_the_end=True) == Progress(fraction=0.3, message="c")


@pytest.mark.parametrize(
    "rest",
    [
        b"x" * 100_000,
        b"x" * 100_000 + b"\n",
        b"\x00\xff\xfe\x1b[2J\n",
        b"nan\nworse\n",
        bytes(range(255, -1, -1)),
        b"\n" * 9,
    ],
)
def test_what_says_nothing_leaves_what_was_said_before(outbox: Outbox, rest: bytes) -> None:
    outbox.progress.write_bytes(b"0.25 well\n")
    assert outbox.how_far() == Progress(fraction=0.25, message="well")
    with outbox.progress.open("ab") as file:
        file.write(rest)
    assert outbox.how_far() == Progress(fraction=0.25, message="well")


def test_a_file_that_is_written_anew_each_time_is_understood(outbox: Outbox) -> None:
    for step in range(3):
        outbox.progress.write_text(f"0.{step} step {step}\n" + " " * step)
        assert outbox.how_far() == Progress(fraction=step / 10, message=f"step {step}")


@pytest.mark.guarantee("G44")
def test_neither_a_link_nor_a_pipe_nor_a_directory_is_read(outbox: Outbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0.5 secret\n")
    for path in (outbox.progress, outbox.result, outbox.artifacts / "link"):
        path.symlink_to(secret)
    (outbox.artifacts / "out").symlink_to(tmp_path)
    os.mkfifo(outbox.artifacts / "pipe")
    assert outbox.how_far(at_the_end=True) is None
    left = outbox.collect(LIMITS)
    assert (left.result, left.artifacts) == (None, ())
    assert left.warnings[0] == "JOBD_RESULT_FILE is not kept: it is a link"
    assert sorted(left.warnings[1:]) == [
        "artifact link is not kept: a link",
        "artifact out is not kept: a link",
        "artifact pipe is not kept: no regular file",
    ]
    outbox.progress.unlink()
    os.mkfifo(outbox.progress)
    assert outbox.how_far() is None


def test_a_directory_that_became_a_link_leads_nowhere(outbox: Outbox, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("x")
    (outbox.artifacts / "sub").mkdir()
    (outbox.artifacts / "sub" / "secret").write_text("mine")
    assert outbox.collect(LIMITS).artifacts == (("sub/secret", 4),)
    (outbox.artifacts / "sub").rename(outbox.artifacts / "moved")
    (outbox.artifacts / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="sub"):
        outbox.opened("sub/secret")
    (outbox.artifacts / "moved" / "secret").unlink()
    (outbox.artifacts / "moved").rmdir()
    (outbox.artifacts / "sub").unlink()
    outbox.artifacts.rmdir()
    outbox.artifacts.symlink_to(tmp_path / "elsewhere")
    left = outbox.collect(LIMITS)
    assert left.artifacts == ()
    assert len(left.warnings) == 1


# ---- results and files


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "it is empty"), (b"{", "not valid JSON"), (b" " * MOST_RESULT_BYTES + b"1", "larger than 256 KiB")],
)
def test_a_result_that_is_none_is_a_warning(outbox: Outbox, data: bytes, why: str) -> None:
    outbox.result.write_bytes(data)
    left = outbox.collect(LIMITS)
    assert left.result is None
    [warning] = left.warnings
    assert why in warning
    assert left.left is not None


def test_most_jobs_leave_nothing(outbox: Outbox) -> None:
    assert outbox.is_empty()
    assert outbox.collect(LIMITS).left is None
    outbox.progress.write_text("1\n")
    assert outbox.is_empty()
    outbox.result.write_text("1")
    assert not outbox.is_empty()
    assert Outbox(outbox.directory / "absent").is_empty()


def test_what_is_over_a_limit_is_left_out_and_said(outbox: Outbox) -> None:
    for number in range(100):
        (outbox.artifacts / f"{number:03}").write_bytes(b"x" * (number + 1))
    left = outbox.collect(OutcomeLimits(artifact_bytes=50, artifacts_bytes=10_000, artifacts=20))
    assert [name for name, _ in left.artifacts] == [f"{number:03}" for number in range(20)]
    assert len(left.warnings) == MOST_WARNINGS
    assert left.warnings[-1] == "71 more files are not kept, likewise"
    few = outbox.collect(OutcomeLimits(artifact_bytes=50, artifacts_bytes=10, artifacts=20))
    assert sum(size for _, size in few.artifacts) <= 10
    assert any("0 MiB are kept in all" in warning for warning in few.warnings)


def test_names_that_are_no_text_or_too_deep_are_left_out_and_said(outbox: Outbox) -> None:
    (outbox.artifacts / os.fsdecode(b"\xff")).write_text("x")
    (outbox.artifacts / "new\nline").write_text("x")
    (outbox.artifacts / "good").write_text("x")
    deep = outbox.artifacts
    for _ in range(30):
        deep /= "deeper-and-deeper"
        deep.mkdir()
    (deep / "file").write_text("x")
    left = outbox.collect(LIMITS)
    assert left.artifacts == (("good", 1),)
    assert len(left.warnings) == 3
    assert all(warning.isprintable() for warning in left.warnings)


# ---- on their way


async def test_files_arrive_whole_over_lost_requests_and_lost_answers(outbox: Outbox, broker: ScriptedBroker) -> None:
    data = os.urandom(2 * PIECE_BYTES + 17)
    (outbox.artifacts / "sub").mkdir()
    (outbox.artifacts / "sub" / "large").write_bytes(data)
    (outbox.artifacts / "empty").write_bytes(b"")
    outbox.result.write_text('{"a": [1, null]}')
    trouble = iter(
        [Unreachable("lost"), None, Unreachable("lost"), Refused(ProblemCode.STORAGE_FULL, "full")] + 9 * [None]
    )

    def fault(name: str, offset: int) -> None:
        if name == "sub/large" and (error := next(trouble)) is not None:
            raise error

    broker.before_piece = broker.after_piece = fault
    await send_all(broker, outbox)
    assert bytes(broker.artifacts[1, "sub/large"]) == data
    assert bytes(broker.artifacts[1, "empty"]) == b""
    assert broker.results == {1: b'{"a":[1,null]}'}
    assert max(length for *_, length in broker.pieces) <= PIECE_BYTES


async def test_the_next_worker_goes_on_where_the_broker_stands(outbox: Outbox, broker: ScriptedBroker) -> None:
    data = os.urandom(3 * PIECE_BYTES)
    (outbox.artifacts / "m").write_bytes(data)
    broker.artifacts[1, "m"] += data[: 2 * PIECE_BYTES]
    await send_all(broker, outbox)
    assert [offset for _, offset, _ in broker.pieces] == [0, 2 * PIECE_BYTES]
    assert bytes(broker.artifacts[1, "m"]) == data


async def test_what_the_broker_wants_none_of_ends_the_sending(outbox: Outbox, broker: ScriptedBroker) -> None:
    for name in ("a", "b"):
        (outbox.artifacts / name).write_bytes(b"x")

    def refuse(name: str, offset: int) -> None:
        if name == "a":
            raise Refused(ProblemCode.STALE_ASSIGNMENT, "over")

    broker.before_piece = refuse
    await send_all(broker, outbox)
    assert [name for name, *_ in broker.pieces] == ["a", "b"]


async def test_a_file_that_shrinks_while_it_is_sent_ends_the_sending(outbox: Outbox, broker: ScriptedBroker) -> None:
    file = outbox.artifacts / "m"
    file.write_bytes(os.urandom(2 * PIECE_BYTES))

    def shrink(name: str, offset: int) -> None:
        file.write_bytes(b"short")
        broker.artifacts[1, name].clear()
        broker.after_piece = lambda name, offset: None

    broker.after_piece = shrink
    await send_all(broker, outbox)
    assert bytes(broker.artifacts[1, "m"]) == b"short"


async def test_an_end_waits_for_its_result_only_for_a_while(broker: ScriptedBroker) -> None:
    def away(job: int) -> None:
        raise Unreachable("away")

    broker.before_result = away
    assert await parcels(broker).result(SENDER, b"1", within_s=0.2) is False

    def lost(job: int) -> None:
        raise Refused(ProblemCode.LEASE_LOST, "lost")

    broker.before_result = lost
    assert await parcels(broker).result(SENDER, b"1") is False
