"""Server-sent events: output and events as they come. `Last-Event-ID` resumes without gap or repeat."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from broker.http import surface
from broker.http.parameters import MOST_OFFSET, Id, OptionalAttempt, The
from broker.service import output, queries
from broker.wire.events import Event
from broker.wire.jobs import MOST_ID
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import Scope

router = APIRouter(prefix="/v1", tags=["streams"])

STREAM = "a stream: agents read pages with job_logs, or wait with job_wait"
MEDIA_TYPE = "text/event-stream"
SIGN_OF_LIFE = ": still here\n\n"
LINGER_S = 10.0
SILENCE_S = 15.0
EVENTS_AT_ONCE = 200


@router.get(
    "/jobs/{job}/log/stream",
    openapi_extra=surface.not_a_tool(Scope.READ, because=STREAM),
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}}},
)
async def job_log_stream(
    job: Id,
    request: Request,
    broker: The,
    attempt: OptionalAttempt = None,
    cursor: Annotated[int, Query(ge=0, le=MOST_OFFSET, description="Byte offset to begin at.")] = 0,
    last_event_id: Annotated[str | None, Header(max_length=60)] = None,
) -> StreamingResponse:
    """Follow a job's output, exact bytes, over all its attempts.

    Each `output` has `attempt`, `start`, `stream` and `base64`; the id is `attempt.offset` after it. `end` has
    the job's state, exit code, and whether all output arrived.
    """
    found = await queries.get_job(broker, job, "concise")
    if found.logs_pruned:
        raise output.pruned(job)
    first = attempt if attempt is not None else found.attempt or 0
    if last_event_id is not None:
        first, cursor = _resume(last_event_id)
    follow = output.follow(broker, job, first, cursor, request.is_disconnected, LINGER_S)
    return StreamingResponse(_outputs(follow), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})


@router.get(
    "/events/stream",
    openapi_extra=surface.not_a_tool(Scope.READ, because=STREAM),
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}}},
)
async def event_stream(
    request: Request,
    broker: The,
    since: Annotated[int | None, Query(ge=0, le=MOST_ID, description="Begin after this event; default: now.")] = None,
    job: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
    last_event_id: Annotated[str | None, Header(max_length=30)] = None,
) -> StreamingResponse:
    """Follow events; the id of each is its `seq`. First `pruned`, if some after `since` were removed."""
    if last_event_id is not None:
        since = _number(last_event_id)
    if since is None:
        since = await queries.last_event(broker)
    events = _events(request, broker, since) if job is None else _events_of_job(request, broker, since, job)
    return StreamingResponse(events, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})


async def _outputs(follow: AsyncIterator[output.Piece | output.End | None]) -> AsyncIterator[str]:
    async for piece in follow:
        match piece:
            case output.Piece():
                text = base64.b64encode(piece.data).decode()
                data: dict[str, object] = {
                    "attempt": piece.attempt,
                    "start": piece.start,
                    "stream": piece.stream.value,
                    "base64": text,
                }
                yield _event("output", data, f"{piece.attempt}.{piece.end}")
            case output.End():
                data = {"state": piece.state.value, "exit_code": piece.exit_code, "log_complete": piece.complete}
                yield _event("end", data, None)
            case None:
                yield SIGN_OF_LIFE


async def _events(request: Request, broker: The, since: int) -> AsyncIterator[str]:
    pruned_to = await queries.events_pruned_to(broker, since)
    if pruned_to is not None:
        yield _event("pruned", {"to": pruned_to}, None)
    with broker.feed.follow() as turns:
        while not broker.wake.closed:
            page = await broker.feed.after(since)
            text = page.text_after(since, _framed)
            if text:
                yield text
            since = page.end(since)
            if not await turns.next(SILENCE_S, more=page.whole):
                if await request.is_disconnected():
                    return
                yield SIGN_OF_LIFE


async def _events_of_job(request: Request, broker: The, since: int, job: int) -> AsyncIterator[str]:
    wanted = queries.EventFilter(job=job)
    with broker.wake.watch_events(job) as watch:
        while not broker.wake.closed:
            page = await queries.list_events(broker, since, wanted, EVENTS_AT_ONCE)
            if page.events:
                yield "".join(map(_framed, page.events))
            since = page.next_cursor
            if len(page.events) < EVENTS_AT_ONCE and not await watch.wait(SILENCE_S):
                if await request.is_disconnected():
                    return
                yield SIGN_OF_LIFE


def _framed(event: Event) -> str:
    return f"id: {event.seq}\nevent: event\ndata: {event.model_dump_json(exclude_none=True)}\n\n"


def _event(kind: str, data: object, number: str | None) -> str:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _resume(last: str) -> tuple[int, int]:
    attempt, _, offset = last.partition(".")
    return _number(attempt), _number(offset)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise Refused(ProblemCode.INVALID_REQUEST, "this Last-Event-ID is not one of ours", field="Last-Event-ID")
    return int(text)
