"""Write requirements.lock and requirements-dev.lock from pyproject.toml (`make lock`).

Both are hashed and name no address, so that any index may serve them. The runtime lock holds the build backend
too: the project itself is installed without build isolation. The development lock contains the runtime lock.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME, DEVELOPMENT = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
HEADER = "# Written by `make lock` on Python 3.11 from pyproject.toml; compared with it by `make check`.\n"
OPTIONS = (
    "--quiet",
    "--generate-hashes",
    "--allow-unsafe",
    "--strip-extras",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-trusted-host",
    "--no-emit-find-links",
    "--no-emit-options",
)


def build_requirements(project: dict[str, dict[str, list[str]]]) -> list[str]:
    """The build backend, and what its editable installs need."""
    return [*project["build-system"]["requires"], "editables"]


def compile_lock(requirements: list[str], within: Path | None, upgrade: bool, target: Path) -> None:
    """Resolve `requirements` into `target`, keeping to the versions of the lock `within`."""
    with tempfile.TemporaryDirectory(prefix="jobd-lock-") as scratch:
        source, result = Path(scratch, "requirements.in"), Path(scratch, "requirements.txt")
        source.write_text("\n".join(requirements) + "\n")
        if target.exists() and not upgrade:
            result.write_text(target.read_text())
        command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, "--output-file", str(result)]
        if within is not None:
            command += ["--constraint", str(within)]
        subprocess.run([*command, str(source)], check=True)
        target.write_text(HEADER + result.read_text().removeprefix(HEADER))


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("make lock needs Python 3.11, the oldest supported: a newer one leaves out what 3.11 needs.")
    upgrade = "--upgrade" in sys.argv[1:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = [*project["project"]["dependencies"], *build_requirements(project)]
    compile_lock(runtime, None, upgrade, RUNTIME)
    compile_lock([*runtime, *project["dependency-groups"]["dev"]], RUNTIME, upgrade, DEVELOPMENT)


if __name__ == "__main__":
    main()
