"""TCP ports for tests, on loopback only."""

from __future__ import annotations

import socket


def port_that_was_free() -> int:
    """Free a moment ago, and not likely to be taken now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
