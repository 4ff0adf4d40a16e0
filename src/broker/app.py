"""The composition root: the only place that knows every part of the broker."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import resource
import secrets
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
from fastapi import Depends, FastAPI

from broker import places
from broker.failpoint import failpoint
from broker.http import auth, fleet, jobs, leases, problems, schedules, snapshots, streams, system, watches
from broker.logs.files import ArtifactFiles, LogFiles
from broker.service import dispatch, projects, sweeps
from broker.service.clock import Clock, Jumps, Listening, SystemClock
from broker.service.configuration import Configuration, Reread
from broker.service.context import Broker, Caller
from broker.service.feed import Feed
from broker.service.wake import Wake
from broker.snapshots.files import SnapshotFiles
from broker.state import (
    ARTIFACTS_NAME,
    DATABASE_NAME,
    INSTALLATION_NAME,
    LOGS_NAME,
    RESTORED_NAME,
    SNAPSHOTS_NAME,
    AlreadyRunning,
    state_lock,
)
from broker.store.contract import Store, StoreUnusable, Tx
from broker.store.sqlite import Connect, open_sqlite
from broker.wire.problems import Refused
from broker.wire.settings import BrokerSettings, ConfigurationError
from broker.wire.states import Scope

__all__ = ["AlreadyRunning", "Reread", "StoreUnusable", "state_lock"]  # for those who start a broker

log = structlog.get_logger("broker")

SHUTDOWN_GRACE_S = 5
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@asynccontextmanager
async def open_broker(
    settings: BrokerSettings,
    state: Path,
    clock: Clock | None = None,
    connect: Connect | None = None,
    timed: Sequence[sweeps.Sweep] = sweeps.SWEEPS,
    reread: Reread | None = None,
) -> AsyncIterator[Broker]:
    """A broker with its store open and its loops running. The caller holds the state directory's lock.

    `timed`: what it looks at by itself; whoever passes less runs the rest.
    """
    clock = clock or SystemClock()
    wake = Wake()
    if (state / RESTORED_NAME).exists():
        raise StoreUnusable("a restore was interrupted: run job restore FILE --force again, and it will be finished")
    store = await open_sqlite(state / DATABASE_NAME, clock_ms=clock.wall_ms, on_commit=wake.heard, connect=connect)
    try:
        installation, listened_ms, away_ms = await _remembered(store)
        _publish_installation(state, installation)
        broker = Broker(
            store=store,
            configuration=Configuration(settings, reread),
            clock=clock,
            listening=Listening(clock, listened_ms, most_s=2 * settings.sweep_s + 1, away_ms=away_ms),
            wake=wake,
            feed=Feed(store, wake),
            logs=LogFiles(state / LOGS_NAME),
            artifacts=ArtifactFiles(state / ARTIFACTS_NAME),
            snapshots=SnapshotFiles(state / SNAPSHOTS_NAME),
            jumps=Jumps(clock),
            make_secret=lambda: secrets.token_urlsafe(32),
            installation=installation,
            version=importlib.metadata.version("jobd-mcp"),
        )
        await projects.remember(broker)
        loops = [asyncio.create_task(dispatch.run(broker), name="dispatch")]
        loops.append(asyncio.create_task(broker.feed.run(), name="feed"))
        loops += [asyncio.create_task(sweeps.run(broker, sweep), name=sweep.name) for sweep in timed]
        try:
            yield broker
        finally:
            wake.close()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
    finally:
        await store.close()
        failpoint("store_closed")


async def _remembered(store: Store) -> tuple[str, int, int]:
    """The installation's id, made once; how long it has listened in all; and how long ago that was, by the wall."""

    def fn(tx: Tx) -> tuple[str, int, int]:
        row = tx.one("get_meta", key="installation")
        if row is None:
            tx.run("set_meta", key="installation", value=uuid.uuid4().hex)
            row = tx.one("get_meta", key="installation")
        listened = tx.one("get_meta", key="listened_ms")
        listened_at = tx.one("get_meta", key="listened_at")
        if listened is None:
            tx.run("set_meta", key="listened_ms", value="0")
        tx.run("forget_all_refusals")
        assert row is not None
        away_ms = max(0, tx.now_ms - int(listened_at["value"])) if listened_at is not None else 0
        return str(row["value"]), int(listened["value"]) if listened is not None else 0, away_ms

    return await store.run(fn)


def _publish_installation(state: Path, installation: str) -> None:
    """Programs of this user compare this file with what a broker says, and never talk to a stranger."""
    temporary = state / f"{INSTALLATION_NAME}.{os.getpid()}"
    temporary.write_text(installation + "\n")
    temporary.chmod(0o600)
    temporary.replace(state / INSTALLATION_NAME)


