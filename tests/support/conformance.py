"""The protocol's official conformance suite, run against a server."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.requirements import need_node, need_tool


@dataclass(frozen=True)
class Verdict:
    """How a run ended: its exit code, what it printed, and the status of each check by scenario."""

    code: int
    said: str
    checks: dict[str, dict[str, str]]


class Suite:
    def __init__(self, url: str) -> None:
        package = need_tool("@modelcontextprotocol/conformance")
        program = json.loads((package / "package.json").read_text())["bin"]["conformance"]
        self._program = [need_node(), str(package / program)]
        self._command = [*self._program, "server", "--url", url]

    def run(self, results: Path, *options: str) -> Verdict:
        done = subprocess.run(
            [*self._command, *options, "--output-dir", str(results)],
            capture_output=True, text=True, timeout=110, check=False, cwd=results.parent,
        )  # fmt: skip
        checks = {
            re.sub(r"^server-(.*)-20\d\d-.*$", r"\1", file.parent.name): {
                check["id"]: check["status"] for check in json.loads(file.read_text())
            }
            for file in results.glob("*/checks.json")
        }
        return Verdict(done.returncode, done.stdout + done.stderr, checks)

    def scenarios(self) -> list[str]:
        """All that the suite has for servers and clients, by name."""
        said = subprocess.run([*self._program, "list"], capture_output=True, text=True, timeout=60, check=True).stdout
        return re.findall(r"^ +- ([\w-]+)", said, re.MULTILINE)
