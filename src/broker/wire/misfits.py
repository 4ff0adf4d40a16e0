"""What is wrong with a request, field by field: a model's complaints in our words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from broker.wire.problems import FieldProblem

UNKNOWN = "there is no such field"
_WHERE = frozenset({"body", "query", "path", "header"})


def misfit(error: Mapping[str, Any]) -> FieldProblem:
    """One entry of a `ValidationError`'s `errors()`."""
    location = [str(part) for part in error["loc"] if part not in _WHERE]
    if error["type"] == "json_invalid":
        return FieldProblem(field="body", message="is not valid JSON")
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = UNKNOWN
    if error["type"] == "missing":
        message = "is needed"
    return FieldProblem(field=".".join(location), message=message)


def hint(problem: FieldProblem, model: type[BaseModel]) -> str | None:
    """Of a field that there is not: the one of `model` that was meant."""
    if problem.message != UNKNOWN:
        return None
    name = problem.field.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(name, model.model_fields, n=1)
    return f"did you mean {near[0]}?" if near else f"fields: {', '.join(model.model_fields)}"
