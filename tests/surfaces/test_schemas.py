"""What agents see of a schema."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from jobd_mcp.schemas import UnsuitableSchema, inlined, object_root, types_of, without_nulls


class Inner(BaseModel):
    title: str = Field(description="A member that happens to be called title.")
    tags: list[str] | None = None


class Outer(BaseModel):
    inner: Inner | None = None
    both: int | str | None = Field(None, description="either")
    many: list[Inner] = []
    named: dict[str, Inner] = {}
    may_be_none: int | None


def document_of(*models: type[BaseModel]) -> dict:
    _, definitions = models_json_schema([(model, "validation") for model in models])
    text = definitions.get("$defs", {})
    return {"components": {"schemas": _moved(text)}}


def _moved(value):
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{member.rsplit('/', 1)[1]}" if key == "$ref" else _moved(member)
            for key, member in value.items()
        }
    return [_moved(member) for member in value] if isinstance(value, list) else value


def reference(model: type[BaseModel]) -> dict:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def every_schema(schema: dict) -> list[dict]:
    """All schemas in a schema; names of members are not keywords."""
    found = [schema]
    for key, value in schema.items():
        if key == "properties":
            found += [inner for member in value.values() for inner in every_schema(member)]
        elif key in ("anyOf", "oneOf", "allOf"):
            found += [inner for member in value for inner in every_schema(member)]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            found += every_schema(value)
    return found


@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.trial("B18")
def test_references_titles_and_nulls_are_gone_at_every_depth(answer: bool) -> None:
    schema = inlined(document_of(Outer), reference(Outer), answer=answer)
    for part in every_schema(schema):
        assert not {"$ref", "$defs", "title", "discriminator"} & part.keys()
        assert part.get("type") != "null"
        assert part.get("default", 0) is not None


def test_a_member_called_title_is_kept() -> None:
    schema = inlined(document_of(Outer), reference(Outer))
    assert schema["properties"]["inner"]["properties"]["title"]["type"] == "string"


def test_an_optional_type_becomes_the_type_and_keeps_its_description() -> None:
    schema = inlined(document_of(Outer), reference(Outer))
    assert schema["properties"]["both"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": "either"}
    assert schema["properties"]["inner"]["type"] == "object"


def test_answers_do_not_require_what_may_be_left_out_as_null() -> None:
    assert inlined(document_of(Outer), reference(Outer), answer=True).get("required") is None
    assert inlined(document_of(Outer), reference(Outer))["required"] == ["may_be_none"]


def test_answers_may_grow_and_requests_may_not() -> None:
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    assert "additionalProperties" not in inlined({}, closed, answer=True)
    assert inlined({}, closed)["additionalProperties"] is False


def test_a_schema_that_contains_itself_is_refused_and_not_followed_for_ever() -> None:
    document = {
        "components": {
            "schemas": {"Tree": {"type": "object", "properties": {"left": {"$ref": "#/components/schemas/Tree"}}}}
        }
    }
    with pytest.raises(UnsuitableSchema, match="contains itself"):
        inlined(document, {"$ref": "#/components/schemas/Tree"})
    document = {"components": {"schemas": {"A": {"$ref": "#/components/schemas/A"}}}}
    with pytest.raises(UnsuitableSchema):
        inlined(document, {"$ref": "#/components/schemas/A"})


@pytest.mark.parametrize("target", ["#/components/schemas/Absent", "other.json#/Thing", "#/paths"])
def test_a_reference_that_names_nothing_is_refused(target: str) -> None:
    with pytest.raises(UnsuitableSchema, match="reference"):
        inlined({"components": {"schemas": {}}}, {"$ref": target})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "oneOf": []},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "allOf": []},
        {},
    ],
)
@pytest.mark.trial("B16")
def test_only_a_plain_object_may_be_a_root(schema: dict) -> None:
    with pytest.raises(UnsuitableSchema, match="the answer of it"):
        object_root(schema, "the answer of it")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_no_null_is_left_as_a_member_and_all_else_stays(value) -> None:
    def check(before, after) -> None:
        if isinstance(before, dict):
            assert after.keys() == {key for key, member in before.items() if member is not None}
            for key in after:
                check(before[key], after[key])
        elif isinstance(before, list):
            assert len(before) == len(after)
            for one, other in zip(before, after, strict=True):
                check(one, other)
        else:
            assert before == after

    check(value, without_nulls(value))


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "integer"]}, {"string", "integer"}),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, {"integer", "array"}),
        ({"anyOf": [{"type": "integer"}, {}]}, set()),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"const": 3}, set()),
        ({}, set()),
    ],
)
def test_types_are_read_from_every_form_that_says_them(schema: dict, types: set[str]) -> None:
    assert types_of(schema) == types
