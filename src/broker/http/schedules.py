"""Jobs by the clock."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from broker.http import surface
from broker.http.parameters import The, Who
from broker.service import schedules
from broker.wire.jobs import Name
from broker.wire.schedules import Schedule, ScheduleList, ScheduleRequest
from broker.wire.states import Scope

router = APIRouter(prefix="/v1", tags=["schedules"])

ScheduleName = Annotated[Name, Path()]
FOR_PEOPLE = "what runs for months is set up by people: job schedule"


@router.put(
    "/schedules/{name}",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=FOR_PEOPLE),
    response_model_exclude_none=True,
)
async def schedule_put(name: ScheduleName, request: ScheduleRequest, broker: The, who: Who) -> Schedule:
    """Submit a job again and again; make this schedule or change it."""
    return await schedules.put(broker, who, name, request)


@router.get(
    "/schedules", openapi_extra=surface.not_a_tool(Scope.READ, because=FOR_PEOPLE), response_model_exclude_none=True
)
async def schedule_list(broker: The) -> ScheduleList:
    """Schedules, with their next instant and last job."""
    return await schedules.list_all(broker)


@router.get(
    "/schedules/{name}",
    openapi_extra=surface.not_a_tool(Scope.READ, because=FOR_PEOPLE),
    response_model_exclude_none=True,
)
async def schedule_get(name: ScheduleName, broker: The) -> Schedule:
    """One schedule."""
    return await schedules.get(broker, name)


@router.post(
    "/schedules/{name}/pause",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=FOR_PEOPLE),
    response_model_exclude_none=True,
)
async def schedule_pause(name: ScheduleName, broker: The, who: Who) -> Schedule:
    """Let a schedule rest. Its jobs go on."""
    return await schedules.pause(broker, who, name, paused=True)


@router.post(
    "/schedules/{name}/resume",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=FOR_PEOPLE),
    response_model_exclude_none=True,
)
async def schedule_resume(name: ScheduleName, broker: The, who: Who) -> Schedule:
    """Let a paused schedule go on with its next instant."""
    return await schedules.pause(broker, who, name, paused=False)


@router.delete(
    "/schedules/{name}",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=FOR_PEOPLE),
    response_model_exclude_none=True,
)
async def schedule_remove(name: ScheduleName, broker: The, who: Who) -> ScheduleList:
    """Remove a schedule; its jobs stay. The schedules that are left."""
    return await schedules.remove(broker, who, name)
