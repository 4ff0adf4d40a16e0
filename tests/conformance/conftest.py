"""A broker and worker by the real commands, reachable on loopback both with a token and without one to bring."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.bearer_proxy import bearer_proxy
from support.installation import Installation
from support.ports import port_that_was_free
from support.processes import kill_all


@dataclass(frozen=True)
class Server:
    """`url` asks for `token`; `open_url` is the same server behind a proxy that adds it."""

    installation: Installation
    url: str
    open_url: str
    token: str


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    own, door = port_that_was_free(), port_that_was_free()
    installation = Installation(
        directory,
        # The suite takes itself for a web page of this origin, once; no other setting is changed for it.
        {"JOBD_LISTEN": f"127.0.0.1:{own}", "JOBD_ALLOWED_ORIGINS": f"http://127.0.0.1:{door}"},
    )
    try:
        installation.good("up")
        token = installation.good("token", "create", "suite", "--scope", "operator", "--json").json()["token"]
        assert isinstance(token, str)
        with bearer_proxy(door, own, token):
            yield Server(installation, f"http://127.0.0.1:{own}/mcp", f"http://127.0.0.1:{door}/mcp", token)
        installation.good("down", "--stop-jobs")
    finally:
        kill_all(directory)
        shutil.rmtree(directory, ignore_errors=True)
