"""Refusals as problem documents: code to status, and nothing that a stranger should not see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from broker.store.contract import StorageError, StorageFull
from broker.wire.adoptions import AdoptRequest
from broker.wire.jobs import CancelRequest, JobSpec, PreemptRequest, PreviewRequest, RetryRequest, Submission
from broker.wire.leases import LeaseRequest
from broker.wire.misfits import hint, misfit
from broker.wire.problems import FieldProblem, Problem, ProblemCode, Refused
from broker.wire.workers import WorkerUpdate

log = structlog.get_logger("broker.http")

MEDIA_TYPE = "application/problem+json"
C = ProblemCode
STATUS: Mapping[ProblemCode, int] = {
    C.INVALID_SPEC: 422,
    C.INVALID_REQUEST: 422,
    C.UNKNOWN_JOB: 404,
    C.UNKNOWN_WORKER: 404,
    C.UNKNOWN_ATTEMPT: 404,
    C.UNKNOWN_LEASE: 404,
    C.UNKNOWN_TOKEN: 404,
    C.UNKNOWN_WATCH: 404,
    C.UNKNOWN_SNAPSHOT: 404,
    C.UNKNOWN_SCHEDULE: 404,
    C.NOT_FOUND: 404,
    C.METHOD_NOT_ALLOWED: 405,
    C.NOT_READY: 503,
    C.UNAUTHENTICATED: 401,
    C.FORBIDDEN: 403,
    C.FORBIDDEN_HOST: 421,
    C.FORBIDDEN_ORIGIN: 403,
    C.STALE_ASSIGNMENT: 409,
    C.LEASE_LOST: 409,
    C.SUPERSEDED: 409,
    C.WORKER_NAME_TAKEN: 409,
    C.WORKER_IN_USE: 409,
    C.OFFSET_GAP: 409,
    C.LOGS_PRUNED: 410,
    C.BAD_CHECKSUM: 400,
    C.ALREADY_STARTED: 409,
    C.ALREADY_TERMINAL: 409,
    C.ALREADY_ADOPTED: 409,
    C.NOT_RUNNING: 409,
    C.NOT_PREEMPTIBLE: 409,
    C.NOT_TERMINAL: 409,
    C.NOT_RETRYABLE: 409,
    C.ALREADY_RETRIED: 409,
    C.IDEMPOTENCY_CONFLICT: 409,
    C.DEPENDENCY_UNSATISFIABLE: 409,
    C.CONFIRMATION_NEEDED: 409,
    C.QUOTA_EXCEEDED: 429,
    C.PAYLOAD_TOO_LARGE: 413,
    C.STORAGE_FULL: 507,
    C.INTERNAL: 500,
}


def problem(refused: Refused) -> Problem:
    status = STATUS[refused.code]
    return Problem(
        type=f"urn:jobd:problem:{refused.code.value}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=refused.detail,
        code=refused.code,
        hint=refused.hint,
        field=refused.field,
        errors=refused.errors,
        retryable=refused.retryable,
        size=refused.size,
    )


def response(refused: Refused) -> JSONResponse:
    document = problem(refused)
    headers = {"WWW-Authenticate": "Bearer"} if refused.code is C.UNAUTHENTICATED else {}
    return JSONResponse(
        document.model_dump(mode="json", exclude_none=True), document.status, headers=headers, media_type=MEDIA_TYPE
    )


def install(app: FastAPI) -> None:
    """Every way to fail ends here, as one kind of document."""

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return response(invalid_request(request.method, request.url.path, error.errors()))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return response(_from_http(request, error))

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: ClientDisconnect) -> JSONResponse:
        return response(Refused(C.INVALID_REQUEST, "the client left before its body had come"))  # heard by nobody

    @app.exception_handler(StorageFull)
    async def full(request: Request, __: StorageFull) -> JSONResponse:
        log.error("the disk is full; nothing was kept", path=request.url.path)
        return response(
            Refused(
                C.STORAGE_FULL,
                "the broker's disk is full; nothing was kept",
                hint="make room on its disk",
                retryable=True,
            )
        )

    @app.exception_handler(StorageError)
    async def failed(_: Request, error: StorageError) -> JSONResponse:
        log.error("storage failed", why=str(error))
        return response(
            Refused(
                C.NOT_READY,
                "the broker's store can't be used now; nothing was kept",
                hint="job doctor; the broker's log",
                retryable=True,
            )
        )

    @app.exception_handler(Exception)
    async def internal(request: Request, error: Exception) -> JSONResponse:
        log.error("unexpected", path=request.url.path, exc_info=error)
        return response(Refused(C.INTERNAL, "the broker met a fault of its own; its log has the details"))


def invalid_request(method: str, path: str, errors: Iterable[Mapping[str, Any]]) -> Refused:
    """What pydantic found, as one refusal that names each field."""
    found = [misfit(error) for error in errors]
    model = _model_of(method, path)
    first = found[0] if found else FieldProblem(field="body", message="is not valid")
    detail = f"{first.field}: {first.message}" if first.field else first.message
    if len(found) > 1:
        detail += f" (and {len(found) - 1} more)"
    return Refused(
        C.INVALID_SPEC if model in (JobSpec, Submission) else C.INVALID_REQUEST,
        detail,
        field=first.field or None,
        errors=found if len(found) > 1 else None,
        hint=hint(first, model),
    )


def _model_of(method: str, path: str) -> type[BaseModel]:
    """Whose fields a wrong name was meant to be one of."""
    if method == "PATCH":
        return WorkerUpdate
    bodies: Mapping[str, type[BaseModel]] = {
        "jobs": Submission,
        "batch": JobSpec,
        "retry": RetryRequest,
        "preempt": PreemptRequest,
        "preview": PreviewRequest,
        "adopt": AdoptRequest,
        "leases": LeaseRequest,
    }
    return bodies.get(path.rstrip("/").rpartition("/")[2], CancelRequest) if method == "POST" else CancelRequest


def _from_http(request: Request, error: HTTPException) -> Refused:
    if isinstance(error.__cause__, Refused):
        return error.__cause__  # raised while the body was read, and wrapped by the framework
    match error.status_code:
        case 404:
            return Refused(
                C.NOT_FOUND, f"there is nothing at {request.url.path[:200]}", hint="GET /openapi.json lists all routes"
            )
        case 405:
            return Refused(
                C.METHOD_NOT_ALLOWED,
                f"{request.method[:20]} is not possible here",
                hint="GET /openapi.json lists all routes",
            )
        case 413:
            return Refused(C.PAYLOAD_TOO_LARGE, "the body is too large")
        case _:
            return Refused(C.INVALID_REQUEST, "the body can't be read: it must be JSON in UTF-8", field="body")
