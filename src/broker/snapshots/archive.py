"""A directory as one file, the same bytes for the same content: names sorted, no times, no owners, no compression.

Without compression it can't grow when it is unpacked, and its name does not depend on a compressor's version. What
.gitignore leaves out stays out, also where there is no repository. Links stay links.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker.snapshots import git
from broker.wire.problems import ProblemCode, Refused

NAMED = 5  # files, when a copy is refused
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    info: os.stat_result
    link: str | None = None


class Target(Protocol):
    """Where the copy goes."""

    def write(self, data: bytes, /) -> int: ...


def write(directory: Path, target: Target, most_bytes: int) -> str:
    """The copy of `directory` into `target`; its sha256. Refused: too large, or a link leads out of it."""
    if not directory.is_dir():
        raise _refused(f"{directory} is not a directory here")
    entries = [_entry(directory, name) for name in sorted(names(directory), key=os.fsencode)]
    whole = [entry for entry in entries if entry is not None]
    _check_size(directory, whole, most_bytes)
    hashed = _Hashed(target)
    with tarfile.open(fileobj=hashed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in whole:
            _add(tar, directory, entry)
    return hashed.sha256.hexdigest()


def names(directory: Path) -> list[str]:
    """Files and links below it, without what .gitignore leaves out; into repositories within it too."""
    if git.has_repository(directory):
        found = git.listed(directory, "--cached", "--others")
    else:
        with tempfile.TemporaryDirectory(prefix="jobd-snapshot-") as scratch:
            git.make_repository(Path(scratch))
            found = git.listed(directory, "--others", index=Path(scratch))
    return list(_flat(directory, found))


def _flat(directory: Path, found: list[str]) -> Iterator[str]:
    for name in found:
        path = directory / name
        if path.is_dir() and not path.is_symlink():  # a repository of its own, or a submodule
            if git.has_repository(path) and (path / ".git").exists():
                yield from (os.path.join(name, below) for below in names(path))
        else:
            yield name


def _entry(directory: Path, name: str) -> Entry | None:
    """None: it is in the index and not on the disk any more, or is neither a file nor a link."""
    path = directory / name
    try:
        info = path.lstat()
        link = os.readlink(path) if stat.S_ISLNK(info.st_mode) else None
    except FileNotFoundError:
        return None
    if link is not None and not leads_inside(directory, path):
        raise _refused(f"{name} leads out of {directory}, to {link}", "leave it out with .gitignore")
    return Entry(name, info, link) if link is not None or stat.S_ISREG(info.st_mode) else None


def leads_inside(root: Path, link: Path) -> bool:
    """Whether a link, followed through all others, ends within `root`; and is no absolute one, which would not
    at another place."""
    if os.path.isabs(os.readlink(link)):
        return False
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(root))


def _check_size(directory: Path, entries: list[Entry], most_bytes: int) -> None:
    total = tarfile.RECORDSIZE + sum(_cost(entry) for entry in entries)
    if total <= most_bytes:
        return
    largest = sorted(entries, key=lambda entry: entry.info.st_size, reverse=True)[:NAMED]
    named = ", ".join(f"{entry.name} ({entry.info.st_size / 1e6:.1f} MB)" for entry in largest)
    raise Refused(
        ProblemCode.PAYLOAD_TOO_LARGE,
        f"snapshot: {directory} has {total / 1e6:.1f} MB and {most_bytes / 1e6:.1f} are allowed; the largest: {named}",
        field="snapshot",
        hint="leave them out with .gitignore, or set JOBD_SNAPSHOT_MB",
    )


def _cost(entry: Entry) -> int:
    """How much it takes at most: its content in blocks, a header, and others for a long name."""
    long = len(os.fsencode(entry.name)) + len(os.fsencode(entry.link or ""))
    blocks = -(-(0 if entry.link is not None else entry.info.st_size) // BLOCK) + 1
    return BLOCK * (blocks + 4 + 2 * long // BLOCK)


def _add(tar: tarfile.TarFile, directory: Path, entry: Entry) -> None:
    said = tarfile.TarInfo(entry.name)
    if entry.link is not None:
        said.type, said.linkname, said.mode = tarfile.SYMTYPE, entry.link, 0o777
        tar.addfile(said)
        return
    try:
        handle = os.open(directory / entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            content = file.read(entry.info.st_size + 1)
    except OSError as error:
        raise _refused(f"{entry.name} can't be read: {error.strerror or error}") from None
    if len(content) != entry.info.st_size:
        raise _refused(f"{entry.name} changed while it was copied", "submit again")
    said.size, said.mode = len(content), 0o755 if entry.info.st_mode & 0o100 else 0o644
    tar.addfile(said, io.BytesIO(content))


def _refused(why: str, hint: str | None = None) -> Refused:
    return Refused(ProblemCode.INVALID_SPEC, f"snapshot: {why}", field="snapshot", hint=hint)


class _Hashed(io.RawIOBase):
    """Writes through, and hashes what passes."""

    def __init__(self, target: Target) -> None:
        self._target, self.sha256, self._written = target, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.sha256.update(data)
        self._target.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written
