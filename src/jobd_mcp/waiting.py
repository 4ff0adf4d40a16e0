"""What a call that waits tells meanwhile: how the jobs stand, often enough that no client gives up on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio

from jobd_mcp.calls import Answer, Unreachable
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, as_list, as_object

LIMIT = "timeout_s"
MOST_NAMED = 5


@dataclass(frozen=True)
class Pace:
    """When progress is told. Clients give up on a silent call after 60 s, some after 15."""

    first_s: float = 1.0
    every_s: float = 5.0
    poll_ms: int = 2000
    """How often a client is to ask for a task."""


USUAL = Pace()


Ask = Callable[[str, Mapping[str, Json]], Awaitable[Answer]]
"""Call an operation by name."""
IdentityOf = Callable[[object | None], object | None]
"""HTTP request that a call came by (None: a local pipe) → who stands behind it."""
Tell = Callable[[float, float, str], Awaitable[None]]
"""Send progress: seconds waited, seconds at most, message."""


def longest_wait_s(operation: Operation, arguments: Mapping[str, Json]) -> float:
    """How long the broker may take on purpose: what the call asks for, or what it gets by default."""
    default = operation.fields[LIMIT].get("default") if LIMIT in operation.fields else None
    asked = arguments.get(LIMIT, default)
    return float(asked) if isinstance(asked, int | float) else 0.0


@asynccontextmanager
async def telling(
    tell: Tell, ask: Ask, arguments: Mapping[str, Json], limit_s: float, pace: Pace
) -> AsyncIterator[None]:
    """While the body waits, `tell` says how the jobs stand: soon, then every few seconds, always rising."""
    began = anyio.current_time()

    async def beat() -> None:
        await anyio.sleep(pace.first_s)
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                message = await _states(ask, arguments)
                await tell(round(anyio.current_time() - began, 3), limit_s, message)
                await anyio.sleep(pace.every_s)

    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(beat)
        try:
            yield
        except Exception as error:
            failure = error  # raised below, as it is: a task group would wrap it
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _states(ask: Ask, arguments: Mapping[str, Json]) -> str:
    """How the jobs of a wait stand now, in a few words."""
    try:
        if "array" in arguments:
            return await _array_states(ask, arguments["array"])
        jobs = as_list(arguments.get("job"))
        named = [await _state(ask, job) for job in jobs[:MOST_NAMED]]
    except Unreachable:
        return "still waiting; the broker does not answer"
    more = [f"and {len(jobs) - MOST_NAMED} more"] if len(jobs) > MOST_NAMED else []
    return ", ".join([*named, *more]) or "still waiting"


async def _state(ask: Ask, job: Json) -> str:
    answer = _answered(await ask("job_get", {"job": job}))
    worker = f" on {answer['worker']}" if answer.get("state") == "running" and "worker" in answer else ""
    return f"{job} {answer.get('state', 'unknown')}{worker}{_how_far(as_object(answer.get('progress')))}"


def _how_far(progress: Mapping[str, Json]) -> str:
    fraction, message = progress.get("fraction"), progress.get("message")
    if not isinstance(fraction, int | float):
        return ""
    return f", {int(fraction * 100 + 1e-9)} %" + (f" ({message})" if isinstance(message, str) else "")


async def _array_states(ask: Ask, array: Json) -> str:
    counts = as_object(_answered(await ask("job_list", {"array": array, "limit": 1})).get("counts"))
    return f"array {array}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def _answered(answer: Answer) -> dict[str, Json]:
    return as_object(answer.json() if answer.status < 300 else None)
