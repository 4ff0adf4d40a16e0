"""What a route is to people and agents, said where the route is written.

Every route carries exactly one `surface(...)` in its `openapi_extra`: either a tool, or the written
reason why agents don't get it. MCP tools, commands, the client and the docs are derived from it.
"""

from __future__ import annotations

from typing import Any

from broker.wire.states import Scope

KEY = "x-jobd"


def tool(
    scope: Scope, *, read_only: bool = False, destructive: bool = False, idempotent: bool = False, text: bool = False
) -> dict[str, Any]:
    """This route is an MCP tool named after its operation id. `text`: the answer is text, not JSON."""
    return {
        KEY: {
            "tool": True,
            "scope": scope.value,
            "read_only": read_only,
            "destructive": destructive,
            "idempotent": idempotent or read_only,
            "text": text,
        }
    }


def not_a_tool(scope: Scope | None, *, because: str) -> dict[str, Any]:
    """This route is no tool, and `because` says why. Scope None: public, and in `auth.PUBLIC_PATHS`."""
    return {KEY: {"tool": False, "scope": scope.value if scope else None, "because": because}}


def of_route(route: object) -> dict[str, Any] | None:
    """What a route says of itself; None where it says nothing."""
    extra = getattr(route, "openapi_extra", None)
    declared = extra.get(KEY) if isinstance(extra, dict) else None
    return declared if isinstance(declared, dict) else None
