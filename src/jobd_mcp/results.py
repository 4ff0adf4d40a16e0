"""Answers of the broker as tool results. A refusal is a result that the model can act on, never a protocol error."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mcp.types import CallToolResult, TextContent

from jobd_mcp.arguments import BadArguments
from jobd_mcp.calls import Answer
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, as_list, as_object, without_nulls

LONGEST_DETAIL = 2000
_RETRYABLE = frozenset({408, 425, 429, 502, 503, 504})
_HINTS = {
    401: "Set JOBD_TOKEN to a token of this broker: job token create.",
    403: "Ask the owner for a token with that scope: job token create --scope.",
    404: "Is JOBD_URL the address of a jobd broker?",
    413: "Send less at once.",
    429: "Wait a moment, then call again.",
}


@dataclass(frozen=True)
class Refusal:
    """Why a call was refused, in the words of a problem document."""

    code: str
    detail: str
    fields: tuple[str, ...] = ()
    hint: str | None = None
    retryable: bool = False

    def result(self) -> CallToolResult:
        lines = [f"{self.code}: {self.detail[:LONGEST_DETAIL]}"]
        lines += [f"field: {field[:LONGEST_DETAIL]}" for field in self.fields[:20]]
        if self.hint:
            lines.append(f"hint: {self.hint[:LONGEST_DETAIL]}")
        lines.append(f"retryable: {'yes' if self.retryable else 'no'}")
        return CallToolResult(content=[TextContent(type="text", text="\n".join(lines))], is_error=True)


def bad_arguments(operation: Operation, error: BadArguments) -> Refusal:
    return Refusal(
        code="invalid_request",
        detail=f"{operation.name} was not called, because of its arguments.",
        fields=tuple(f"{misfit.field}: {misfit.message}" for misfit in error.misfits),
    )


def too_slow(operation: Operation, limit_s: float) -> Refusal:
    return Refusal(
        code="timeout",
        detail=f"the broker did not answer {operation.name} within {limit_s:g} s.",
        hint=again(operation),
        retryable=True,
    )


def declined(operation: Operation, what: str) -> Refusal:
    return Refusal(
        code="declined",
        detail=f"the user did not confirm {operation.name}: {what}.",
        hint="Nothing was changed. Ask the user before you try it another way.",
    )


def unreachable(operation: Operation, why: str) -> Refusal:
    return Refusal(
        code="unreachable", detail=f"{why}.", hint=f"Is the broker running? {again(operation)}", retryable=True
    )


def again(operation: Operation) -> str:
    """Whether the call may simply be repeated when its answer is lost."""
    if operation.read_only or operation.idempotent:
        return "Call again: a repeat does no harm."
    return f"It may have been done: look with job_list before you call {operation.name} again."


def result(operation: Operation, answer: Answer) -> CallToolResult:
    """The tool result that this answer means."""
    if not 200 <= answer.status < 300:
        return _refusal(operation, answer).result()
    if operation.text:
        text = answer.body.decode("utf-8", "replace")
        return CallToolResult(content=[TextContent(type="text", text=text)])
    value = answer.json()
    if not isinstance(value, dict):
        return Refusal(
            code="bad_answer",
            detail=f"the answer to {operation.name} is no JSON object; is something between us and the broker?",
            hint=again(operation),
            retryable=True,
        ).result()
    structured = as_object(without_nulls(value))
    text = json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=structured)


def _refusal(operation: Operation, answer: Answer) -> Refusal:
    """A problem document as it stands; anything else (a proxy's page, say) by its status alone."""
    problem = as_object(answer.json())
    code, detail = problem.get("code"), problem.get("detail")
    if not isinstance(code, str) or not isinstance(detail, str):
        return Refusal(
            code=f"http_{answer.status}",
            detail=f"{operation.name} was answered with status {answer.status}, and not by a jobd broker.",
            fields=tuple(_fields(as_list(detail))),
            hint=_HINTS.get(answer.status, again(operation) if answer.status in _RETRYABLE else None),
            retryable=answer.status in _RETRYABLE,
        )
    fields = [f"{part.get('field')}: {part.get('message')}" for part in map(as_object, as_list(problem.get("errors")))]
    field = problem.get("field")
    hint = problem.get("hint")
    return Refusal(
        code=code,
        detail=detail,
        fields=tuple(fields) or ((field,) if isinstance(field, str) else ()),
        hint=hint if isinstance(hint, str) else None,
        retryable=problem.get("retryable") is True,
    )


def _fields(details: list[Json]) -> list[str]:
    """The fields in a list of validation errors as FastAPI writes it."""
    return [
        f"{'.'.join(str(part) for part in as_list(detail.get('loc')))}: {detail.get('msg')}"
        for detail in map(as_object, details)
        if "loc" in detail
    ]
