"""A directory as one file, and back: the same bytes for the same content, and nothing ever outside."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from broker.snapshots import archive
from broker.snapshots.unpacking import NotACopy, unpack
from broker.wire.problems import Refused

MOST = 1 << 20


def copied(directory: Path, most: int = MOST) -> bytes:
    target = io.BytesIO()
    sha256 = archive.write(directory, target, most)
    assert sha256 == hashlib.sha256(target.getvalue()).hexdigest()
    return target.getvalue()


def unpacked(data: bytes, tmp_path: Path) -> Path:
    (tmp_path / "a.tar").write_bytes(data)
    unpack(tmp_path / "a.tar", tmp_path / "target")
    return tmp_path / "target"


def tar(*members: tarfile.TarInfo, content: bytes = b"") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as file:
        for member in members:
            file.addfile(member, io.BytesIO(content[: member.size]))
    return target.getvalue()


def link(name: str, to: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, to
    return member


def regular(name: str, size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "code"
    (directory / "pkg").mkdir(parents=True)
    (directory / "pkg" / "a.py").write_text("a")
    (directory / "run.sh").write_text("#!/bin/sh\n")
    (directory / "run.sh").chmod(0o700)
    (directory / "latest").symlink_to("pkg/a.py")
    (directory / ("long" * 50)).write_text("l")
    (directory / os.fsdecode(b"caf\xe9")).write_text("not utf-8")
    return directory


@pytest.mark.parametrize("in_git", [False, True], ids=["no repository", "a repository"])
def test_it_comes_back_as_it_was_without_what_gitignore_leaves_out(code: Path, tmp_path: Path, in_git: bool) -> None:
    (code / ".gitignore").write_text("*.log\n/build/\n")
    (code / "x.log").touch()
    (code / "build").mkdir()
    (code / "build" / "out").touch()
    if in_git:
        subprocess.run(["git", "init", "-q"], cwd=code, check=True)
    target = unpacked(copied(code), tmp_path)
    names = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert names == {
        ".gitignore",
        "pkg",
        "pkg/a.py",
        "run.sh",
        "latest",
        "long" * 50,
        os.fsdecode(b"caf\xe9"),
    }
    assert os.readlink(target / "latest") == "pkg/a.py"
    assert os.access(target / "run.sh", os.X_OK)
    assert not os.access(target / "pkg" / "a.py", os.X_OK)


def test_the_bytes_depend_on_the_content_only(code: Path, tmp_path: Path) -> None:
    first = copied(code)
    os.utime(code / "run.sh", (1, 1))
    (code / "pkg" / "a.py").chmod(0o600)
    other = tmp_path / "other"
    code.rename(other)
    assert copied(other) == first


def test_a_repository_within_comes_with_its_own_rules_and_without_its_history(code: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=code, check=True)
    inner = code / "inner"
    inner.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=inner, check=True)
    (inner / ".gitignore").write_text("*.o\n")
    (inner / "x.o").touch()
    (inner / "x.c").touch()
    target = unpacked(copied(code), tmp_path)
    assert {path.name for path in (target / "inner").iterdir()} == {".gitignore", "x.c"}


def test_part_of_a_repository_is_a_copy_of_that_part(code: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=code, check=True)
    assert [path.name for path in unpacked(copied(code / "pkg"), tmp_path).iterdir()] == ["a.py"]


def test_sockets_and_pipes_are_left_out(code: Path) -> None:
    before = copied(code)
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(code / "s.sock"))
        assert copied(code) == before


@pytest.mark.parametrize("to", ["/etc/passwd", "../outside", "pkg/../../outside"])
def test_a_link_that_leads_out_is_refused_and_named(code: Path, to: str) -> None:
    (code / "out").symlink_to(to)
    with pytest.raises(Refused, match="out leads out of"):
        copied(code)


def test_what_is_too_large_is_refused_before_it_is_read_with_the_largest_first(code: Path) -> None:
    (code / "big").write_bytes(b"b" * 3_000_000)
    with pytest.raises(Refused, match=r"the largest: big \(3\.0 MB\)"):
        copied(code)


def test_what_is_allowed_is_never_larger_as_a_file(code: Path) -> None:
    most = MOST
    while True:
        try:
            assert len(copied(code, most)) <= most
        except Refused:
            return
        most = most * 9 // 10


@pytest.mark.guarantee("G48")
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([regular("/abs")], "no name within it"),
        ([regular("../up")], "no name within it"),
        ([regular("a/../../up")], "no name within it"),
        ([link("l", "/etc")], "leads out"),
        ([link("l", "..")], "leads out"),
        ([link("d/l", "../.."), regular("d/x")], "leads out"),
        ([regular("a/b/x"), link("m", "a/b"), link("n", "m/../../..")], "leads out"),
        ([link("l", "/tmp"), regular("l/x")], "leads out|exists"),
        ([regular("x"), regular("x")], "exists"),
    ],
)
def test_an_archive_that_would_leave_its_place_is_refused_whole(
    members: list[tarfile.TarInfo], why: str, tmp_path: Path
) -> None:
    with pytest.raises((NotACopy, OSError), match=why):
        unpacked(tar(*members), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar"]


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE, tarfile.BLKTYPE])
def test_devices_pipes_and_hard_links_are_refused(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(NotACopy, match="neither a file"):
        unpacked(tar(member), tmp_path)


def test_a_compressed_one_and_one_that_is_cut_off_are_refused(code: Path, tmp_path: Path) -> None:
    whole = copied(code)
    with pytest.raises(NotACopy):
        unpacked(b"\x1f\x8b" + whole, tmp_path)
    with pytest.raises(NotACopy):
        unpacked(tar(regular("x", 5000), content=b"x" * 5000)[:2000], tmp_path)


def test_one_that_says_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    sparse = regular("x")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    with pytest.raises(NotACopy):
        unpacked(tar(sparse), tmp_path)
    assert not (tmp_path / "target").exists()
