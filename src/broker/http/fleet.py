"""Workers and events, for those who look; and the routes on which workers speak."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import WithJsonSchema

from broker.http import surface
from broker.http.auth import caller
from broker.http.parameters import MOST_OFFSET, Attempt, Id, The, Who, WorkerId, WorkerName, answered, broker_of
from broker.service import exchange, outcomes, output, queries, registration, workers
from broker.wire.events import EventList, EventType
from broker.wire.jobs import MOST_ID, Name
from broker.wire.outcomes import MOST_RESULT_BYTES, ArtifactName, ArtifactSize, ResultKept, Sha256
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope
from broker.wire.workers import (
    LogSize,
    Poll,
    PollAnswer,
    Registered,
    Registration,
    Report,
    ReportAnswer,
    Uuid,
    Worker,
    WorkerList,
    WorkerUpdate,
)

router = APIRouter(prefix="/v1", tags=["fleet"])
asked_most = APIRouter(prefix="/v1", tags=["fleet"])
"""The routes that workers ask all the time. Routes are tried one by one, so these are to stand before all others."""

# All types in each list of tools would cost an agent more than a refusal that names them.
EventTypeName = Annotated[EventType, WithJsonSchema({"type": "string"})]
FOR_WORKERS = "spoken by workers, not by people or agents"


@router.get("/events", openapi_extra=surface.tool(Scope.READ, read_only=True), response_model_exclude_none=True)
async def job_events(
    broker: The,
    since: Annotated[int, Query(ge=0, le=MOST_ID, description="next_cursor.")] = 0,
    type: Annotated[EventTypeName | None, Query(description="As job_failed.")] = None,  # noqa: A002 - the event's own word
    job: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
    project: Annotated[Name | None, Query()] = None,
    worker: Annotated[Name | None, Query()] = None,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    last: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
) -> EventList:
    """What happened and why, in order."""
    if last is not None:
        since = max(since, await queries.last_event(broker) - last)
    return await queries.list_events(broker, since, queries.EventFilter(type, job, project, worker, actor), limit)


@router.get("/workers", openapi_extra=surface.tool(Scope.READ, read_only=True), response_model_exclude_none=True)
async def worker_list(broker: The) -> WorkerList:
    """The machines: what they have and run, when last heard."""
    return await queries.list_workers(broker)


@router.patch(
    "/workers/{worker}",
    openapi_extra=surface.tool(Scope.OPERATOR, idempotent=True),
    response_model_exclude_none=True,
)
async def worker_update(worker: WorkerName, request: WorkerUpdate, broker: The, who: Who) -> Worker:
    """Drain, cordon or resume a worker, or give it tags. Its running jobs go on."""
    return await workers.update(broker, who, worker, request)


@router.delete(
    "/workers/{worker}",
    openapi_extra=surface.not_a_tool(Scope.OPERATOR, because="forgets a machine: people decide that, with job"),
    response_model_exclude_none=True,
)
async def worker_remove(worker: WorkerName, broker: The, who: Who) -> WorkerList:
    """Forget a worker that is lost and owns no job that has not ended. The workers that are left."""
    return await workers.remove(broker, who, worker)


@router.post(
    "/workers/{worker}/register",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because=FOR_WORKERS),
    response_model_exclude_none=True,
)
async def worker_register(worker: WorkerId, said: Registration, broker: The, who: Who) -> Registered:
    """A worker process announces itself; its epoch grows with each start."""
    return await registration.register(broker, who, worker, said)


@asked_most.post(
    "/workers/{worker}/poll",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because=FOR_WORKERS),
    response_model=PollAnswer,
)
async def worker_poll(worker: WorkerId, said: Poll, request: Request) -> Response:
    """The held list in; assignments and stops out. Parked while there is nothing to say."""
    client = exchange.Client(gone=request.is_disconnected, left=partial(_left, request))
    broker, who = await broker_of(request), await caller(request)
    return answered(await exchange.poll(broker, who, worker, said, client))


async def _left(request: Request) -> None:
    """Wait until the client closes its connection. Its body was read: nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@asked_most.post(
    "/workers/{worker}/report",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because=FOR_WORKERS),
    response_model=ReportAnswer,
)
async def worker_report(worker: WorkerId, said: Report, request: Request) -> Response:
    """Transitions and the held list in; a verdict for each out."""
    return answered(await exchange.report(await broker_of(request), await caller(request), worker, said))


async def _holder(
    job: Id,
    attempt: Attempt,
    x_jobd_worker: Annotated[Uuid, Header()],
    x_jobd_epoch: Annotated[int, Header(ge=1, le=MOST_ID)],
    x_jobd_token: Annotated[str, Header(max_length=200)],
) -> output.Holder:
    """By which right bytes of a delivery are sent."""
    return output.Holder(x_jobd_worker, x_jobd_epoch, job, attempt, x_jobd_token)


@asked_most.put(
    "/jobs/{job}/assignments/{attempt}/log",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because=FOR_WORKERS),
    response_model_exclude_none=True,
)
async def worker_log(
    holder: Annotated[output.Holder, Depends(_holder)],
    request: Request,
    broker: The,
    who: Who,
    offset: Annotated[int, Query(ge=0, le=MOST_OFFSET)],
    crc32: Annotated[int, Query(ge=0, lt=1 << 32)],
    stream: Annotated[Literal["log", "index"], Query()] = "log",
    end: Annotated[int | None, Query(ge=0, le=MOST_OFFSET, description="All that its holder has, at the end.")] = None,
) -> LogSize:
    """Bytes of output at an offset: what is there is skipped, a gap is refused with the size."""
    data = await _body(request, output.MOST_IN_ONE_CHUNK)
    return await output.append(broker, who, holder, stream, offset, crc32, data, end)


@asked_most.put(
    "/jobs/{job}/assignments/{attempt}/result",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because=FOR_WORKERS),
    response_model_exclude_none=True,
)
async def worker_result(
    holder: Annotated[output.Holder, Depends(_holder)],
    request: Request,
    broker: The,
    who: Who,
) -> ResultKept:
    """What came out of a job, as JSON of at most 256 KiB: kept once."""
    return await outcomes.keep_result(broker, who, holder, await _body(request, MOST_RESULT_BYTES))


@asked_most.put(
    "/jobs/{job}/assignments/{attempt}/artifacts/{name:path}",
    openapi_extra=surface.not_a_tool(Scope.WORKER, because=FOR_WORKERS),
    response_model_exclude_none=True,
)
async def worker_artifact(
    holder: Annotated[output.Holder, Depends(_holder)],
    name: ArtifactName,
    request: Request,
    broker: The,
    who: Who,
    size: Annotated[int, Query(ge=0, le=MOST_OFFSET, description="Of the whole file.")],
    sha256: Annotated[Sha256, Query(description="Of the whole file.")],
    offset: Annotated[int, Query(ge=0, le=MOST_OFFSET)],
    crc32: Annotated[int, Query(ge=0, lt=1 << 32)],
) -> ArtifactSize:
    """Bytes of a file that a job left, at an offset: as of output. Kept when all are here and match the checksum."""
    data = await _body(request, output.MOST_IN_ONE_CHUNK)
    return await outcomes.put_artifact(broker, who, holder, outcomes.Offer(name, size, sha256), offset, crc32, data)


async def _body(request: Request, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise Refused(ProblemCode.PAYLOAD_TOO_LARGE, f"at most {most} bytes are taken at once")
    return b"".join(pieces)
