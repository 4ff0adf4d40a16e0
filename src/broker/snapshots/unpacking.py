"""A copy is made into a directory. Whoever made the archive is not trusted: nothing comes to lie outside of it."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from broker.snapshots.archive import leads_inside


class NotACopy(Exception):
    """What this archive holds is not what a copy of a directory holds."""


def unpack(archive: Path, target: Path) -> None:
    """Make `target` and fill it; where that fails there is none. Raises NotACopy, OSError.

    Files and directories come first and links last, so that nothing is written through one.
    """
    target.mkdir(parents=True, mode=0o700)
    try:
        with tarfile.open(archive, mode="r:") as tar:
            _fill(tar, target, archive.stat().st_size)
    except (tarfile.TarError, NotACopy, EOFError, ValueError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise NotACopy(str(error)) from None
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _fill(tar: tarfile.TarFile, target: Path, size: int) -> None:
    left, links = size, []
    for member in tar:
        path = target / _safe(member.name)
        left -= member.size
        if left < 0 or member.issparse():
            raise NotACopy(f"{member.name} is larger than the whole archive")
        if member.issym():
            links.append((path, member))
        elif member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif member.isreg():
            _file(tar, member, path)
        else:
            raise NotACopy(f"{member.name} is neither a file, a directory nor a link")
    for path, member in links:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(member.linkname, path)
    for path, member in links:  # only now: one may lead through another
        if not leads_inside(target, path):
            raise NotACopy(f"{member.name} leads out of it, to {member.linkname}")


def _safe(name: str) -> str:
    if os.path.isabs(name) or not name or {"..", ""} & set(name.rstrip("/").split("/")) or "\0" in name:
        raise NotACopy(f"{name!r} is no name within it")
    return name


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None, "it is a file"
    with open(path, "xb") as file:
        shutil.copyfileobj(source, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
