"""Compare pyproject.toml, the locks and tools/package.json with each other. Reads only, needs no network."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lock import DEVELOPMENT, ROOT, RUNTIME, build_requirements

ADDRESS = re.compile(r"https?://|--(extra-)?index-url|--find-links|--trusted-host")


def locked(text: str) -> dict[str, str]:
    """Name → version of every `name==version \\` entry."""
    entries = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in entries}


def without_hash(text: str) -> list[str]:
    """Entries that pip would take unchecked."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    return [entry.split()[0] for entry in entries if "==" in entry and "--hash=sha256:" not in entry]


def unmet(requirements: Iterable[str], lock: dict[str, str], name: str) -> Iterator[str]:
    for requirement in map(Requirement, requirements):
        version = lock.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"{name}: {requirement} is in pyproject.toml and not in the lock"
        elif version not in requirement.specifier:
            yield f"{name}: {requirement.name}=={version} does not satisfy {requirement.specifier}"


def lock_faults() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = [*project["project"]["dependencies"], *build_requirements(project)]
    texts = {RUNTIME.name: RUNTIME.read_text(), DEVELOPMENT.name: DEVELOPMENT.read_text()}
    locks = {name: locked(text) for name, text in texts.items()}
    yield from unmet(runtime, locks[RUNTIME.name], RUNTIME.name)
    yield from unmet([*runtime, *project["dependency-groups"]["dev"]], locks[DEVELOPMENT.name], DEVELOPMENT.name)
    for name, text in texts.items():
        yield from (f"{name}: {entry} has no hash" for entry in without_hash(text))
        yield from (f"{name}: names an address: {line}" for line in text.splitlines() if ADDRESS.search(line))
    for package, version in locks[RUNTIME.name].items():
        other = locks[DEVELOPMENT.name].get(package)
        if other != version:
            yield f"{package}: {version} in {RUNTIME.name}, {other or 'absent'} in {DEVELOPMENT.name}"


def tool_faults() -> Iterator[str]:
    package = json.loads((ROOT / "tools/package.json").read_text())
    lock = json.loads((ROOT / "tools/package-lock.json").read_text())
    for name, version in (package["dependencies"] | package["optionalDependencies"]).items():
        found = lock["packages"].get(f"node_modules/{name}", {}).get("version")
        if found != version:
            yield f"tools/package-lock.json: {name} is {found}, package.json says {version}"
    if any("resolved" in entry for entry in lock["packages"].values()):
        yield "tools/package-lock.json: names addresses; write it with tools/.npmrc in force"


def main() -> None:
    faults = [*lock_faults(), *tool_faults()]
    if faults:
        sys.exit("\n".join([*faults, "Write the locks again: make lock"]))


if __name__ == "__main__":
    main()
