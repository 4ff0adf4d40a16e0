"""What a job runs, as a key: jobs that run the same thing have the same one, whoever wraps it in what. Pure.

A fingerprint has two levels, `similar.exact`. The second is of the words as given, and of where they run. The first is
of the words with their values folded: `--lr 0.1` and `--lr 0.2` are one, as are `run_1.yaml` and `run_2.yaml`, and
`/a/train.py` and `train.py`. Neither knows the project, the environment's values, or what is asked of a machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from broker.wire.jobs import JobSpec

LENGTH = 16
"""Hexadecimal digits of each level."""
MOST_LEXED = 4096
"""Characters of a command that are taken apart. A longer one is told apart by the rest of it too, as it stands."""
MOST_NESTED = 4

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:[eE][+-]?[0-9]+)?")
_SCRIPT = re.compile(r".+\.(py|sh|bash|R|r|jl|pl|rb|js|ts|ipynb|m|lua|php|jar)")
_END_OF_COMMAND = frozenset(";&|\n()")


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A program that runs another one. `valued`: its options whose value is a word of its own; `words`: what else
    stands before that other program; `sub`: it does so only after this word."""

    valued: frozenset[str] = frozenset()
    words: int = 0
    sub: str | None = None


_PLAIN = _Wrapper()
_WRAPPERS: Mapping[str, _Wrapper] = {
    "env": _Wrapper(frozenset({"-u", "--unset", "-C", "--chdir"})),
    "nohup": _PLAIN,
    "time": _Wrapper(frozenset({"-o", "--output", "-f", "--format"})),
    "exec": _PLAIN,
    "command": _PLAIN,
    "setsid": _PLAIN,
    "nice": _Wrapper(frozenset({"-n", "--adjustment"})),
    "ionice": _Wrapper(frozenset({"-c", "--class", "-n", "--classdata"})),
    "chrt": _Wrapper(words=1),
    "taskset": _Wrapper(words=1),
    "numactl": _PLAIN,
    "stdbuf": _Wrapper(frozenset({"-i", "-o", "-e"})),
    "timeout": _Wrapper(frozenset({"-s", "--signal", "-k", "--kill-after"}), words=1),
    "flock": _Wrapper(frozenset({"-w", "--timeout", "-E"}), words=1),
    "sudo": _Wrapper(frozenset({"-u", "--user", "-g", "--group"})),
    "xvfb-run": _Wrapper(frozenset({"-n", "-s", "--server-args"})),
    "uv": _Wrapper(frozenset({"--with", "-p", "--python"}), sub="run"),
    "poetry": _Wrapper(sub="run"),
    "pipenv": _Wrapper(sub="run"),
    "conda": _Wrapper(frozenset({"-n", "--name", "-p", "--prefix"}), sub="run"),
}
_PREPARES = frozenset(
    {"cd", "pushd", "popd", "source", ".", "export", "set", "unset", "ulimit", "umask", "module", "mkdir", "trap", ":"}
)
_PREPARES_BY_A_WORD = {("conda", "activate"), ("mamba", "activate"), ("micromamba", "activate")}


def fingerprint(spec: JobSpec) -> str:
    """Both levels, as `similar.exact`: 33 characters."""
    return _fingerprint(spec.command, tuple(spec.argv or ()), spec.cwd, spec.venv or spec.conda)


def similar(key: str) -> str:
    """The first level of a fingerprint: what is shared by all that differ only in values."""
    return key[:LENGTH]


def exact(key: str) -> str:
    """The second level."""
    return key[LENGTH + 1 :]


@lru_cache(maxsize=1024)
def _fingerprint(command: str | None, argv: tuple[str, ...], cwd: str | None, environment: str | None) -> str:
    parts = _parts_of_text(command, MOST_NESTED) if command is not None else _parts(argv, MOST_NESTED)
    rest = command[MOST_LEXED:] if command is not None else ""
    folded = [[*_folded(words)] for words in parts]
    return f"{_hash([folded, rest])}.{_hash([parts, rest, cwd, environment])}"


def _hash(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:LENGTH]


def _parts_of_text(text: str, depth: int) -> list[list[str]]:
    """The commands of a shell's text; those that only prepare another are left out."""
    found = [part for words in _commands(text[:MOST_LEXED]) for part in _parts(words, depth)]
    return [words for words in found if not _prepares(words)] or found


def _parts(words: Sequence[str], depth: int) -> list[list[str]]:
    """What one command runs once its wrappers are taken off; a shell's text may be several."""
    left = list(words)
    while left:
        inner = _inner(left)
        if isinstance(inner, str):
            return _parts_of_text(inner, depth - 1) if depth else [[inner]]
        if inner is None:
            return [left]
        left = inner
    return [list(words)] if words else []


def _inner(words: list[str]) -> list[str] | str | None:
    """What the first word runs: words, or a shell's text; None if it is no wrapper."""
    if _ASSIGNMENT.fullmatch(words[0]):
        return words[1:]
    name = _base(words[0])
    if name in _SHELLS:
        return _run_by_shell(words)
    if _PYTHON.fullmatch(name):
        return _run_by_python(words)
    wrapper = _WRAPPERS.get(name)
    if wrapper is None:
        return None
    after = words[1:]
    if wrapper.sub is not None:
        if not after or after[0] != wrapper.sub:
            return None
        after = after[1:]
    return _after_options(after, wrapper.valued)[wrapper.words :]


def _run_by_shell(words: list[str]) -> list[str] | str | None:
    for at, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[at + 1] if at + 1 < len(words) else None
        if not word.startswith("-"):
            return words[at:]
    return None


def _run_by_python(words: list[str]) -> list[str] | None:
    for at, word in enumerate(words[1:], 1):
        if word in ("-c", "-"):
            return None
        if word == "-m":
            return words[at + 1 :] or None
        if not word.startswith("-") and words[at - 1] not in ("-W", "-X"):
            return words[at:]
    return None


def _after_options(words: list[str], valued: frozenset[str]) -> list[str]:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return words[at + 1 :]
        at += 2 if words[at] in valued else 1
    return words[at:]


def _prepares(words: Sequence[str]) -> bool:
    return words[0] in _PREPARES or tuple(words[:2]) in _PREPARES_BY_A_WORD


def _commands(text: str) -> list[list[str]]:
    """A shell's text as its commands' words, without redirections. What can't be read so is split at its blanks."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:
        return [text.split()]
    found: list[list[str]] = [[]]
    target = False
    for token in tokens:
        if target:
            target = False
        elif token and token[0] in "<>":
            target = True
            if len(found[-1]) > 1 and found[-1][-1] in ("1", "2"):  # of `2>`
                found[-1].pop()
        elif token and set(token) <= _END_OF_COMMAND:
            found.append([])
        else:
            found[-1].append(token)
    return [words for words in found if words]


def _folded(words: Sequence[str]) -> Iterable[str]:
    """The words without what differs from run to run. The word after a long option is its value, if it is no option and
    no script: of options that take none, such a script is what stands behind them."""
    option = False
    for word in words:
        name, equals, _ = word.partition("=")
        if equals and (name.startswith("-") or name.isidentifier()):
            yield f"{name}=#"
        elif option and not word.startswith("-") and not _SCRIPT.fullmatch(word):
            yield "#"
        else:
            yield _DIGITS.sub("#", _base(word))
        option = word.startswith("--") and not equals


def _base(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2] or word
