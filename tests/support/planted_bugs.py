"""Planted bugs, as patches in tests/mutants: each must be caught by the test that it names, else that test sees nothing.

They are tried from several files, because a file stays with one process of a run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.requirements import ROOT, require

FILES = 3


def part(number: int) -> list[Path]:
    """The patches of one file, of those counted from 1."""
    return sorted((ROOT / "tests" / "mutants").glob("*.patch"))[number - 1 :: FILES]


def assert_caught(patch: Path, tmp_path: Path) -> None:
    require("git", shutil.which("git"), how="install git")
    tests = re.findall(r"^Caught-by: (\S+)$", patch.read_text(), re.MULTILINE)
    assert tests, "a patch names the tests that catch it"
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(
        ["git", "apply", "--unsafe-paths", f"--directory={tmp_path}", str(patch)], cwd=tmp_path, env=environ, check=True
    )

    # Without the bug the same tests pass, or this very run of the suite fails there.
    for test in tests:
        planted = run(test, tmp_path / "src")
        absent = re.search(r"^SKIPPED \[\d+\] \S+: (.*)$", planted.stdout, re.MULTILINE)
        if absent and planted.returncode == 0:
            pytest.skip(absent[1])
        assert planted.returncode == 1, f"not caught by {test}:\n{planted.stdout}"
        assert "failed" in planted.stdout


def run(test: str, source: Path) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-x", "-p", "no:cacheprovider", "--tb=line", "--durations=0", "--durations-min=99"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(ROOT / test)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
