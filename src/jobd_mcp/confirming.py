"""Soft confirmation: what the broker wants confirmed, a client that can ask its user is asked to. One that can't hears what
to do instead (`force`), so there is never a dead end."""

from __future__ import annotations

from typing import Any, Literal

from mcp.server.mcpserver import AcceptedElicitation, Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel, Field

from jobd_mcp.calls import Answer
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import as_object
from jobd_mcp.tasks import VERSIONS

CODE = "confirmation_needed"
FORCE = "force"
KEY = "confirm"

Word = Literal["yes", "no", "cannot"]


class Confirmation(BaseModel):
    """What the user is shown."""

    confirm: bool = Field(title="Go ahead?")


def wanted(operation: Operation, answer: Answer) -> str | None:
    """What is to be confirmed, in the broker's words; None: nothing."""
    if FORCE not in operation.fields or answer.status != 409:
        return None
    problem = as_object(answer.json())
    return str(problem.get("detail")) if problem.get("code") == CODE else None


async def asked(context: Context[Any, Any], what: str) -> Word | InputRequiredResult:
    """The user's word; or, in the era where a call is repeated with it, the question. What was confirmed travels with the
    question, sealed: if by then something else is to be confirmed, it is asked anew."""
    declared = context.client_capabilities
    if declared is None or declared.elicitation is None:
        return "cannot"
    question = f"{what[:1].upper()}{what[1:]}. Go ahead?"
    if context.request_context.protocol_version not in VERSIONS:
        said = await context.elicit(question, Confirmation)
        return "yes" if isinstance(said, AcceptedElicitation) and said.data.confirm else "no"
    given = (context.input_responses or {}).get(KEY)
    if given is None or context.request_state != what:
        schema = Confirmation.model_json_schema()
        return InputRequiredResult(
            input_requests={
                KEY: ElicitRequest(params=ElicitRequestFormParams(message=question, requested_schema=schema))
            },
            request_state=what,
        )
    content = getattr(given, "content", None) or {}
    return "yes" if getattr(given, "action", None) == "accept" and content.get(KEY) is True else "no"
