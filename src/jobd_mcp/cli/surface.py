"""The shipped OpenAPI document, read once: what commands are derived from."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from jobd_mcp.operations import Operation, operations
from jobd_mcp.schemas import Schema

DOCUMENT = Path(__file__).resolve().parent.parent / "openapi.json"


def document() -> Schema:
    loaded: Schema = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    return loaded


@functools.cache
def by_name() -> dict[str, Operation]:
    """Every operation of the broker's surface under its name."""
    return {operation.name: operation for operation in operations(document())}
