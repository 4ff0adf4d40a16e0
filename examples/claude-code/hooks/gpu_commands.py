"""A hook before shell commands of an agent: work for a GPU belongs into a job or under a lease, not into the bare shell.

It reads the call as JSON from stdin. What it does about such a command stands in JOBD_HOOK: `ask` (default: the user
decides), `deny`, or `off`. Whatever it can't read it lets pass. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys

LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "vllm", "sglang", "llamafactory-cli", "axolotl"}
PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
TRAINING = re.compile(r"(^|[/_.-])(train|finetune|fine_tune|pretrain|sweep|rollout)", re.IGNORECASE)
OURS = {"job", "jobd-mcp"}
HARMLESS = {"-h", "--help", "--version", "-V"}
ADVICE = (
    "This looks like work for a GPU. Others may hold the card, and it would die with this session. "
    "Run it as a job (job_submit with command, cwd and vram_gb or gpus; then job_wait), "
    "or, if it takes a few minutes, under a lease: job lease --vram-gb 10 -- COMMAND"
)


def words_of(command: str) -> list[list[str]]:
    """The simple commands of a line, each as words; nothing where it is no line of a shell."""
    found: list[list[str]] = [[]]
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        for word in lexer:
            if set(word) <= set("();<>|&"):
                found.append([])
            else:
                found[-1].append(word)
    except ValueError:
        return []
    return [words for words in found if words]


def wants_a_gpu(words: list[str]) -> bool:
    """Whether this command takes a GPU, as far as its words tell."""
    chosen = False
    while words and (re.match(r"[A-Za-z_]\w*=", words[0]) or words[0] in {"nohup", "time", "env", "exec", "sudo"}):
        chosen = chosen or (words[0].startswith("CUDA_VISIBLE_DEVICES=") and not words[0].endswith("="))
        words = words[1:]
    if not words or HARMLESS & set(words):
        return False
    name = os.path.basename(words[0])
    if name in OURS:
        return False
    if name in LAUNCHERS or chosen:
        return True
    if name in {"uv", "poetry", "conda", "pixi"} and "run" in words:
        return wants_a_gpu(words[words.index("run") + 1 :])
    if not PYTHON.match(name):
        return False
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return bool(TRAINING.search(script)) or "--gpus" in words or any("cuda" in word for word in words[1:])


def main() -> int:
    mode = os.environ.get("JOBD_HOOK", "ask")
    if mode == "off":
        return 0
    try:
        call = json.load(sys.stdin)
        command = call["tool_input"]["command"] if call.get("tool_name") == "Bash" else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0
    if not isinstance(command, str) or not any(wants_a_gpu(words) for words in words_of(command)):
        return 0
    decision = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny" if mode == "deny" else "ask",
        "permissionDecisionReason": ADVICE,
    }
    json.dump({"hookSpecificOutput": decision}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
