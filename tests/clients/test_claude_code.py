"""Claude Code itself, in a terminal, against a real broker and worker: only its model is replaced, by one that plays a
script."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobd_mcp import local
from support.processes import kill_all
from support.requirements import need_linux, need_tool
from support.scripted_model import ScriptedModel, serving

KEY = "sk-ant-a-key-that-is-none-0123456789"
JOBD = str(Path(sys.executable).with_name("jobd-mcp"))
TOOLS = ("job_submit", "job_wait", "job_get", "job_logs", "job_cancel")


def tool(name: str, /, **arguments: object) -> tuple[str, dict[str, object]]:
    return f"mcp__jobd__{name}", arguments


class Session:
    """The client in a terminal of its own, with a home that knows it already."""

    def __init__(self, directory: Path, model: ScriptedModel) -> None:
        self._directory = directory
        program = need_tool("@anthropic-ai/claude-code-linux-x64") / "claude"
        home, work = directory / "home", directory / "work"
        for one in (home, work):
            one.mkdir()
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
            "projects": {str(work): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
        (home / ".claude.json").write_text(json.dumps(known))
        environ = {"JOBD_STATE_DIR": str(directory / "state"), "HOME": str(home), "PATH": "/usr/bin:/bin"}
        server = {"type": "stdio", "command": JOBD, "args": [], "env": environ}
        (directory / "mcp.json").write_text(json.dumps({"mcpServers": {"jobd": server}}))
        words = [str(program), "--mcp-config", str(directory / "mcp.json"), "--strict-mcp-config"]
        words += ["--allowedTools", ",".join(f"mcp__jobd__{name}" for name in TOOLS)]
        self.screen = b""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.execve(words[0], words, self._environ(home, model))

    def _environ(self, home: Path, model: ScriptedModel) -> dict[str, str]:
        quiet = ("DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
        return {
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": KEY,
            "ENABLE_TOOL_SEARCH": "false",
            **dict.fromkeys(quiet, "1"),
        }

    def say(self, text: str) -> None:
        """Typed, and sent once it stands there."""
        os.write(self._terminal, text.encode())
        self.read_for(0.5)
        os.write(self._terminal, b"\r")

    def read_for(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._terminal], [], [], left)
            if readable:
                self.screen += os.read(self._terminal, 65536)

    def until(self, what: object, within_s: float = 90) -> None:
        deadline = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < deadline, self.screen[-3000:].decode(errors="replace")
            self.read_for(0.2)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


@pytest.fixture
def directory() -> Iterator[Path]:
    need_linux()
    need_tool("@anthropic-ai/claude-code-linux-x64")
    path = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    yield path
    local.down({"JOBD_STATE_DIR": str(path / "state"), "HOME": str(path / "home"), "PATH": "/usr/bin:/bin"}, "stop")
    kill_all(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.serial
@pytest.mark.guarantee("G42")
def test_it_submits_waits_as_a_task_is_woken_with_the_end_reads_logs_and_cancels(directory: Path) -> None:
    flag = directory / "go"
    model = ScriptedModel([
        [
            tool("job_submit", command=f"echo begun; until [ -e {flag} ]; do sleep 0.1; done; echo finished; exit 3"),
            tool("job_wait", job=1),
            tool("job_submit", command="sleep 900", name="long"),
        ],
        [tool("job_logs", job=1), tool("job_cancel", job=[2]), tool("job_wait", job=2, timeout_s=0)],
    ])  # fmt: skip
    with serving(model):
        session = Session(directory, model)
        try:
            # It connects to servers in the background: a first word finds out whether ours is there already.
            session.until(lambda: b"agents" in session.screen)
            while not any(name == "mcp__jobd__job_submit" for name in _tools(model)):
                session.say("begin")
                session.read_for(3)
            session.until(lambda: "2" in model.results())
            first, waited, _second = (model.results()[number] for number in "012")
            assert json.loads(first)["id"] == 1
            assert "started server-side task job1." in waited  # and not the answer of a wait that held it up
            assert "task-notification" not in model.told()

            flag.touch()
            session.until(lambda: "5" in model.results())
        finally:
            session.close()

    told = model.told()
    assert "(jobd/job_wait) completed" in told
    [end] = json.loads(told.partition("<result>")[2].partition("</result>")[0])["jobs"]
    assert (end["id"], end["state"], end["exit_code"], end["log_tail"]) == (1, "failed", 3, "begun\nfinished")
    log, cancelled, after = (model.results()[number] for number in "345")
    assert "begun\nfinished\n" in log
    assert json.loads(cancelled)["counts"]
    assert '"id":2' in after or '"pending":[2]' in after


def _tools(model: ScriptedModel) -> set[str]:
    return {tool["name"] for request in model.requests for tool in request.get("tools") or ()}
