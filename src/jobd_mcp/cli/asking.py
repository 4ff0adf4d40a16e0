"""What a command line asks for: a program, a specification file, or a script that says itself what it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobd_mcp.cli import batch_scripts, many
from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.logs import say
from jobd_mcp.cli.many import Specs
from jobd_mcp.cli.submitting import Words, program, surroundings
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema


@dataclass(frozen=True)
class Asked:
    """`options`: what the command line says, which wins over the file's word."""

    source: Specs
    options: Schema

    def specs(
        self, connection: Connection, worker_list: Operation, environ: Mapping[str, str], *, pass_env: bool
    ) -> list[Json]:
        """Each whole, with the surroundings where neither file nor options say."""
        said = [many.completed(self.options, spec) for spec in self.source.specs]
        alone = said[0] if len(said) == 1 else self.options
        added = surroundings(alone, connection, worker_list, environ, pass_env=pass_env)
        around = {name: value for name, value in added.items() if name not in alone}
        return [many.completed(spec, around) for spec in said]


def read(
    options: Schema,
    bare: tuple[str, ...],
    behind: list[str] | None,
    submit: Operation,
    environ: Mapping[str, str],
    *,
    file: str | None,
    stdin: bool,
    strict: bool,
) -> Asked:
    """Nothing is asked of a broker for this. `bare`: words before `--`; `behind`: those behind it."""
    if file is not None and stdin:
        raise Failure("--file and --stdin are both given", hint="give one of them")
    path = Path(file) if file is not None else _named(bare)
    if path is not None and (file is None or path.suffix not in many.SUFFIXES) and batch_scripts.is_script(path):
        words = [*(bare if file is not None else bare[1:]), *(behind or ())]
        return Asked(_script(path, words, submit, environ, strict=strict), options)
    if strict:
        raise Failure("--strict is of scripts with #SBATCH lines", hint="leave it out")
    if path is not None or stdin:
        rest = bare if file is not None or stdin else bare[1:]
        return Asked(many.read(None if stdin else str(path)), {**options, **_program(rest, behind)})
    return Asked(Specs("", [{}], [""], alone=True), {**options, **_program(bare, behind)})


def _named(bare: tuple[str, ...]) -> Path | None:
    """The file that the first word names, if it is one of those that are read; else the word is shell text."""
    path = Path(bare[0]) if bare else None
    if path is None or len(str(path)) > os.pathconf("/", "PC_PATH_MAX") or not path.is_file():
        return None
    return path if path.suffix in many.SUFFIXES or batch_scripts.is_script(path) else None


def _program(bare: tuple[str, ...], behind: list[str] | None) -> Schema:
    if bare and behind is not None:
        raise Failure(f"{bare[0]!r} stands before --", hint="put the whole program behind --")
    return program(Words(bare if behind is None else tuple(behind), literal=behind is not None))


def _script(path: Path, words: list[str], submit: Operation, environ: Mapping[str, str], *, strict: bool) -> Specs:
    found = batch_scripts.read(path, words, submit, environ)
    if strict and found.ignored:
        raise Failure(
            f"{path}: {'; '.join(found.ignored)}", hint="without --strict it is submitted, and this is said beside it"
        )
    for note in found.notes:
        say(f"{path}, {note}")
    for note in found.ignored:
        say(f"{path}: ignored: {note}")
    return Specs(str(path), [found.spec], [""], alone=True)
