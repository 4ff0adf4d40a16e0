"""The broker as a process: `python -I -m jobd_mcp.daemon jobd broker [--with-worker]`.

The two words are for people who look at `ps`. Exit codes: 0 stopped by a signal, 2 a setting is wrong, 74 the database
can't be used (and won't be by another try), 75 another broker holds the state directory, 1 anything else.

`--successor-of=PID` replaces that broker: it is asked to end as late as can be, when nothing but the lock is missing.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.wire.settings import BrokerSettings

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STORE = 74
EXIT_LOCKED = 75
_SUCCESSION_LIMIT_S = 30.0
_LOCK_RETRY_S = 0.01


def main(arguments: list[str]) -> int:
    """The process's entry. `--detach`: go on in a process that is nobody's child (see `local`)."""
    flags = [argument for argument in arguments if argument.startswith("--")]
    if arguments[:2] != ["jobd", "broker"]:
        sys.stderr.write("usage: python -I -m jobd_mcp.daemon jobd broker [--with-worker]\n")
        return EXIT_USAGE
    if "--detach" in flags and os.fork() > 0:
        # Nothing was imported or opened yet that the other process would miss.
        os._exit(0)
    code = run(with_worker="--with-worker" in flags, successor_of=_number(flags, "--successor-of"))
    status = _number(flags, "--status-fd")
    if status is not None:
        _last_word(status, code)
    return code


def _number(flags: list[str], name: str) -> int | None:
    return next((int(flag.partition("=")[2]) for flag in flags if flag.startswith(f"{name}=")), None)


def run(*, with_worker: bool, successor_of: int | None = None) -> int:
    """A broker in this process, until SIGTERM or SIGINT; the exit code. `job broker` calls this too."""
    from broker import places
    from broker.wire.settings import ConfigurationError
    from jobd_mcp.local import LocalError

    try:
        settings = _settings()
        state = places.state_dir(settings.state_dir, os.environ)
        return _run(settings, state, with_worker=with_worker, successor_of=successor_of)
    except (ConfigurationError, LocalError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED


def _settings() -> BrokerSettings:
    """As the file and the environment say them now."""
    from broker import places
    from broker.wire.settings import BrokerSettings, load

    return load(BrokerSettings, os.environ, places.config_text(os.environ), str(places.config_file(os.environ)))


def _run(settings: BrokerSettings, state: Path, *, with_worker: bool, successor_of: int | None) -> int:
    import asyncio

    import jobd_mcp.serve  # noqa: F401 - all there is to load: what runs needs no file of the installation any more
    from broker.app import AlreadyRunning, StoreUnusable, tcp_address
    from broker.failpoint import failpoint
    from jobd_mcp.local import alive

    configure_logging(settings.log_level)
    os.umask(0o077)
    for address in settings.listen or ():
        tcp_address(address, allow_remote=settings.allow_remote)
    if successor_of is not None:
        _ask_to_end(successor_of)
        failpoint("succession_asked")
    deadline = time.monotonic() + _SUCCESSION_LIMIT_S
    while True:
        others = successor_of is None or not alive(
            successor_of
        )  # asked before the try: then the lock is somebody else's
        try:
            asyncio.run(_until_told(settings, state, with_worker=with_worker))
        except AlreadyRunning as error:
            if others or time.monotonic() > deadline:
                sys.stderr.write(f"{error}\n")
                return EXIT_LOCKED
            time.sleep(_LOCK_RETRY_S)
        except StoreUnusable as error:
            sys.stderr.write(f"{error}\n")
            return EXIT_STORE if error.lasting else EXIT_FAILED
        else:
            return 0


def _ask_to_end(pid: int) -> None:
    """It answers its parked polls, ends its worker and leaves the jobs to their shims. Gone already: as well."""
    import signal

    from jobd_mcp.local import alive, require_broker

    if alive(pid):
        require_broker(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


async def _until_told(settings: BrokerSettings, state: Path, *, with_worker: bool) -> None:
    import asyncio
    import gc
    import signal

    from broker.app import reload_on_hangup
    from jobd_mcp.local import setting
    from jobd_mcp.serve import serving
    from jobd_mcp.supervision import SupervisedWorker

    told = asyncio.Event()
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_, told.set)
    name = setting(os.environ, "worker_name")
    home = state / "workers" / name if name else state / "worker"
    async with serving(settings, state, dict(os.environ), restarts_worker=with_worker, reread=_settings) as broker:
        reload_on_hangup(broker)
        gc.freeze()  # modules, routes and models live as long as the process: to look through them stops all for 0.1 s
        worker = SupervisedWorker(_worker_environment(state), state / "worker.log", home) if with_worker else None
        if worker is not None:
            worker.start()
        try:
            await told.wait()
        finally:
            if worker is not None:
                await worker.stop()


def _worker_environment(state: Path) -> dict[str, str]:
    """The broker's own, for the worker of its own state directory. Whoever stops both means the jobs to go on."""
    own = {name: value for name, value in os.environ.items() if name not in ("JOBD_URL", "JOBD_TOKEN")}
    return own | {"JOBD_STATE_DIR": str(state), "JOBD_ON_TERM": "leave"}


def configure_logging(level: str) -> None:
    """JSON lines on stderr, ours and the libraries' alike. Never a line on stdout."""
    import logging

    import structlog

    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=False),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


def _last_word(descriptor: int, code: int) -> None:
    """Tell whoever started us how it ended; nobody may be listening any more."""
    with suppress(OSError):
        os.write(descriptor, str(code).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
