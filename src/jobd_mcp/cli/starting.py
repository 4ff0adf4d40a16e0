"""This user's broker with its worker, started because a command needs them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from jobd_mcp import local
from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.live_line import telling
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import as_list, as_object

WORKER_LIMIT_S = 5.0
_RETRY_S = 0.05


def start(environ: Mapping[str, str]) -> local.Found:
    """The broker here. One that this call starts gets a moment for its worker to come online: without, the first
    job would be told that no worker is there. Goes on without a worker that takes longer."""
    at = local.here(environ)
    before = local.find(at)
    with telling(lambda: "starting the broker and its worker"):
        found = local.ensure(at, environ)
        if found.restarts_worker and (before is None or before.pid != found.pid):
            _await_worker(Connection(at.url))
    return found


def _await_worker(connection: Connection) -> None:
    deadline = time.monotonic() + WORKER_LIMIT_S
    while time.monotonic() < deadline:
        workers = as_list(as_object(connection.call(by_name()["worker_list"], {}).json()).get("workers"))
        if any(as_object(worker).get("state") not in (None, "lost") for worker in workers):
            return
        time.sleep(_RETRY_S)