def create_app(broker: Broker | None) -> FastAPI:
    """The routes. Without a broker: for its document only."""
    app = FastAPI(
        title="jobd",
        version=broker.version if broker is not None else importlib.metadata.version("jobd-mcp"),
        description="Runs and looks after long work on the machines you own.",
        dependencies=[Depends(auth.check_scope)],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.broker = broker
    for router in (
        fleet.asked_most,
        jobs.router,
        leases.router,
        watches.router,
        snapshots.router,
        schedules.router,
        streams.router,
        fleet.router,
        system.router,
    ):
        app.include_router(router)
    problems.install(app)
    return app


@dataclass(frozen=True, slots=True)
class Listener:
    """One bound socket. `entry` tells the doorman which way a request came in."""

    socket: socket.socket
    entry: str


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: whoever composes decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: auth.App, listeners: list[Listener]) -> AsyncIterator[None]:
    """Serve the guarded app on bound sockets until the context ends; then answer what is in flight and close."""
    servers = [_server(app, listener) for listener in listeners]
    tasks = [
        asyncio.create_task(server.serve(sockets=[listener.socket]), name=f"http-{listener.entry}")
        for server, listener in zip(servers, listeners, strict=True)
    ]
    try:
        while not all(server.started for server in servers):
            for task in tasks:
                if task.done():
                    task.result()
                    raise RuntimeError("a listener ended while it was starting")
            await asyncio.sleep(0.005)
        yield
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)


def _server(app: auth.App, listener: Listener) -> _Server:
    async def entered(scope: auth.ScopeMap, receive: auth.Receive, send: auth.Send) -> None:
        scope[auth.ENTRY] = listener.entry
        await app(scope, receive, send)

    config = uvicorn.Config(
        entered,
        http="httptools",
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=1024,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    return _Server(config)


def bind_unix(path: Path) -> socket.socket:
    """Our own bind, 0600: uvicorn's would be open to everybody. Only called under the state lock."""
    places.private_directory(path.parent)
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    finally:
        os.umask(before)
    path.chmod(0o600)
    bound.listen(1024)
    bound.setblocking(False)
    return bound


def tcp_address(address: str, *, allow_remote: bool) -> tuple[str, int]:
    """HOST:PORT in two. Anything wider than loopback is refused until it is explicitly allowed."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"JOBD_LISTEN: {address!r} is not HOST:PORT")
    if host not in LOOPBACK and not allow_remote:
        raise ConfigurationError(
            f"JOBD_LISTEN: {address} is reachable from other machines, without TLS. Forward a loopback port or the "
            "socket by ssh (docs/machines.md), or set JOBD_ALLOW_REMOTE=true behind a TLS proxy or on a private network"
        )
    return host, int(port)


def bind_tcp(address: str, *, allow_remote: bool) -> socket.socket:
    """Bind HOST:PORT, as `tcp_address` allows it."""
    host, port = tcp_address(address, allow_remote=allow_remote)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigurationError(f"JOBD_LISTEN: can't listen on {address}: {error.strerror}") from None
    bound.listen(1024)
    bound.setblocking(False)
    return bound


def bind(settings: BrokerSettings, state: Path, environ: Mapping[str, str]) -> list[Listener]:
    """The private socket, and what JOBD_LISTEN adds."""
    broker_socket, _ = places.sockets(state, environ)
    listeners = [Listener(bind_unix(broker_socket), "unix")]
    for address in settings.listen or ():
        listeners.append(Listener(bind_tcp(address, allow_remote=settings.allow_remote), "tcp"))
    return listeners


def _allow_many_connections() -> None:
    """Each client, parked worker and stream is an open file; the usual soft limit of 1,024 is for programs that select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems name no number here
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


Extension = Callable[[FastAPI, Broker], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def run_broker(
    settings: BrokerSettings,
    state: Path,
    environ: Mapping[str, str],
    extend: Extension | None = None,
    clock: Clock | None = None,
    reread: Reread | None = None,
) -> AsyncIterator[Broker]:
    """A whole broker that answers on its sockets. `extend` may add to the app before it serves.

    Raises AlreadyRunning, ConfigurationError, or the store's own refusals.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(state_lock(state))
        failpoint("locked")
        broker = await stack.enter_async_context(open_broker(settings, state, clock, reread=reread))
        app = create_app(broker)
        listeners = bind(settings, state, environ)
        failpoint("bound")
        if extend is not None:
            await stack.enter_async_context(extend(app, broker))
        await stack.enter_async_context(app.router.lifespan_context(app))
        await stack.enter_async_context(serving(auth.Doorman(app, broker), listeners))
        stack.callback(failpoint, "polls_answered")
        stack.callback(broker.wake.close)  # first of all: parked polls and streams are answered, then the servers close
        _allow_many_connections()
        log.info(
            "listening", state=str(state), listeners=[str(listener.socket.getsockname()) for listener in listeners]
        )
        yield broker


def reload_on_hangup(broker: Broker) -> None:
    """SIGHUP has the file read again. What comes of it stands in the log, and as an event."""
    running: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            said = await projects.reload(broker, Caller(actor="SIGHUP", scopes=frozenset({Scope.OPERATOR})))
        except Refused as refused:
            log.error("not_reloaded", because=refused.detail)
        else:
            log.info("reloaded", changed=said.changed, needs_restart=said.needs_restart)

    def wanted() -> None:
        task = asyncio.get_running_loop().create_task(reload())
        running.add(task)
        task.add_done_callback(running.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, wanted)
