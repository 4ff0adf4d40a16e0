from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from broker.app import run_broker
from broker.client import BrokerClient
from broker.service.context import Broker
from broker.wire.settings import BrokerSettings
from broker.wire.states import Scope
from support.ports import port_that_was_free


@dataclass
class Site:
    """A real broker that listens on its private socket and on TCP, with one token for each scope."""

    broker: Broker
    socket: Path
    port: int
    operator: BrokerClient
    tokens: dict[str, str]
    tcp: httpx.AsyncClient
    unix: httpx.AsyncClient

    def bearer(self, scope: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[scope]}"}


@pytest.fixture
async def site(short_dir: Path, free_port: int) -> AsyncIterator[Site]:
    async with open_site(short_dir / "state", free_port) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """One site for all tests of a module that only ask."""
    with tempfile.TemporaryDirectory(prefix="jobd-", dir="/tmp") as directory:
        async with open_site(Path(directory) / "state", port_that_was_free()) as opened:
            yield opened


@asynccontextmanager
async def open_site(state: Path, free_port: int) -> AsyncIterator[Site]:
    settings = BrokerSettings(listen=[f"127.0.0.1:{free_port}"], poll_s=2)
    socket = state / "broker.sock"
    async with (
        run_broker(settings, state, {}) as broker,
        BrokerClient(f"unix://{socket}") as operator,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port}", verify=False) as tcp,
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://jobd") as unix,
    ):
        tokens = {scope.value: (await operator.token_create(scope.value, [scope])).token for scope in Scope}
        yield Site(broker, socket, free_port, operator, tokens, tcp, unix)
