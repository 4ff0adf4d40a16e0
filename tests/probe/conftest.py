"""GPUs that are files: a library built here answers as libnvidia-ml does, and a test writes what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.hardware import Hardware
from support.requirements import need_compiler, need_linux, require

SOURCE = Path(__file__).with_name("nvml.c")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories with a libnvidia-ml.so.1: `new`, and `old` without the calls that old drivers lack."""
    need_linux()
    compiler = need_compiler()
    built = {}
    for name, options in (("new", []), ("old", ["-DOLD"])):
        built[name] = tmp_path_factory.mktemp(f"nvml-{name}")
        flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *options]
        target = built[name] / "libnvidia-ml.so.1"
        subprocess.run([compiler, *flags, "-o", str(target), str(SOURCE)], check=True)
    try:
        import pynvml  # noqa: F401
    except ImportError:
        require("nvidia-ml-py", found=False, how="install the development requirements")
    return built


@pytest.fixture
def hardware(libraries: dict[str, Path], tmp_path: Path) -> Hardware:
    return Hardware(libraries["new"], tmp_path / "hardware")
