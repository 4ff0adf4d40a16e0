"""From document to request, and what sloppy arguments mean."""

from __future__ import annotations

import json
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote

import pytest
from fastapi import Body, FastAPI, Query
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from broker.http import surface
from broker.wire.jobs import JobSpec
from broker.wire.states import Scope
from jobd_mcp.arguments import BadArguments, understood
from jobd_mcp.operations import Operation, operations, tools
from jobd_mcp.schemas import UnsuitableSchema


class Wish(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: str | None = None
    argv: list[str] | None = None
    env: dict[str, str] | None = None
    limits: dict[str, int] | None = None
    level: int = 0
    share: float = 1
    hold: bool = False
    either: int | str | None = None


class Said(BaseModel):
    ok: bool


def app() -> FastAPI:
    made = FastAPI()

    @made.post(
        "/v1/things/{thing}/{part}", operation_id="thing_do", openapi_extra=surface.tool(Scope.SUBMIT, destructive=True)
    )
    async def thing_do(
        thing: str,
        part: int,
        wish: Wish,
        dry: bool = False,
        tag: Annotated[list[str] | None, Query()] = None,
        number: Annotated[list[int] | None, Query()] = None,
    ) -> Said:
        """Do it.

        With a second paragraph.
        """
        raise NotImplementedError

    @made.get("/v1/text", operation_id="thing_text", openapi_extra=surface.tool(Scope.READ, read_only=True, text=True))
    async def thing_text() -> str:
        """Read it."""
        raise NotImplementedError

    @made.put("/v1/raw", operation_id="thing_raw", openapi_extra=surface.not_a_tool(Scope.WORKER, because="bytes"))
    async def thing_raw(data: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Said:
        raise NotImplementedError

    return made


def operation(name: str) -> Operation:
    return next(one for one in operations(app().openapi()) if one.name == name)


DO = operation("thing_do")


def test_parameters_and_body_become_one_flat_object() -> None:
    assert list(DO.fields) == ["thing", "part", "dry", "tag", "number", *Wish.model_fields]
    assert DO.required == {"thing", "part"}
    assert DO.input_schema["type"] == "object"
    assert DO.input_schema["additionalProperties"] is False
    assert (DO.in_path, DO.in_query) == ({"thing", "part"}, {"dry", "tag", "number"})
    assert DO.in_body == Wish.model_fields.keys()


def test_what_a_route_says_of_itself_is_read() -> None:
    assert (DO.scope, DO.destructive, DO.read_only, DO.idempotent, DO.tool) == ("submit", True, False, False, True)
    assert DO.description.startswith("Do it.")
    assert "second paragraph" in DO.description
    raw = operation("thing_raw")
    assert (raw.tool, raw.because, raw.scope) == (False, "bytes", "worker")


def test_a_text_operation_has_no_schema_of_its_answer() -> None:
    assert operation("thing_text").output_schema is None
    assert DO.output_schema == {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def test_only_tools_are_offered() -> None:
    assert [one.name for one in tools(app().openapi())] == ["thing_do", "thing_text"]


def test_a_body_that_is_not_json_takes_no_arguments() -> None:
    raw = operation("thing_raw")
    assert (raw.json_body, raw.in_body, raw.fields) == (False, frozenset(), {})


def test_one_name_in_parameters_and_body_is_refused() -> None:
    made = FastAPI()

    @made.post("/v1/x", operation_id="x")
    async def x(wish: Wish, level: int) -> Said:
        raise NotImplementedError

    with pytest.raises(UnsuitableSchema, match="level"):
        operations(made.openapi())


def test_a_request_says_each_argument_where_it_belongs() -> None:
    request = DO.request({"thing": "a/b c", "part": 3, "dry": True, "tag": ["x", "y&z"], "level": 2, "command": None})
    assert request.method == "POST"
    assert request.path == "/v1/things/a%2Fb%20c/3"
    assert request.query == (("dry", "true"), ("tag", "x"), ("tag", "y&z"))
    assert request.target == "/v1/things/a%2Fb%20c/3?dry=true&tag=x&tag=y%26z"
    assert json.loads(request.body or b"") == {"level": 2}


def test_an_empty_body_is_still_an_object() -> None:
    assert DO.request({"thing": "a", "part": 1}).body == b"{}"
    assert operation("thing_text").request({}).body is None


@given(thing=st.text(min_size=1), tags=st.lists(st.text()))
def test_whatever_a_text_holds_it_arrives_whole_and_in_its_place(thing: str, tags: list[str]) -> None:
    try:
        thing.encode()
        "".join(tags).encode()
    except UnicodeEncodeError:
        return
    request = DO.request({"thing": thing, "part": 1, "tag": list(tags)})
    path, _, query = request.target.partition("?")
    assert path.count("/") == 4
    assert unquote(path.split("/")[3]) == thing
    assert [value for _, value in parse_qsl(query, keep_blank_values=True)] == tags


@pytest.mark.parametrize(
    ("given_as", "meant"),
    [
        ({"level": "3"}, {"level": 3}),
        ({"level": 3.0}, {"level": 3}),
        ({"share": "0.5"}, {"share": 0.5}),
        ({"hold": "true"}, {"hold": True}),
        ({"hold": "False"}, {"hold": False}),
        ({"argv": '["a","b"]'}, {"argv": ["a", "b"]}),
        ({"argv": "ls -la"}, {"argv": ["ls -la"]}),
        ({"number": "3"}, {"number": [3]}),
        ({"number": 3}, {"number": [3]}),
        ({"number": ["3", 4]}, {"number": [3, 4]}),
        ({"number": "[3, 4]"}, {"number": [3, 4]}),
        ({"env": "{}"}, {"env": {}}),
        ({"env": '{"A": "1"}'}, {"env": {"A": "1"}}),
        ({"command": True}, {"command": "true"}),
        ({"command": 3}, {"command": "3"}),
        ({"env": {"A": 1, "B": False}}, {"env": {"A": "1", "B": "false"}}),
        ({"argv": ["sleep", 0.5]}, {"argv": ["sleep", "0.5"]}),
        ({"limits": {"a": "4"}}, {"limits": {"a": 4}}),
        ({"command": None, "level": None}, {}),
    ],
)
def test_a_text_is_read_where_the_schema_says_it_can_be_no_text(given_as: dict, meant: dict) -> None:
    assert understood(DO, {"thing": "t", "part": 1, **given_as}) == {"thing": "t", "part": 1, **meant}


@pytest.mark.parametrize("text", ["3", "true", '["a"]', "{}", "null", '{"a": 1}', "", " 7 "])
def test_a_text_that_looks_like_json_stays_a_text_where_texts_are_allowed(text: str) -> None:
    meant = understood(
        DO, {"thing": text, "part": 1, "command": text, "either": text, "env": {"A": text}, "argv": [text]}
    )
    assert meant == {"thing": text, "part": 1, "command": text, "either": text, "env": {"A": text}, "argv": [text]}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("level", "many", "whole number"),
        ("level", 2.5, "whole number"),
        ("level", True, "whole number"),
        ("part", "1e400", "whole number"),
        ("share", "NaN", "a number"),
        ("share", [1], "a number"),
        ("hold", "yes", "true or false"),
        ("hold", 1, "true or false"),
        ("number", "[1, 2", "whole number"),
        ("number", {"a": 1}, "whole number"),
        ("env", "A=1", "an object"),
        ("env", "[]", "an object"),
        ("limits", {"a": "x"}, "whole number"),
    ],
)
def test_garbage_is_refused_naming_the_field(field: str, value: object, said: str) -> None:
    with pytest.raises(BadArguments) as refused:
        understood(DO, {"thing": "t", "part": 1, field: value})
    [misfit] = refused.value.misfits
    assert misfit.field == field
    assert said in misfit.message


def test_an_unknown_argument_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(BadArguments) as refused:
        understood(DO, {"thing": "t", "part": 1, "comand": "x", "zzz": 1})
    first, second = refused.value.misfits
    assert "did you mean command?" in first.message
    assert "thing, part" in second.message


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(BadArguments) as refused:
        understood(DO, {"part": "x", "levle": 1})
    assert [misfit.field for misfit in refused.value.misfits] == ["part", "levle", "thing"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_hostile_texts_are_refused_and_break_nothing(text: str) -> None:
    for field in ("level", "share", "hold", "env", "number"):
        with pytest.raises(BadArguments):
            understood(DO, {"thing": "t", "part": 1, field: text})


def test_every_field_of_a_specification_is_an_argument() -> None:
    made = FastAPI()

    @made.post("/v1/jobs", operation_id="job_submit", openapi_extra=surface.tool(Scope.SUBMIT))
    async def job_submit(spec: JobSpec, mode: Literal["a", "b"] = "a") -> Said:
        raise NotImplementedError

    [submit] = operations(made.openapi())
    assert submit.fields.keys() == {*JobSpec.model_fields, "mode"}
    assert submit.fields["env"]["additionalProperties"]["type"] == "string"
    assert submit.fields["on_worker_lost"]["enum"] == ["requeue", "requeue_exclusive", "orphan"]
