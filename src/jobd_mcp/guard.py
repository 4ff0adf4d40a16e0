"""What an app must not forget to say about its routes. Used by tests and by `make check`; it repairs nothing.

The document is the one definition, so whatever is not in the document has to be named here with a reason, and
whatever is in it has to say whether agents get it and who may call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from fastapi import FastAPI
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from jobd_mcp.operations import SURFACE, Operation, operations
from jobd_mcp.schemas import Schema, UnsuitableSchema, as_object, object_root

LONGEST_PREFIX = "mcp__" + "x" * 24 + "__"
LONGEST_NAME = 64
LONGEST_DESCRIPTION = 2000
_NAME = re.compile(r"[A-Za-z0-9_-]+")

OUTSIDE: Mapping[str, str] = {
    "/mcp": "the MCP endpoint: what it offers is derived from the document",
}
"""Paths that are not in the document, each with the reason."""


def faults(app: FastAPI, outside: Mapping[str, str] = OUTSIDE, public: Iterable[str] = ()) -> list[str]:
    """Every rule that this app breaks, as a sentence; empty: none. `public` paths need no scope."""
    document: Schema = app.openapi()
    contexts = list(iter_route_contexts(app.routes))
    found = [fault for context in contexts for fault in _outside_faults(context, document, outside)]
    paths = {context.path for context in contexts}
    found += [f"{path} is excused from the document, but no route has it" for path in outside if path not in paths]
    try:
        described = operations(document)
    except (UnsuitableSchema, KeyError) as error:
        return [*found, f"the document can't be read as operations: {error}"]
    for operation in described:
        found += _operation_faults(operation, set(public))
    found += _name_faults(described)
    return found


def missing_fields(operation: Operation, expected: Iterable[str]) -> list[str]:
    """The names that this operation should take as arguments, and does not."""
    return sorted(set(expected) - operation.fields.keys())


def _outside_faults(context: RouteContext, document: Schema, outside: Mapping[str, str]) -> Iterator[str]:
    route, path = context.original_route, context.path or "?"
    if path in outside and not isinstance(route, APIRoute):
        return
    if not isinstance(route, APIRoute):
        yield f"{path} is a {type(route).__name__}, which no document shows, and no list names it"
        return
    item = as_object(as_object(document.get("paths")).get(context.path_format or path))
    shown = {method for method in context.methods or () if method.lower() in item}
    if shown != (context.methods or set()) and path not in outside:
        yield f"{path} is hidden from the document, and no list names it"


def _operation_faults(operation: Operation, public: set[str]) -> Iterator[str]:
    where = f"{operation.method} {operation.path} ({operation.name})"
    if not operation.tool and not (operation.because or "").strip():
        yield f"{where} is neither a tool nor excused with a reason; use {SURFACE} (surface.tool, surface.not_a_tool)"
    if operation.scope is None and operation.path not in public:
        yield f"{where} has no scope and is no public path"
    if not operation.tool:
        return
    if not operation.description.strip():
        yield f"{where} has no docstring: the model would not know what it does"
    if len(operation.description) > LONGEST_DESCRIPTION:
        yield f"{where} has a docstring of {len(operation.description)} characters; clients cut at {LONGEST_DESCRIPTION}"
    if len(LONGEST_PREFIX + operation.name) > LONGEST_NAME or not _NAME.fullmatch(operation.name):
        yield f"{where} has a name that is too long for clients that add a prefix, or not of letters, digits, _ and -"
    try:
        object_root(operation.input_schema, f"the arguments of {where}")
        if operation.output_schema is not None:
            object_root(operation.output_schema, f"the answer of {where}")
    except UnsuitableSchema as error:
        yield str(error)
    if operation.output_schema is None and not operation.text:
        yield f"{where} answers neither an object nor text"


def _name_faults(described: list[Operation]) -> Iterator[str]:
    seen: set[str] = set()
    for operation in described:
        if operation.name in seen:
            yield f"two operations are called {operation.name}"
        seen.add(operation.name)
