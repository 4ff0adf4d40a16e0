"""The OpenAPI document as a list of callable operations: the one reading that tools and commands share.

Whether an operation is a tool, who may call it and what it does to the world stand in the document too
(`x-jobd`, written beside the route). Pure; standard library only, because every command imports this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from jobd_mcp.schemas import (
    Json,
    Schema,
    UnsuitableSchema,
    as_list,
    as_object,
    inlined,
    object_root,
)

SURFACE = "x-jobd"
_METHODS = ("get", "put", "post", "delete", "patch")


@dataclass(frozen=True)
class Request:
    """One HTTP request, spelled out. `query` keeps repeated names; `body` is JSON or nothing."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None

    @property
    def target(self) -> str:
        """Path and query as they stand in the request line."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path


@dataclass(frozen=True)
class Operation:
    """One route of the broker, as a program or an agent sees it.

    `input_schema` is one flat object: the parameters of path and query, and the members of the body.
    `output_schema` is None where the answer is text or nothing.
    """

    name: str
    method: str
    path: str
    title: str
    description: str
    input_schema: Schema
    output_schema: Schema | None
    in_path: frozenset[str]
    in_query: frozenset[str]
    in_body: frozenset[str]
    json_body: bool
    tool: bool
    because: str | None
    scope: str | None
    read_only: bool
    destructive: bool
    idempotent: bool
    text: bool

    @property
    def fields(self) -> Mapping[str, Schema]:
        """Argument name → schema, in the order of the document."""
        return {name: as_object(schema) for name, schema in as_object(self.input_schema["properties"]).items()}

    @property
    def required(self) -> frozenset[str]:
        return frozenset(name for name in as_list(self.input_schema.get("required")) if isinstance(name, str))

    def request(self, arguments: Mapping[str, Json]) -> Request:
        """The HTTP request that these arguments mean. Nulls are absent; lists repeat their name in the query.

        Raises KeyError for a missing path parameter: the caller checks arguments first.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        path = self.path
        for name in self.in_path:
            path = path.replace("{" + name + "}", quote(_text(given[name]), safe=""))
        query: list[tuple[str, str]] = []
        for name, value in given.items():
            if name in self.in_query:
                query.extend((name, _text(item)) for item in (value if isinstance(value, list) else [value]))
        body: bytes | None = None
        if self.json_body:
            members = {name: value for name, value in given.items() if name in self.in_body}
            body = json.dumps(members, separators=(",", ":"), allow_nan=False).encode()
        return Request(self.method, path, tuple(query), body)


def operations(document: Schema) -> list[Operation]:
    """Every operation of an OpenAPI document, in its order."""
    return [
        _operation(document, path, method, as_object(item), as_object(as_object(item)[method]))
        for path, item in as_object(document.get("paths")).items()
        for method in _METHODS
        if method in as_object(item)
    ]


def tools(document: Schema) -> list[Operation]:
    """The operations that agents get. Raises UnsuitableSchema if one can't be shown to them."""
    chosen = [operation for operation in operations(document) if operation.tool]
    for operation in chosen:
        object_root(operation.input_schema, f"the arguments of {operation.name}")
        if operation.output_schema is not None:
            object_root(operation.output_schema, f"the answer of {operation.name}")
    return chosen


def _operation(document: Schema, path: str, method: str, item: Schema, operation: Schema) -> Operation:
    surface = as_object(operation.get(SURFACE))
    parameters = [as_object(part) for part in (*as_list(item.get("parameters")), *as_list(operation.get("parameters")))]
    body = _json_content(as_object(operation.get("requestBody")))
    body_schema = inlined(document, body) if body is not None else {}
    if body is not None and "properties" not in body_schema:
        body_schema = {}  # not an object with known members: only programs that know the route send it
    in_body = frozenset(as_object(body_schema.get("properties")))
    in_path, in_query = _names(parameters, "path"), _names(parameters, "query")
    name = str(operation["operationId"])
    doubled = (in_path | in_query) & in_body
    if doubled:
        raise UnsuitableSchema(f"{name}: {sorted(doubled)} stand both in the parameters and in the body")
    text = bool(surface.get("text"))
    summary = str(operation.get("summary") or "")
    because = surface.get("because")
    scope = surface.get("scope")
    return Operation(
        name=name,
        method=method.upper(),
        path=path,
        title=summary or name.replace("_", " "),
        description=str(operation.get("description") or ""),
        input_schema=_input_schema(document, parameters, body_schema),
        output_schema=None if text else _output_schema(document, operation),
        in_path=in_path,
        in_query=in_query,
        in_body=in_body,
        json_body=body is not None,
        tool=surface.get("tool") is True,
        because=because if isinstance(because, str) else None,
        scope=scope if isinstance(scope, str) else None,
        read_only=bool(surface.get("read_only")),
        destructive=bool(surface.get("destructive")),
        idempotent=bool(surface.get("idempotent")),
        text=text,
    )


def _input_schema(document: Schema, parameters: list[Schema], body: Schema) -> Schema:
    """One flat object of parameters and body members. Unknown names are refused."""
    properties: Schema = {}
    required: list[Json] = []
    for parameter in parameters:
        if parameter.get("in") not in ("path", "query"):
            continue  # headers and cookies are no arguments
        schema = inlined(document, parameter.get("schema"))
        if "description" in parameter:
            schema["description"] = parameter["description"]
        properties[str(parameter["name"])] = schema
        if parameter.get("required"):
            required.append(parameter["name"])
    properties.update(as_object(body.get("properties")))
    required.extend(as_list(body.get("required")))
    result: Schema = {"type": "object", "properties": properties}
    if required:
        result["required"] = required
    result["additionalProperties"] = False
    return result


def _output_schema(document: Schema, operation: Schema) -> Schema | None:
    for code, response in as_object(operation.get("responses")).items():
        if code.startswith("2"):
            schema = _json_content(as_object(response))
            return inlined(document, schema, answer=True) if schema else None
    return None


def _json_content(holder: Schema) -> Schema | None:
    content = as_object(holder.get("content"))
    if "application/json" not in content:
        return None
    return as_object(as_object(content["application/json"]).get("schema"))


def _names(parameters: list[Schema], where: str) -> frozenset[str]:
    return frozenset(str(parameter["name"]) for parameter in parameters if parameter.get("in") == where)


def _text(value: Json) -> str:
    """A scalar as it stands in a URL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)
