"""The guard of the surface, and that it catches what is planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI, WebSocket
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Route

from broker.app import create_app
from broker.http import auth, surface
from broker.wire.jobs import JobSpec
from broker.wire.states import Scope
from jobd_mcp import guard
from jobd_mcp.operations import operations, tools
from support.tokens import tokens

TOKEN_LIMIT = 2200


class Said(BaseModel):
    ok: bool


def faults(app: FastAPI) -> list[str]:
    return guard.faults(app, {}, auth.PUBLIC_PATHS)


def planted_undecided(app: FastAPI) -> None:
    @app.get("/v1/undecided")
    async def undecided() -> Said:
        """Neither."""
        raise NotImplementedError


def planted_without_reason(app: FastAPI) -> None:
    @app.get("/v1/silent", openapi_extra=surface.not_a_tool(Scope.READ, because=" "))
    async def silent() -> Said:
        """Excused with nothing."""
        raise NotImplementedError


def planted_hidden(app: FastAPI) -> None:
    @app.get("/v1/hidden", include_in_schema=False, openapi_extra=surface.tool(Scope.READ))
    async def hidden() -> Said:
        """Not in the document."""
        raise NotImplementedError


def planted_mount(app: FastAPI) -> None:
    app.mount("/side", Starlette())


def planted_websocket(app: FastAPI) -> None:
    @app.websocket("/v1/socket")
    async def socket(websocket: WebSocket) -> None:
        raise NotImplementedError


def planted_plain_route(app: FastAPI) -> None:
    app.router.routes.append(Route("/plain", lambda _: PlainTextResponse("")))


def planted_without_scope(app: FastAPI) -> None:
    @app.get("/v1/open", openapi_extra=surface.not_a_tool(None, because="forgotten"))
    async def opened() -> Said:
        """No scope, and not public."""
        raise NotImplementedError


def planted_without_docstring(app: FastAPI) -> None:
    @app.get("/v1/mute", openapi_extra=surface.tool(Scope.READ), summary="")
    async def mute() -> Said:
        raise NotImplementedError


def planted_long_docstring(app: FastAPI) -> None:
    @app.get("/v1/long", openapi_extra=surface.tool(Scope.READ), description="x" * 2001)
    async def long() -> Said:
        raise NotImplementedError


def planted_union_answer(app: FastAPI) -> None:
    @app.get("/v1/either", openapi_extra=surface.tool(Scope.READ))
    async def either() -> Said | JobSpec:
        """A combinator at the root."""
        raise NotImplementedError


def planted_list_answer(app: FastAPI) -> None:
    @app.get("/v1/list", openapi_extra=surface.tool(Scope.READ))
    async def listed() -> list[Said]:
        """Not an object."""
        raise NotImplementedError


def planted_long_name(app: FastAPI) -> None:
    @app.get("/v1/named", operation_id="n" * 34, openapi_extra=surface.tool(Scope.READ))
    async def named() -> Said:
        """Too long with a prefix."""
        raise NotImplementedError


def planted_doubled_name(app: FastAPI) -> None:
    @app.get("/v1/again", operation_id="job_list", openapi_extra=surface.tool(Scope.READ))
    async def again() -> Said:
        """The same name twice."""
        raise NotImplementedError


@pytest.mark.guarantee("G21")
def test_the_broker_keeps_every_rule() -> None:
    assert faults(create_app(None)) == []


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (planted_undecided, "neither a tool nor excused"),
        (planted_without_reason, "neither a tool nor excused"),
        (planted_hidden, "hidden from the document"),
        (planted_mount, "is a Mount"),
        (planted_websocket, "WebSocketRoute"),
        (planted_plain_route, "is a Route"),
        (planted_without_scope, "has no scope"),
        (planted_without_docstring, "no docstring"),
        (planted_long_docstring, "2001 characters"),
        (planted_union_answer, "not a plain object"),
        (planted_list_answer, "not a plain object"),
        (planted_long_name, "too long"),
        (planted_doubled_name, "two operations are called job_list"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
@pytest.mark.guarantee("G21")
@pytest.mark.trial("B63")
def test_what_is_planted_is_caught(plant: Callable[[FastAPI], None], said: str) -> None:
    app = create_app(None)
    plant(app)
    assert any(said in fault for fault in faults(app)), faults(app)


def test_an_excuse_for_a_route_that_is_gone_is_caught() -> None:
    assert any(
        "no route has it" in fault for fault in guard.faults(create_app(None), {"/old": "why"}, auth.PUBLIC_PATHS)
    )


@pytest.mark.guarantee("G21")
@pytest.mark.trial("B63")
def test_every_field_of_a_specification_is_an_argument_of_submit() -> None:
    [submit] = [operation for operation in operations(create_app(None).openapi()) if operation.name == "job_submit"]
    assert guard.missing_fields(submit, JobSpec.model_fields) == []
    assert guard.missing_fields(submit, [*JobSpec.model_fields, "gpus_planted"]) == ["gpus_planted"]


@pytest.mark.trial("B16", "B18", "B19")
def test_no_schema_needs_a_clever_client() -> None:
    def check(part: object) -> None:
        if isinstance(part, list):
            for member in part:
                check(member)
        if isinstance(part, dict):
            assert not {"$ref", "$defs", "definitions"} & part.keys()
            for member in part.values():
                check(member)

    for operation in tools(create_app(None).openapi()):
        for schema in (operation.input_schema, operation.output_schema or {"type": "object"}):
            assert schema["type"] == "object"
            assert not {"anyOf", "oneOf", "allOf", "not", "enum"} & schema.keys()
            assert "title" not in schema
            check(schema)
        assert operation.input_schema["additionalProperties"] is False


def test_what_the_model_sees_of_the_tools_is_small(tmp_path: Path) -> None:
    visible = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in tools(create_app(None).openapi())
    ]
    assert 500 < tokens(json.dumps(visible, separators=(",", ":")), tmp_path) <= TOKEN_LIMIT
