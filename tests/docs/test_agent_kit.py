"""The kit for Claude Code and the entry for the registry: they name what there is, and the hook judges as it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from broker.app import create_app
from jobd_mcp.operations import tools
from support.requirements import ROOT, need_node, need_tool

KIT = ROOT / "examples" / "claude-code"
HOOK = KIT / "hooks" / "gpu_commands.py"
SKILL = KIT / "skills" / "long-work" / "SKILL.md"

FOR_A_GPU = [
    "python train.py --epochs 10",
    "CUDA_VISIBLE_DEVICES=0 ./run.sh",
    "cd proj && nohup python3 -u scripts/finetune_lora.py > log &",
    "torchrun --nproc_per_node 4 main.py",
    "accelerate launch main.py",
    "uv run python src/train.py",
    "FOO=1 BAR=2 python3.11 pretrain.py",
    "python eval.py --device cuda:0",
    "ls; vllm serve model",
]
FOR_THE_SHELL = [
    "ls -la",
    "python -m pytest tests",
    "git commit -m 'train.py: python train.py runs now'",
    "job lease --vram-gb 10 -- python train.py",
    "job submit -- python train.py",
    "grep -r torchrun .",
    "torchrun --help",
    "echo 'python train.py'",
    "cat training/train.py",
    "CUDA_VISIBLE_DEVICES= python script.py",
    "nvidia-smi",
    "python - <<'EOF'\nprint('unbalanced",
]


def judged(call: object, mode: str | None = None) -> str | None:
    """What the hook decides about a call; None: nothing."""
    environ = {"PATH": os.environ["PATH"]} | ({"JOBD_HOOK": mode} if mode else {})
    said = call if isinstance(call, str) else json.dumps(call)
    done = subprocess.run(
        [sys.executable, "-I", str(HOOK)],
        input=said,
        capture_output=True,
        text=True,
        env=environ,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if not done.stdout:
        return None
    decision = json.loads(done.stdout)["hookSpecificOutput"]
    assert decision["hookEventName"] == "PreToolUse"
    assert "job lease" in decision["permissionDecisionReason"]
    return str(decision["permissionDecision"])


def bash(command: object) -> dict[str, object]:
    return {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": command}}


@pytest.mark.parametrize("command", FOR_A_GPU)
def test_the_hook_asks_about_work_for_a_gpu(command: str) -> None:
    assert judged(bash(command)) == "ask"


@pytest.mark.parametrize("command", FOR_THE_SHELL)
def test_the_hook_lets_everything_else_pass(command: str) -> None:
    assert judged(bash(command)) is None


def test_what_the_hook_does_is_a_setting_and_what_it_cannot_read_passes() -> None:
    assert judged(bash(FOR_A_GPU[0]), "deny") == "deny"
    assert judged(bash(FOR_A_GPU[0]), "off") is None
    for call in ("", "no json", "[]", "null", {"tool_name": "Bash"}, bash(None), bash(3), {"tool_name": "Read"}):
        assert judged(call) is None


def test_the_skill_names_tools_and_fields_that_there_are() -> None:
    text = SKILL.read_text()
    known = {operation.name: operation for operation in tools(create_app(None).openapi())}
    named = set(re.findall(r"`((?:job|worker)_[a-z_]+)`", text))
    fields = {name for operation in known.values() for name in operation.fields} | {"done", "next_cursor"}

    assert len(named) >= 8
    assert named <= known.keys()
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", text)) - named - {"nohup", "tmux"}
    assert words <= fields, words - fields
    assert re.match(r"---\nname: long-work\ndescription: [^\n]{50,1024}\n---\n", text)


def test_the_plugin_is_valid_as_claude_code_sees_it() -> None:
    package = need_tool("@anthropic-ai/claude-code")
    program = package / json.loads((package / "package.json").read_text())["bin"]["claude"]
    words = [str(program)] if program.suffix not in (".js", ".cjs", ".mjs") else [need_node(), str(program)]
    done = subprocess.run(
        [*words, "plugin", "validate", str(KIT)], capture_output=True, text=True, timeout=90, check=False,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "DISABLE_AUTOUPDATER": "1"},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation passed" in done.stdout


def test_plugin_and_registry_have_the_version_of_the_package_and_start_its_program() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = json.loads((KIT / ".claude-plugin" / "plugin.json").read_text())
    registry = json.loads((ROOT / "server.json").read_text())
    [entry] = registry["packages"]
    [server] = json.loads((KIT / ".mcp.json").read_text())["mcpServers"].values()

    assert {plugin["version"], registry["version"], entry["version"]} == {package["version"]}
    assert entry["identifier"] == package["name"]
    assert server["command"] in package["scripts"]
    assert f"mcp-name: {registry['name']}" in (ROOT / "README.md").read_text()
