"""A second machine joins by URL and token; the broker never connects to a worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.states import Scope
from support.fleet import EndedEarly, ended, output_of, submit
from support.processes import processes_of


def listening_sockets(pids: set[int]) -> set[str]:
    """What these processes listen on, TCP and unix alike, from the kernel's tables."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(fd)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(f"{table} {fields[1]}")
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "00010000" and fields[6] in inodes:  # __SO_ACCEPTCON
            found.add(f"unix {fields[7:]}")
    return found


@pytest.mark.guarantee("G19")
async def test_a_worker_joins_with_a_token_over_tcp_and_listens_on_nothing(fleet, free_port: int) -> None:
    await fleet.start_broker(listen=f"127.0.0.1:{free_port}")
    async with fleet.client() as operator:
        token = (await operator.token_create("laptop", [Scope.WORKER])).token
        await fleet.start_worker("laptop", url=f"http://127.0.0.1:{free_port}", token=token)
        job = await submit(operator, "echo from $(hostname); env | sort")
        done = await ended(operator, job)
        output = await output_of(operator, job)

        assert (done.state.value, done.worker) == ("completed", "laptop")
        assert token.encode() not in output and b"JOBD_TOKEN" not in output
        pids = {process.pid for process in processes_of(fleet.directory / "laptop")}
        assert pids
        assert listening_sockets(pids) == set()
        assert listening_sockets({fleet.broker.pid}), "the check sees what listens"


async def test_a_worker_with_a_bad_token_ends_with_a_clear_word(fleet, free_port: int) -> None:
    await fleet.start_broker(listen=f"127.0.0.1:{free_port}")

    with pytest.raises(EndedEarly) as ended_early:
        await fleet.start_worker("laptop", url=f"http://127.0.0.1:{free_port}", token="jobd_worker_wrong")

    said = str(ended_early.value)
    assert "no valid token" in said
    assert "Traceback" not in said


@pytest.mark.guarantee("G19")
async def test_a_token_of_one_worker_does_not_serve_another(fleet, free_port: int) -> None:
    await fleet.start_broker(listen=f"127.0.0.1:{free_port}")
    url = f"http://127.0.0.1:{free_port}"
    async with fleet.client() as operator:
        token = (await operator.token_create("one", [Scope.WORKER])).token
    await fleet.start_worker("one", url=url, token=token)

    with pytest.raises(EndedEarly) as ended_early:
        await fleet.start_worker("two", url=url, token=token)

    assert "another worker" in str(ended_early.value)


@pytest.mark.guarantee("G19")
async def test_a_read_token_reads_and_does_no_more(fleet, free_port: int) -> None:
    from broker.wire.problems import ProblemCode, Refused

    await fleet.start_broker(listen=f"127.0.0.1:{free_port}")
    async with fleet.client() as operator:
        token = (await operator.token_create("eyes", [Scope.READ])).token
    async with BrokerClient(f"http://127.0.0.1:{free_port}", token) as eyes:
        assert (await eyes.job_list()).total == 0
        with pytest.raises(Refused) as refused:
            await submit(eyes, "true")

    assert refused.value.code is ProblemCode.FORBIDDEN
