"""A real broker in this process, and the official client on each way in."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from broker import places
from broker.service.context import Broker
from broker.wire.settings import BrokerSettings
from jobd_mcp.operations import Request
from jobd_mcp.serve import serving
from jobd_mcp.unix_http import exchange
from jobd_mcp.waiting import Pace
from support.processes import kill_all

ERAS = ("auto", "legacy")
WAYS = ("stdio", "http")

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@dataclass(frozen=True)
class Running:
    """A broker that answers: on its private sockets, and on TCP with a token for everything."""

    broker: Broker
    state: Path
    url: str
    token: str

    @property
    def environ(self) -> dict[str, str]:
        return {"JOBD_STATE_DIR": str(self.state), "PATH": os.environ["PATH"], "HOME": str(self.state)}

    @property
    def sockets(self) -> tuple[Path, Path]:
        return places.sockets(self.state, {})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running(state: Path) -> AsyncIterator[Running]:
    port = free_port()
    async with serving(
        BrokerSettings(listen=[f"127.0.0.1:{port}"]), state, {}, pace=Pace(first_s=0.1, every_s=0.2)
    ) as broker:
        token = await token_of(state, "everything", ["operator"])
        yield Running(broker, state, f"http://127.0.0.1:{port}", token)


async def token_of(state: Path, name: str, scopes: list[str]) -> str:
    import anyio

    wish = Request("POST", "/v1/tokens", body=json.dumps({"name": name, "scopes": scopes}).encode())
    status, answer = await anyio.to_thread.run_sync(exchange, places.sockets(state, {})[0], wish, 10)
    assert status == 201, answer
    assert isinstance(answer, dict)
    return str(answer["token"])


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    """One broker for the tests of a file, on a loop and thread of its own: clients that block don't block it."""
    directory = Path(tempfile.mkdtemp(prefix="jobd-", dir="/tmp"))
    started: Future[Running] = Future()
    over = threading.Event()

    async def life() -> None:
        async with running(directory / "state") as one:
            started.set_result(one)
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: _told(started, life), name="broker")
    thread.start()
    try:
        yield started.result(timeout=30)
    finally:
        over.set()
        thread.join(timeout=30)
        assert not thread.is_alive()
        left = kill_all(directory)
        shutil.rmtree(directory, ignore_errors=True)
    assert not left


def _told(started: Future[Running], life: Callable[[], Coroutine[None, None, None]]) -> None:
    try:
        asyncio.run(life())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


def console_script() -> str:
    """The installed `jobd-mcp`."""
    return str(Path(sys.executable).with_name("jobd-mcp"))


def over_stdio(environ: dict[str, str]) -> StdioServerParameters:
    return StdioServerParameters(command=console_script(), args=[], env=environ)


@asynccontextmanager
async def over_http(
    url: str, token: str, mode: str, extensions: Sequence[ClientExtension] = (), asks: ElicitationFnT | None = None
) -> AsyncIterator[Client]:
    """`asks`: how the client's user answers questions; without it the client can't ask."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False)
        )
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        yield await stack.enter_async_context(
            Client(transport, mode=mode, extensions=extensions, elicitation_callback=asks)
        )


@pytest.fixture(params=[(way, era) for way in WAYS for era in ERAS], ids="-".join)
def connect(request: pytest.FixtureRequest, broker: Running) -> Connect:
    """Opens a client of the broker: each way in, in each protocol era. The same tests for all."""
    way, era = request.param

    def opened(*extensions: ClientExtension) -> AbstractAsyncContextManager[Client]:
        if way == "http":
            return over_http(broker.url, broker.token, era, extensions)
        return Client(over_stdio(broker.environ), mode=era, extensions=extensions)

    return opened


@pytest.fixture(params=WAYS)
def modern(request: pytest.FixtureRequest, broker: Running) -> Connect:
    """Opens clients of the newer era only, each way in."""

    def opened(*extensions: ClientExtension) -> AbstractAsyncContextManager[Client]:
        if request.param == "http":
            return over_http(broker.url, broker.token, "auto", extensions)
        return Client(over_stdio(broker.environ), mode="auto", extensions=extensions)

    return opened


@pytest.fixture
def holder(broker: Running) -> Connect:
    """Opens a client over HTTP with a token of its own, whose name begins with `name`."""

    @asynccontextmanager
    async def opened(
        name: str,
        scopes: list[str],
        *extensions: ClientExtension,
        era: str = "auto",
        asks: ElicitationFnT | None = None,
    ) -> AsyncIterator[Client]:
        token = await token_of(broker.state, f"{name}-{secrets.token_hex(4)}", scopes)
        async with over_http(broker.url, token, era, extensions, asks) as client:
            yield client

    return opened
