"""Whole installations of this program, of any version and from any source, each in a directory of its own.

An installation is a virtual environment as pip leaves it: our packages with their metadata, the two commands, and the
libraries of whoever runs the tests, linked. Removing its directory is what cleaning a tool's cache does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import jobd_mcp

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = Path(jobd_mcp.__file__).parent.parent
FIRST = ROOT / "tests" / "upgrade" / "release-0.1.0.tar.xz"
"""`src` of the first whole product: the oldest release that an upgrade is promised from."""

_OURS = ("broker", "jobd_mcp", "worker")
_COMMANDS = {"job": "jobd_mcp.cli", "jobd-mcp": "jobd_mcp.pipe"}


@dataclass(frozen=True)
class Release:
    """An installed program. `python` is the interpreter that has it."""

    directory: Path
    version: str

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def command(self, name: str) -> str:
        return str(self.directory / "bin" / name)

    def remove(self) -> None:
        shutil.rmtree(self.directory)


def install(directory: Path, version: str, source: Path = SOURCE) -> Release:
    """The program of `source`, installed in `directory` as `version`."""
    subprocess.run([base_python(), "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60)
    [packages] = directory.glob("lib/python*/site-packages")
    for package in _OURS:
        shutil.copytree(source / package, packages / package, ignore=shutil.ignore_patterns("*.pyc.*"))  # compiled, too
    metadata = packages / f"jobd_mcp-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jobd-mcp\nVersion: {version}\n")
    _link_libraries(packages)
    release = Release(directory, version)
    for name, module in _COMMANDS.items():
        script = Path(release.command(name))
        script.write_text(f"#!{release.python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    return release


def source_of(archive: Path, directory: Path) -> Path:
    """The packages of a release, from the archive that is kept of it: a clone may have no history."""
    with tarfile.open(archive) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        files.extractall(directory)
    return directory / "src"


def base_python() -> str:
    return getattr(sys, "_base_executable", None) or sys.executable


def _link_libraries(packages: Path) -> None:
    """Links, so that an installation costs nothing; without what makes our own working tree importable."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        ours = entry.name.startswith(("jobd_mcp", "_jobd_mcp")) or entry.suffix == ".pth"
        if not ours and entry.name != "__pycache__" and not (packages / entry.name).exists():
            (packages / entry.name).symlink_to(entry)
