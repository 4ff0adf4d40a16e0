"""`job`: the human command. Its operation commands are derived from the OpenAPI document, as MCP's tools are."""

from __future__ import annotations


def main() -> None:
    """The console script."""
    import sys

    from jobd_mcp.cli.program import run

    sys.exit(run())
