"""What a refusal looks like: problem documents after RFC 9457, with a stable code and a hint."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class ProblemCode(StrEnum):
    """Every refusal has one of these codes. Programs act on the code; nobody parses the text."""

    INVALID_SPEC = "invalid_spec"
    INVALID_REQUEST = "invalid_request"
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_WORKER = "unknown_worker"
    UNKNOWN_ATTEMPT = "unknown_attempt"
    UNKNOWN_LEASE = "unknown_lease"
    UNKNOWN_TOKEN = "unknown_token"
    UNKNOWN_WATCH = "unknown_watch"
    UNKNOWN_SCHEDULE = "unknown_schedule"
    UNKNOWN_SNAPSHOT = "unknown_snapshot"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_READY = "not_ready"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    FORBIDDEN_HOST = "forbidden_host"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    STALE_ASSIGNMENT = "stale_assignment"
    LEASE_LOST = "lease_lost"
    SUPERSEDED = "superseded"
    WORKER_NAME_TAKEN = "worker_name_taken"
    WORKER_IN_USE = "worker_in_use"
    OFFSET_GAP = "offset_gap"
    LOGS_PRUNED = "logs_pruned"
    BAD_CHECKSUM = "bad_checksum"
    ALREADY_STARTED = "already_started"
    ALREADY_TERMINAL = "already_terminal"
    ALREADY_ADOPTED = "already_adopted"
    NOT_RUNNING = "not_running"
    NOT_PREEMPTIBLE = "not_preemptible"
    NOT_TERMINAL = "not_terminal"
    NOT_RETRYABLE = "not_retryable"
    ALREADY_RETRIED = "already_retried"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    DEPENDENCY_UNSATISFIABLE = "dependency_unsatisfiable"
    CONFIRMATION_NEEDED = "confirmation_needed"
    QUOTA_EXCEEDED = "quota_exceeded"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    STORAGE_FULL = "storage_full"
    INTERNAL = "internal"


class FieldProblem(BaseModel):
    """One thing that is wrong with one field."""

    model_config = ConfigDict(frozen=True)

    field: str
    message: str


class Problem(BaseModel):
    """`application/problem+json`: what was refused, why, and what to do next."""

    model_config = ConfigDict(frozen=True)

    type: str
    title: str
    status: int
    detail: str
    code: ProblemCode
    hint: str | None = None
    field: str | None = None
    errors: list[FieldProblem] | None = None
    retryable: bool = False
    size: int | None = None  # offset_gap: how many bytes the broker has


class Refused(Exception):
    """Raised anywhere below `http`, answered as a `Problem`. `code` decides the HTTP status."""

    def __init__(
        self,
        code: ProblemCode,
        detail: str,
        *,
        hint: str | None = None,
        field: str | None = None,
        errors: list[FieldProblem] | None = None,
        retryable: bool = False,
        size: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.field = field
        self.errors = errors
        self.retryable = retryable
        self.size = size
