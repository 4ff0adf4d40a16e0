"""The protocol's inspector as a load generator: 300 calls, 10 at once, each way in and in each protocol era."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.installation import JOB
from support.requirements import need_node, need_tool


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("way", ["http", "stdio"])
def test_three_hundred_calls_ten_at_once_are_answered_without_an_error(server, way: str, era: str, tmp_path) -> None:
    node, package = need_node(), need_tool("@modelcontextprotocol/inspector")
    name = json.loads((package / "package.json").read_text())["bin"]
    program = [node, str(package / (name if isinstance(name, str) else name["mcp-inspector"])), "--cli"]
    options = [
        "--protocol-era", era, "--method", "tools/call", "--tool-name", "job_list", "--format", "json",
        "--load", "--load-requests", "300", "--load-concurrency", "10",
    ]  # fmt: skip
    if way == "http":
        command = [*program, server.url, *options, "--header", f"Authorization: Bearer {server.token}"]
    else:
        state = f"JOBD_STATE_DIR={server.installation.state}"
        command = [*program, *options, "-e", state, "--", str(JOB.with_name("jobd-mcp"))]
    environ = {
        **server.installation.environ,
        "PATH": f"{Path(node).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)["result"]
    assert (told["requests"], told["ok"], told["toolErrors"], told["errors"]) == (300, 300, 0, 0), told
