"""Processes that were started by hand become jobs: real ones, under a real broker and worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.adoptions import AdoptRequest
from broker.wire.jobs import CancelRequest
from support.adoptee import Adoptee, close
from support.fleet import Fleet, ended, output_of
from support.processes import processes_of
from support.waiting import eventually

UNTIL_GO = "until test -e go; do sleep 0.05; done"
Hand = Callable[..., Adoptee]


@pytest.fixture
def by_hand(short_dir: Path) -> Iterator[Hand]:
    made: list[Adoptee] = []

    def start(script: str, **options: object) -> Adoptee:
        made.append(Adoptee(script, short_dir, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    close(made)


async def adopted(client: BrokerClient, process: Adoptee, **spec: object) -> int:
    """Its job, once its worker has confirmed it."""
    said = await client.job_adopt(AdoptRequest(pid=process.pid, start=process.start, worker="w1", spec=spec or None))
    assert said.id is not None
    assert said.state.value == "running"
    await eventually(lambda: _confirmed(client, said.id or 0))
    return said.id


async def _confirmed(client: BrokerClient, job: int) -> bool:
    full = await client.job_get(job, detail="full")
    return [one.state.value for one in full.assignments or []] == ["started"]


@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (42, "failed")])
async def test_the_exit_code_of_a_process_that_is_no_child_of_ours_is_its_own(
    fleet_with_worker: Fleet, by_hand: Hand, code: int, state: str
) -> None:
    process = by_hand(f"{UNTIL_GO}; exit {code}")
    async with fleet_with_worker.client() as client:
        job = await adopted(client, process)
        (fleet_with_worker.directory / "go").touch()
        got = await ended(client, job)

    assert (got.state.value, got.exit_code, got.kind, got.attempt) == (state, code, "adopted", 1)
