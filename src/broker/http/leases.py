"""Leases, for commands that are no jobs. `job lease` speaks on these routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from broker.http import surface
from broker.http.jobs import LONGEST_WAIT_S
from broker.http.parameters import Id, The, Who
from broker.service import leases
from broker.wire.leases import Lease, LeaseRequest, LeaseState
from broker.wire.states import Scope

router = APIRouter(prefix="/v1/leases", tags=["leases"])

BESIDE_A_PROCESS = "a lease lives as long as a process that renews it: agents run `job lease -- COMMAND` in a shell"


@router.post(
    "",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=BESIDE_A_PROCESS),
    response_model_exclude_none=True,
    status_code=201,
)
async def lease_request(said: LeaseRequest, broker: The, who: Who) -> Lease:
    """Ask for devices, memory and slots for a command that is no job. It waits in the queue among jobs."""
    return await leases.request(broker, who, said)


@router.get(
    "/{job}",
    openapi_extra=surface.not_a_tool(Scope.READ, because="job_get tells what an agent needs to know"),
    response_model_exclude_none=True,
)
async def lease_get(
    job: Id,
    broker: The,
    request: Request,
    unless: Annotated[LeaseState | None, Query(description="Wait while it is in this state.")] = None,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 0,
) -> Lease:
    """How a lease stands; with `unless` once that has changed, or after `wait_s`."""
    return await leases.look(broker, job, unless, wait_s, request.is_disconnected)


@router.post(
    "/{job}/renew",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because=BESIDE_A_PROCESS),
    response_model_exclude_none=True,
)
async def lease_renew(job: Id, broker: The, who: Who) -> Lease:
    """Another `ttl_s` from now, waiting or granted."""
    return await leases.renew(broker, who, job)


@router.delete(
    "/{job}",
    openapi_extra=surface.not_a_tool(Scope.SUBMIT, because="job_cancel ends a lease too"),
    response_model_exclude_none=True,
)
async def lease_release(
    job: Id,
    broker: The,
    who: Who,
    force: Annotated[bool, Query(description="Confirm: another's.")] = False,
) -> Lease:
    """Give a lease back, or leave the queue. Its command must have ended."""
    return await leases.release(broker, who, job, force=force)
