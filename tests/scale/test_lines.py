"""The lines of queued jobs always say what the jobs themselves say, whatever happened."""

from __future__ import annotations

import random

import pytest

from broker.wire.jobs import CancelRequest
from broker.wire.workers import Outcome

PLACES = (None, "/a", "/b")
ACTS = 150


async def lines(counted) -> tuple[set[tuple], set[tuple]]:
    """The heads as they are kept, and as they follow from the jobs."""

    def read(raw):
        kept = raw.execute("SELECT shape, place, priority, head FROM lines").fetchall()
        queued = raw.execute(
            "SELECT shape, place, priority, id FROM jobs WHERE state = 'queued' ORDER BY priority, id DESC"
        ).fetchall()
        return set(kept), {row[:2]: row for row in queued}

    kept, heads = await counted.broker.store._readers[0].call(read)
    return kept, set(heads.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_line_knows_its_head_after_any_story(counted, seed: int) -> None:
    chance = random.Random(seed)
    workers = [await counted.registered(f"w{n}", slots=3, tags=("t",)) for n in range(2)]
    queued: list[int] = []
    held = []
    for act in range(ACTS):
        match chance.choice(["submit", "submit", "array", "cancel", "claim", "refuse", "finish", "again"]):
            case "submit":
                fields = {"priority": chance.randint(0, 3), "cwd": chance.choice(PLACES)}
                queued.append(await counted.submit(**fields, needs=chance.choice([None, ["t"], ["gpu"]])))
            case "array":
                queued.append(await counted.submit(count=3, priority=chance.randint(0, 3), cwd=chance.choice(PLACES)))
            case "cancel" if queued:
                await counted.client.job_cancel(CancelRequest(job=[chance.choice(queued)], force=True))
            case "claim":
                worker = chance.choice(workers)
                held += [(worker, delivery) for delivery in (await worker.poll()).deliveries]
            case "refuse" | "again" | "finish" as how if held:
                worker, delivery = held.pop(chance.randrange(len(held)))
                if how == "finish":
                    await worker.ack(delivery)
                    await worker.finish(delivery)
                elif how == "refuse":
                    await worker.finish(delivery, Outcome.REFUSED, reason_code="cwd_missing", reason="not there")
                else:
                    await worker.finish(delivery, Outcome.NEVER_EXECUTED)
        if act % 5 == 0:
            kept, true = await lines(counted)
            assert kept == true
    kept, true = await lines(counted)
    assert kept == true
