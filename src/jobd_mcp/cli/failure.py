"""The one way in which a command fails: a line that says what, a hint that says what to do, and exit code 125."""

from __future__ import annotations

from jobd_mcp.schemas import Json, as_list, as_object

OWN_FAILURE = 125


class Failure(Exception):
    """Shown as `job: <message> (<code>)` and a hint; never a traceback."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        retryable: bool = False,
        status: int | None = None,
    ) -> None:
        """`status`: of the broker's answer, where that is what failed."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retryable = retryable
        self.code = code
        self.hint = hint

    def lines(self) -> list[str]:
        said = " ".join(self.message.split())
        first = f"job: {said} ({self.code})" if self.code else f"job: {said}"
        return [first, f"hint: {self.hint}"] if self.hint else [first]


def refused(answer: Json, status: int) -> Failure:
    """The failure that a problem document describes; whatever else was answered is described by its status."""
    problem = as_object(answer)
    detail = problem.get("detail") or problem.get("title") or f"the broker answered {status}"
    fields = [as_object(entry) for entry in as_list(problem.get("errors"))]
    said = "; ".join(f"{entry.get('field')}: {entry.get('message')}" for entry in fields if entry.get("message"))
    code, hint = problem.get("code"), problem.get("hint")
    return Failure(
        f"{detail}: {said}" if said and said not in str(detail) else str(detail),
        code=str(code) if code else None,
        hint=str(hint) if hint else None,
        retryable=problem.get("retryable") is True,
        status=status,
    )
