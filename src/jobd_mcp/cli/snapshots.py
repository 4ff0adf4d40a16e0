"""The code of this machine for a broker on another: taken here, and put there unless it has it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from broker import places
from broker.snapshots import archive, git
from broker.wire.problems import Refused
from broker.wire.settings import BrokerSettings, ConfigurationError, load
from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.failure import Failure
from jobd_mcp.operations import Request
from jobd_mcp.schemas import Schema

PUT_S = 600.0
NOT_FOUND = 404


def put(spec: Schema, connection: Connection) -> Schema:
    """`spec` with the name of what was put. Raises Failure: it can't be taken, or the broker refuses it."""
    word = str(spec["snapshot"])
    if word not in ("git", "copy"):
        return spec
    directory = Path(str(spec.get("cwd") or os.getcwd())).expanduser()
    with tempfile.TemporaryFile(prefix="jobd-snapshot-") as file:
        try:
            sha256 = _taken(word, directory, file)
        except Refused as refused:
            raise Failure(refused.detail, hint=refused.hint) from None
        if not _is_known(connection, sha256):
            file.seek(0)
            request = Request("PUT", f"/v1/snapshots/{sha256}", body=file.read())
            with connection.open(request, timeout_s=PUT_S, headers={"Content-Type": "application/octet-stream"}):
                pass
    return {**spec, "snapshot": f"{word}:{sha256}"}


def _taken(word: str, directory: Path, file: BinaryIO) -> str:
    if word == "copy":
        return archive.write(directory, file, _settings().snapshot_bytes)
    text = git.document(directory)
    file.write(text)
    return hashlib.sha256(text).hexdigest()


def _settings() -> BrokerSettings:
    """How large it may be is said here as it is to the broker, which may allow less."""
    try:
        return load(BrokerSettings, os.environ, places.config_text(os.environ))
    except ConfigurationError as error:
        raise Failure(str(error)) from None


def _is_known(connection: Connection, sha256: str) -> bool:
    try:
        with connection.open(Request("HEAD", f"/v1/snapshots/{sha256}")):
            return True
    except Failure as failure:
        if failure.status == NOT_FOUND:
            return False
        raise
