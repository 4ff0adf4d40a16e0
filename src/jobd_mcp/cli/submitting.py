"""What a person leaves unsaid when submitting: the words after the options, this directory, this environment."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.failure import Failure
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_list, as_object


@dataclass(frozen=True)
class Words:
    """The bare words of a command line. `literal`: they stood behind `--`."""

    words: tuple[str, ...]
    literal: bool


def program(said: Words) -> Schema:
    """`-- CMD ARGS…` is a program and its arguments; one word is shell text. Raises Failure for anything else."""
    if not said.words:
        return {}
    if said.literal:
        return {"argv": list(said.words)}
    if len(said.words) > 1:
        raise Failure(
            "several words are given without --",
            hint="a program and its arguments: job submit -- python train.py; or shell text: job submit 'a | b'",
        )
    return {"command": said.words[0]}


def surroundings(
    spec: Schema, connection: Connection, worker_list: Operation, environ: Mapping[str, str], *, pass_env: bool
) -> Schema:
    """`spec` with this directory, if the broker is on this machine, and with the active venv or conda
    environment, if the workers that may run it are on this machine. What was said explicitly stays."""
    added: Schema = {}
    if "cwd" not in spec and connection.on_this_machine:
        added["cwd"] = os.getcwd()
    active = _active(environ)
    if pass_env and active and not {"venv", "conda"} & spec.keys() and _runs_here(spec, connection, worker_list):
        added |= active
    return {**spec, **added}


def _active(environ: Mapping[str, str]) -> Schema:
    """A venv goes over conda, whose base environment is often active without being meant."""
    venv, conda = environ.get("VIRTUAL_ENV"), environ.get("CONDA_PREFIX")
    if venv and Path(venv, "bin").is_dir():
        return {"venv": venv}
    return {"conda": conda} if conda and Path(conda, "bin").is_dir() else {}


def _runs_here(spec: Schema, connection: Connection, worker_list: Operation) -> bool:
    """Whether each worker that may be given the job is on this machine: another has other environments."""
    known = [as_object(entry) for entry in as_list(as_object(connection.call(worker_list, {}).json()).get("workers"))]
    wanted: Json = spec.get("worker")
    able = [worker for worker in known if (worker.get("name") == wanted if wanted else worker.get("state") != "lost")]
    if not able:
        return connection.on_this_machine and wanted is None
    return all(worker.get("host") == platform.node() for worker in able)
