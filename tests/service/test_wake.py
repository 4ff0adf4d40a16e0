"""What dispatch looks at: everything that changed since a poll was looked at, and nothing else."""

from __future__ import annotations

import asyncio

from broker.core.matching import Machine
from broker.service.wake import JobReady, Look, Parked, RoomFree, Wake


def a_poll(worker: str) -> Parked:
    return Parked(worker, 1, accept=True, machine=Machine(worker, online=True, slots=4, free=4, tags=frozenset()))


async def next_look(wake: Wake) -> Look:
    return await asyncio.wait_for(wake.look(), 5)


async def test_a_job_that_is_ready_between_a_look_and_the_parking_is_looked_at() -> None:
    wake = Wake()
    mark = wake.mark("w1")
    wake.heard([JobReady(7)])
    assert (await next_look(wake)).polls == []  # dispatch was quicker than the poll

    assert wake.park(poll := a_poll("w1"), mark)

    look = await next_look(wake)
    assert (list(look.polls), look.workers) == ([poll], {"w1"})


async def test_room_that_becomes_free_between_a_look_and_the_parking_is_looked_at() -> None:
    wake = Wake()
    mark = wake.mark("w1")
    wake.heard([RoomFree("w1")])

    wake.park(a_poll("w1"), mark)

    assert (await next_look(wake)).workers == {"w1"}


async def test_a_new_job_is_a_matter_of_its_shape_and_free_room_of_its_worker() -> None:
    wake = Wake()
    for name in ("w1", "w2"):
        wake.park(a_poll(name), wake.mark(name))

    wake.heard([JobReady(7), RoomFree("w2"), RoomFree("elsewhere")])

    look = await next_look(wake)
    assert (look.shapes, look.workers) == ({7}, {"w2"})


async def test_what_could_not_be_looked_at_is_looked_at_next_time() -> None:
    wake = Wake()
    wake.park(a_poll("w1"), wake.mark("w1"))
    wake.heard([JobReady(7), RoomFree("w1")])
    wake.not_looked(await next_look(wake))

    wake.heard([JobReady(8)])

    look = await next_look(wake)
    assert (look.shapes, look.workers) == ({7, 8}, {"w1"})
