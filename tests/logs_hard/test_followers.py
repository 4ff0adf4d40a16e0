"""Many who follow one log: each gets every byte, in order, and the end."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from support.fleet import Fleet, submit
from support.waiting import eventually

FOLLOWERS = 50


class Follower:
    """Reads the event stream of one log as plain bytes."""

    def __init__(self) -> None:
        self.output = b""
        self.end: dict[str, object] | None = None

    async def follow(self, socket: Path, job: int) -> None:
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=1 << 20)
        try:
            writer.write(f"GET /v1/jobs/{job}/log/stream HTTP/1.1\r\nHost: jobd\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 " in await reader.readline()
            kind = ""
            while self.end is None and (line := await reader.readline()):
                key, _, value = line.rstrip(b"\r\n").partition(b": ")
                if key == b"event":
                    kind = value.decode()
                elif key == b"data":
                    self._hear(kind, json.loads(value))
        finally:
            writer.close()

    def _hear(self, kind: str, data: dict[str, object]) -> None:
        if kind == "output":
            self.output += base64.b64decode(str(data["base64"]))
        elif kind == "end":
            self.end = data


@pytest.mark.trial("B82")
@pytest.mark.guarantee("G15")
async def test_50_followers_of_one_log_get_every_byte_and_the_end(shared: Fleet) -> None:
    gate = shared.directory / "gate"
    async with shared.client() as client:
        job = await submit(
            client, f"echo begun; while ! test -e {gate}; do sleep 0.02; done; seq 1 40000; echo err >&2; exit 3"
        )
        followers = [Follower() for _ in range(FOLLOWERS)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for follower in followers:
                tasks.create_task(follower.follow(shared.state / "broker.sock", job))
            await eventually(lambda: all(follower.output for follower in followers), within_s=30)
            gate.touch()

    expected = b"begun\n" + b"".join(b"%d\n" % n for n in range(1, 40_001)) + b"err\n"
    assert {follower.output for follower in followers} == {expected}
    assert all(follower.end and follower.end["exit_code"] == 3 for follower in followers)
    assert all(follower.end and follower.end["log_complete"] for follower in followers)
