"""What a wait tells meanwhile."""

from __future__ import annotations

import json

import anyio
import pytest

from jobd_mcp.calls import Answer
from jobd_mcp.waiting import Pace, telling


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"state": "running", "worker": "w1", "progress": {"fraction": 0.29, "message": "epoch 3"}}, "7 running on w1, 29 % (epoch 3)"),
        ({"state": "running", "progress": {"fraction": 1.0}}, "7 running, 100 %"),
        ({"state": "queued"}, "7 queued"),
    ],
)  # fmt: skip
async def test_a_wait_tells_how_far_the_job_is(job: dict[str, object], told: str) -> None:
    heard: list[str] = []
    enough = anyio.Event()

    async def tell(progress: float, total: float, message: str) -> None:
        heard.append(message)
        enough.set()

    async def ask(operation: str, arguments: object) -> Answer:
        return Answer(200, {}, json.dumps({"id": 7, **job}).encode())

    async with telling(tell, ask, {"job": [7]}, 40, Pace(first_s=0, every_s=60)):
        await enough.wait()
    assert heard == [told]
