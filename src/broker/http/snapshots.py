"""Snapshots: put and asked for by whoever submits, fetched by workers, read by people."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from broker.http import surface
from broker.http.parameters import Id, The
from broker.service import snapshots
from broker.wire.snapshots import Sha256, Snapshot, SnapshotKept
from broker.wire.states import Scope

router = APIRouter(prefix="/v1", tags=["snapshots"])

Digest = Annotated[Sha256, Path(description="Of its content.")]
PUT_BY_JOB = "bytes: job submit puts them by itself"


@router.put("/snapshots/{sha256}", openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=PUT_BY_JOB))
async def snapshot_put(sha256: Digest, request: Request, broker: The) -> SnapshotKept:
    """Keep a snapshot, whose bytes are the body. A repeat changes nothing."""
    return await snapshots.put(broker, sha256, request.stream())


@router.head("/snapshots/{sha256}", openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=PUT_BY_JOB))
async def snapshot_known(sha256: Digest, broker: The) -> Response:
    """Whether a snapshot is there; it then stays for a day at least."""
    await snapshots.known(broker, sha256)
    return Response()


@router.get(
    "/snapshots/{sha256}",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because="fetched by workers, which run a job in it"),
    response_class=FileResponse,
)
async def snapshot_get(sha256: Digest, broker: The) -> FileResponse:
    """The bytes of a snapshot."""
    return FileResponse(await snapshots.file_of(broker, sha256), media_type="application/octet-stream")


@router.get(
    "/jobs/{job}/snapshot",
    openapi_extra=surface.not_a_tool(Scope.READ, because="job_get with detail=full says it without the diff"),
    response_model_exclude_none=True,
)
async def job_snapshot(job: Id, broker: The) -> Snapshot:
    """The code of a job: the commit and what differed from it, or which copy it runs from."""
    return await snapshots.of_job(broker, job)
