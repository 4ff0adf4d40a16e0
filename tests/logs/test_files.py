"""Files addressed by byte offset: what is acknowledged is there once, in order, or not at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker.core.storage import StorageFailed, StorageFull
from broker.logs.files import Appended, Gap, LogFiles, _name
from support.requirements import require


def test_bytes_are_kept_at_a_path_made_of_numbers_for_their_user_alone(files: LogFiles, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        assert files.append(12_345, 2, "log", 0, b"abc") == Appended(3, duplicate=False)
        assert files.append(12_345, 2, "index", 0, b"x" * 24) == Appended(24, duplicate=False)
    finally:
        os.umask(old)
    directory = tmp_path / "logs" / "12" / "12345"
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == {"2.log": 0o600, "2.idx": 0o600}
    assert [path.stat().st_mode & 0o777 for path in (directory, directory.parent, directory.parent.parent)] == [
        0o700
    ] * 3
    assert (directory / "2.log").read_bytes() == b"abc"


def test_what_is_there_is_skipped_and_the_rest_appended(files: LogFiles) -> None:
    files.append(1, 1, "log", 0, b"abcdef")
    assert files.append(1, 1, "log", 2, b"cd") == Appended(6, duplicate=True)
    assert files.append(1, 1, "log", 6, b"") == Appended(6, duplicate=True)
    assert files.append(1, 1, "log", 4, b"efgh") == Appended(8, duplicate=False)
    assert files.read(1, 1, 0, 100) == b"abcdefgh"


@pytest.mark.guarantee("G15")
def test_a_gap_is_refused_with_the_size_and_changes_nothing(files: LogFiles) -> None:
    files.append(1, 1, "log", 0, b"abc")
    with pytest.raises(Gap) as refused:
        files.append(1, 1, "log", 4, b"e")
    assert refused.value.size == 3
    assert files.size(1, 1) == 3
    with pytest.raises(ValueError, match="negative"):
        files.append(1, 1, "log", -1, b"e")


def test_a_read_ends_at_the_end(files: LogFiles) -> None:
    files.append(1, 1, "log", 0, b"abcdef")
    assert [files.read(1, 1, offset, 4) for offset in (0, 4, 6, 99)] == [b"abcd", b"ef", b"", b""]
    assert files.read(1, 2, 0, 4) == b""


def test_pruned_is_told_apart_from_empty_and_removal_may_be_repeated(files: LogFiles, tmp_path: Path) -> None:
    assert not files.exists(1, 1)
    files.append(1, 1, "log", 0, b"")
    assert files.exists(1, 1)
    files.append(1, 2, "log", 0, b"abc")
    with files.opened(1, 2) as snapshot:
        files.remove(1)
        files.remove(1)
        assert snapshot.read(0, 10) == b"abc"
    assert not files.exists(1, 1)
    assert files.size(1, 2) == 0
    assert not (tmp_path / "logs" / "0" / "1").exists()
    assert files.append(1, 2, "log", 0, b"x") == Appended(1, duplicate=False)


def test_sync_says_how_much_is_safe(files: LogFiles) -> None:
    assert files.sync(1, 1) == 0
    files.append(1, 1, "log", 0, b"abc")
    assert files.sync(1, 1) == 3
    assert files.sync(1, 1, "index") == 0


@pytest.mark.parametrize("planted", ["file", "directory"])
def test_a_link_planted_in_the_place_of_a_log_is_not_followed(files: LogFiles, tmp_path: Path, planted: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1.log").write_bytes(b"secret")
    place = tmp_path / "logs" / "0" / "1"
    if planted == "file":
        place.mkdir(parents=True)
        (place / "1.log").symlink_to(outside / "1.log")
    else:
        place.parent.mkdir(parents=True)
        place.symlink_to(outside)
    with pytest.raises(StorageFailed):
        files.append(1, 1, "log", 6, b"more")
    with pytest.raises(StorageFailed):
        files.read(1, 1, 0, 100)
    assert (outside / "1.log").read_bytes() == b"secret"


def test_many_senders_of_the_same_bytes_leave_them_once(files: LogFiles) -> None:
    data = os.urandom(200_000)

    def send(step: int) -> None:
        offset = 0
        while offset < len(data):
            try:
                offset = files.append(1, 1, "log", offset, data[offset : offset + step]).size
            except Gap as gap:
                offset = gap.size

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(send, [997, 1013, 4096, 5000, 701, 65536, 333, 1]))
    assert files.read(1, 1, 0, len(data) + 1) == data


@pytest.mark.trial("B85")
def test_no_descriptor_stays_open(files: LogFiles) -> None:
    def use(job: int) -> None:
        files.append(job, 1, "log", 0, b"abc")
        files.read(job, 1, 0, 3)
        files.sync(job, 1)
        with pytest.raises(Gap):
            files.append(job, 1, "log", 9, b"abc")
        with files.opened(job, 1):
            pass

    use(1)
    before = len(os.listdir("/dev/fd"))
    for job in range(2, 300):
        use(job)
    assert len(os.listdir("/dev/fd")) == before
    assert threading.active_count() < 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "jobd-test", place], capture_output=True
    )
    require("a small file system", mounted.returncode == 0, how="run as root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_refuses_the_chunk_whole_and_takes_it_once_there_is_room(small_disk: Path) -> None:
    files = LogFiles(small_disk / "logs")
    files.append(1, 1, "log", 0, b"a" * 600_000)
    with pytest.raises(StorageFull):
        files.append(2, 1, "log", 0, b"b" * 600_000)
    assert files.size(2, 1) == 0
    assert files.append(2, 1, "log", 0, b"b" * 1000) == Appended(1000, duplicate=False)
    files.remove(1)
    assert files.append(2, 1, "log", 0, b"b" * 600_000) == Appended(600_000, duplicate=False)


TOO_LONG = """
import resource, signal, sys
from pathlib import Path
from broker.core.storage import StorageFailed
from broker.logs.files import LogFiles

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
files = LogFiles(Path(sys.argv[1]))
files.append(1, 1, "log", 0, b"a" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    files.append(1, 1, "log", 1000, b"b" * 9000)
except StorageFailed:
    print(files.size(1, 1))
"""


def test_a_torn_write_is_cut_off_again(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TOO_LONG, str(tmp_path / "logs")], capture_output=True, text=True)
    assert done.stdout == "1000\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 5000
    assert signal.getsignal(signal.SIGXFSZ) != signal.SIG_DFL or sys.platform != "linux"


class BlindAppend(LogFiles):
    """Planted: whatever comes is put at the end."""

    def append(self, job, attempt, part, offset, data):
        return super().append(job, attempt, part, self.size(job, attempt), data)


class TailOverwrite(LogFiles):
    """Planted: the file is cut where the bytes begin."""

    def append(self, job, attempt, part, offset, data):
        size = self.size(job, attempt)
        if offset < size:
            with self._file(job, _name(attempt, part), os.O_RDWR) as file:
                os.ftruncate(file, offset)
        return super().append(job, attempt, part, offset, data)


class FilledGap(LogFiles):
    """Planted: a gap is filled with zeros."""

    def append(self, job, attempt, part, offset, data):
        size = self.size(job, attempt)
        if offset > size:
            super().append(job, attempt, part, size, bytes(offset - size))
        return super().append(job, attempt, part, offset, data)


class LosesTheOverlap(LogFiles):
    """Planted: a chunk of which a part is there counts as there."""

    def append(self, job, attempt, part, offset, data):
        size = self.size(job, attempt)
        return Appended(size, duplicate=True) if offset < size else super().append(job, attempt, part, offset, data)


def machine(make: Callable[[Path], LogFiles], root: Path) -> type[RuleBasedStateMachine]:
    """A worker that sends its output over a bad line to a broker that may be killed in mid-write."""
    runs = iter(range(1, 1_000_000))

    class Sending(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.job = next(runs)
            self.files = make(root)
            self.source = b""
            self.cursor = self.acknowledged = 0
            self.sent: list[tuple[int, bytes]] = []

        @rule(data=st.binary(min_size=1, max_size=40))
        def the_process_prints(self, data: bytes) -> None:
            self.source += data

        @rule(length=st.integers(1, 64), answer_lost=st.booleans())
        def the_worker_sends(self, length: int, answer_lost: bool) -> None:
            data = self.source[self.cursor : self.cursor + length]
            self.sent.append((self.cursor, data))
            try:
                size = self.files.append(self.job, 1, "log", self.cursor, data).size
                arrived = self.cursor + len(data)
                assert size >= arrived
            except Gap as gap:
                size = gap.size
            if not answer_lost:
                self.cursor = size
                self.acknowledged = max(self.acknowledged, size)

        @rule(which=st.integers(0, 1_000_000))
        def a_late_double_arrives(self, which: int) -> None:
            if self.sent:
                offset, data = self.sent[which % len(self.sent)]
                try:
                    self.files.append(self.job, 1, "log", offset, data)
                except Gap:
                    assert offset > self.files.size(self.job, 1)

        @rule(kept=st.integers(1, 10))
        def the_broker_is_killed_in_mid_write(self, kept: int) -> None:
            size = self.files.size(self.job, 1)
            torn = self.source[size : size + kept]
            with self.files._file(self.job, "1.log", os.O_RDWR | os.O_CREAT) as file:
                os.pwrite(file, torn, size)
            self.files = make(root)

        @rule()
        def the_worker_restarts_and_asks(self) -> None:
            self.cursor = self.files.size(self.job, 1)

        @rule(steps=st.integers(1, 30), back=st.booleans())
        def the_worker_forgets_where_it_was(self, steps: int, back: bool) -> None:
            self.cursor = max(0, min(len(self.source), self.cursor + (-steps if back else steps)))

        @invariant()
        def the_log_is_what_was_printed(self) -> None:
            kept = self.files.read(self.job, 1, 0, 1 << 20)
            assert self.source.startswith(kept)
            assert len(kept) >= self.acknowledged

    return Sending


def run(make: Callable[[Path], LogFiles], root: Path, examples: int) -> None:
    run_state_machine_as_test(
        machine(make, root),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.guarantee("G15")
def test_the_log_is_always_an_exact_prefix_of_what_was_printed(tmp_path: Path) -> None:
    run(LogFiles, tmp_path / "logs", 100)


@pytest.mark.parametrize("bug", [BlindAppend, TailOverwrite, FilledGap, LosesTheOverlap])
def test_a_log_that_doubles_drops_or_makes_up_bytes_is_seen(bug: type[LogFiles], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run(bug, tmp_path / "logs", 300)
