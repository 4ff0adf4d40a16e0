"""A script that says itself what it needs: `#JOBD` and `#SBATCH` lines at its head, as sbatch takes them.

The text is what is submitted, so that it can't change between submit and start. `$0` is the script's path.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from jobd_mcp.cli import slurm
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema

SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
LARGEST = 128 * 1024 - 1  # what a process can be given as one argument
_DIRECTIVE = re.compile(r"#(JOBD|SBATCH)[ \t]+(.*)")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_PYTHON = re.compile(r"python[0-9.]*")
_OF_SLURM = re.compile(r"\bSLURM_[A-Z_]+\b")
_PROGRAMS_OF_SLURM = re.compile(r"^\s*(srun|sbcast|scontrol|sattach)\b", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """What a script asks for and runs, and what is to be said of that."""

    spec: Schema
    notes: list[str]
    ignored: list[str]


@dataclass(frozen=True)
class _Line:
    number: int
    kind: str
    words: list[str]


def is_script(path: Path) -> bool:
    """By its name, or because it has such lines."""
    if path.suffix in SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(LARGEST)
    except OSError:
        return False
    return head.startswith(b"#") and re.search(rb"^#(JOBD|SBATCH)[ \t]", head, re.MULTILINE) is not None


def read(path: Path, arguments: list[str], submit: Operation, environ: Mapping[str, str]) -> Script:
    """The script at `path`. `#JOBD` lines win over `#SBATCH` lines. Raises Failure with the line that is to blame."""
    text = _text(path)
    lines, late = _directives(path, text)
    said = [option for line in lines if line.kind == "SBATCH" for option in _options(path, line)]
    try:
        made = slurm.understood(said, submit.fields, environ)
    except Failure as failure:
        raise Failure(f"{path}, {failure.message}", hint=failure.hint) from None
    own = _own(path, [line for line in lines if line.kind == "JOBD"], submit)
    if said:
        made.ignored += _left_of_slurm(text, made.fields)
    spec: Schema = {"name": path.name, **made.fields, **own, "argv": _argv(path, text, arguments)}
    env: Schema = {}
    for asked in (made.fields.get("env"), own.get("env")):
        env |= asked if isinstance(asked, dict) else {}
    return Script({**spec, "env": env} if env else spec, made.notes, [*made.ignored, *late])


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Failure(f"{path} can't be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise Failure(
            f"{path} has {len(data):,} bytes: at most {LARGEST:,} can be submitted",
            hint=f"run it where it lies: job submit -- bash {path}",
        )
    if b"\r\n" in data:
        raise Failure(f"{path} has line ends of DOS", hint="sed -i 's/\\r$//' mends it")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Failure(f"{path} is not UTF-8 text", hint="a program is run by job submit -- ./PROGRAM") from None
    if not text.strip() or "\0" in text:
        raise Failure(f"{path} is {'no text' if text.strip() else 'empty'}")
    return text


def _directives(path: Path, text: str) -> tuple[list[_Line], list[str]]:
    """The lines of the head: up to the first that is neither empty nor a comment. And what is to be said of later ones."""
    found, late = [], []
    in_head = True
    for number, line in enumerate(text.splitlines(), 1):
        in_head = in_head and (not line.strip() or line.lstrip().startswith("#"))
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            continue
        if not in_head:
            late.append(f"line {number}: #{match[1]} behind the first command is not read, as in Slurm")
            continue
        try:
            found.append(_Line(number, match[1], shlex.split(match[2], comments=True)))
        except ValueError as error:
            raise Failure(f"{path}, line {number}: #{match[1]}: {error}", hint="nothing was submitted") from None
    return found, late


def _options(path: Path, line: _Line) -> list[slurm.Option]:
    try:
        return slurm.options(line.number, line.words)
    except Failure as failure:
        raise Failure(f"{path}, {failure.message}", hint=failure.hint) from None


def _own(path: Path, lines: list[_Line], submit: Operation) -> Schema:
    """`#JOBD` lines have the options of job submit."""
    command = click.Command("#JOBD", params=options_of(submit), add_help_option=False)
    made: Schema = {}
    for line in lines:
        try:
            values = command.make_context("#JOBD", list(line.words)).params
        except click.UsageError as error:
            raise Failure(
                f"{path}, line {line.number}: #JOBD: {error.format_message()}", hint="nothing was submitted"
            ) from None
        for name, value in arguments_of(submit, values).items():
            made[name] = _joined(made.get(name), value)
    return made


def _joined(before: Json, value: Json) -> Json:
    """What is repeatable on one line is so on several."""
    if isinstance(before, dict) and isinstance(value, dict):
        return {**before, **value}
    return [*before, *value] if isinstance(before, list) and isinstance(value, list) else value


def _argv(path: Path, text: str, arguments: list[str]) -> Json:
    """The interpreter of the first line, with the text."""
    words = shlex.split(text.splitlines()[0][2:]) if text.startswith("#!") else ["bash"]
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
    program = os.path.basename(words[0]) if words else ""
    if program in _SHELLS:
        return [*words, "-c", text, os.path.abspath(path), *arguments]
    if _PYTHON.fullmatch(program):
        return [*words, "-c", text, *arguments]
    raise Failure(
        f"{path}, line 1: {program or 'nothing'} can't be given a script as text",
        hint=f"run it where it lies: job submit -- {program or 'PROGRAM'} {path}",
    )


def _left_of_slurm(text: str, fields: Schema) -> list[str]:
    """What such a script counts on and does not find."""
    env = fields.get("env")
    named = set(_OF_SLURM.findall(text)) - set(env if isinstance(env, dict) else ())
    programs = sorted(set(_PROGRAMS_OF_SLURM.findall(text)))
    said = [f"{name} is not set" + (": JOBD_JOB_ID is" if name == "SLURM_JOB_ID" else "") for name in sorted(named)]
    return said + [f"{name} is Slurm's own program" for name in programs]
