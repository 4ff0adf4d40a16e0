"""Which of two versions is the older one. Standard library only: clients start in a blink."""

from __future__ import annotations

import os
import re
import sys

NAME = "jobd-mcp"

_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<kind>a|alpha|b|beta|c|rc|pre|preview)[-_.]?(?P<pre>\d*))?"
    r"(?P<post>[-_.]?(?:post|rev|r)[-_.]?(?P<post_number>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+[a-z0-9._-]+)?",
    re.IGNORECASE,
)
_FINAL = 9  # ranks: a development version first, then alpha, beta, candidates, the release
_RANKS = {"a": 1, "b": 2, "c": 3, "r": 3, "p": 3}


def older_than_ours(version: str) -> bool:
    """Whether `version`, which a broker told, is older than this program's. What can't be read is not older."""
    if _is_installed_here(version):
        return False
    return older(version, own())


def newer_than_ours(version: str) -> bool:
    return not _is_installed_here(version) and older(own(), version)


def older(one: str, other: str) -> bool:
    """Whether `one` comes before `other`, as Python packages are numbered."""
    first, second = _key(one), _key(other)
    return first is not None and second is not None and first < second


def own() -> str:
    """This program's version."""
    from importlib.metadata import version

    return version(NAME)


def _is_installed_here(version: str) -> bool:
    """Nearly always it is, and then importlib.metadata, half of a client's start-up, need not be loaded.

    The first directory of the path that has any version of ours decides, as it does there.
    """
    own_name, prefix = f"jobd_mcp-{version}.dist-info", "jobd_mcp-"
    for directory in sys.path:
        try:
            found = [name for name in os.listdir(directory or ".") if name.startswith(prefix)]
        except OSError:
            continue
        if found:
            return found == [own_name]
    return False


def _key(version: str) -> tuple[int, tuple[int, ...], int, int, int, int] | None:
    """Versions are in the order of these; None for what is no version. What follows a + decides nothing."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    kind, dev = match["kind"], match["dev"]
    rank = _RANKS[kind[0].lower()] if kind else 0 if dev and not match["post"] else _FINAL
    post = int(match["post_number"] or 0) if match["post"] else -1
    before = int(match["dev_number"] or 0) if dev else sys.maxsize
    return int(match["epoch"] or 0), tuple(release), rank, int(match["pre"] or 0), post, before
