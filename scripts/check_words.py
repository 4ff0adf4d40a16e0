"""Refuse tracked files that name the machine they were written on, or the hosts of package registries."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Written so that this file does not match itself.
REGISTRIES = re.compile(r"\b(pypi|pythonhosted|npmjs|yarnpkg)[.](org|com)\b|\bregistry[.]npmjs\b")
LARGEST = 4_000_000


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def own_paths() -> re.Pattern[str]:
    """Paths of this checkout and of what lies beside it; nothing where that is too general to search for."""
    general = {Path("/"), Path("/tmp"), Path("/home"), Path("/root"), Path.home()}
    paths = {path for path in (ROOT, ROOT.parent, Path(sys.prefix)) if path not in general}
    return re.compile("|".join(f"{re.escape(str(path))}(?=/|$)" for path in paths) or r"(?!)", re.MULTILINE)


def faults() -> Iterator[str]:
    paths = own_paths()
    for file in tracked_files():
        if not file.is_file() or file.is_symlink() or file.stat().st_size > LARGEST:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if paths.search(line):
                yield f"{file.relative_to(ROOT)}:{number}: names a path of this machine: {line.strip()[:120]}"
            elif REGISTRIES.search(line):
                yield f"{file.relative_to(ROOT)}:{number}: names a package registry: {line.strip()[:120]}"


def main() -> None:
    found = list(faults())
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
