"""Start a worker: what `job worker`, `job up` and `python -m worker` call."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from broker import places
from broker.client import BrokerClient
from broker.wire.settings import WorkerSettings
from broker.wire.workers import PROTOCOL, Registration
from worker.admission import Ground
from worker.agent import Agent, Setup
from worker.environment import User, login_environment
from worker.home import Home, HomeTaken
from worker.probe import machine, tags
from worker.probe.gpus import GpuProbe, Patience
from worker.probe.watch import Watch
from worker.process.failpoint import failpoint
from worker.shims import Shims

log = structlog.get_logger("worker")

EXIT_HOME_TAKEN = 4


def home_directory(settings: WorkerSettings, environ: Mapping[str, str]) -> Path:
    """Where this worker keeps its state. A name of its own selects a directory of its own: two can share a machine."""
    state = places.state_dir(settings.state_dir, environ)
    return state / "worker" if settings.worker_name is None else state / "workers" / settings.worker_name


def broker_url(settings: WorkerSettings, environ: Mapping[str, str]) -> str:
    """The broker that is named, else this user's own on this machine."""
    if settings.url is not None:
        return settings.url
    socket, _ = places.sockets(places.state_dir(settings.state_dir, environ), environ)
    return f"unix://{socket}"


def main(settings: WorkerSettings, url: str, token: str | None, state_dir: Path) -> int:
    """Run a worker in this process until a signal; the exit code. `state_dir` is the worker's own directory."""
    configure_logging(settings.log_level)
    return anyio.run(run_worker, settings, url, token, state_dir, backend="asyncio")


async def run_worker(settings: WorkerSettings, url: str, token: str | None, state_dir: Path) -> int:
    """Hold assignments of the broker at `url` until SIGTERM or SIGINT, and `on_term`. 0 then; 3 if the broker refuses this worker,
    4 if another one uses `state_dir`. Jobs go on in any case."""
    os.umask(0o077)
    try:
        home = Home.take(state_dir)
    except HomeTaken as error:
        log.error("this worker ends", reason=str(error))
        return EXIT_HOME_TAKEN
    failpoint("home_taken")
    with home:
        shims = Shims(state_dir)
        shims.start()  # before this process has threads: it forks
        try:
            return await _work(settings, url, token, home, shims)
        finally:
            with anyio.CancelScope(shield=True):
                await shims.aclose()


async def _work(settings: WorkerSettings, url: str, token: str | None, home: Home, shims: Shims) -> int:
    here = machine.look()
    login = await anyio.to_thread.run_sync(login_environment, User.of_this_process())
    registration = Registration(
        name=settings.worker_name or machine.name_of(here.host),
        epoch=home.epoch,
        machine=here.identity,
        host=here.host,
        version=importlib.metadata.version("jobd-mcp"),
        protocol=PROTOCOL,
        slots=settings.worker_slots or here.cores,
        tags=tags.effective(tags.found(login.get("PATH", "")), settings.worker_tags),
        platform=here.platform,
        resources=_resources(settings.worker_resources),
        supervision=shims.supervision,
        checkpoint_root=str(settings.checkpoint_root.expanduser().absolute()) if settings.checkpoint_root else None,
    )
    log.info(
        "worker", id=home.worker_id, name=registration.name, epoch=home.epoch, broker=url, slots=registration.slots
    )
    ground = Ground(host=here.host, login=login, state=home.directory)
    checkpoints = (settings.checkpoint_root or home.directory / "checkpoints").expanduser().absolute()
    watch = Watch(GpuProbe(os.environ, Patience.of(settings.probe_s)), home.directory, settings.probe_s)
    async with BrokerClient(url, token) as broker:
        log_cap = int(settings.log_cap_mb * (1 << 20))
        copies = int(settings.snapshot_cache_mb * (1 << 20))
        setup = Setup(registration, ground, checkpoints, settings.linger_s, log_cap, settings.on_term, copies)
        return await Agent(home, shims, broker, setup, watch).run()


def _resources(said: list[str]) -> dict[str, int] | None:
    return {name: int(count) for name, _, count in (one.partition("=") for one in said)} or None


def configure_logging(level: str) -> None:
    """JSON lines on stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
