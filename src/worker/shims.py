"""Shims as the worker's agent uses them: launch one, find those that are there, hear from them.

A shim outlives the worker. Its directory is the truth; the bell only says that it is worth a look.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import anyio
import anyio.lowlevel

from worker.groups import usable_groups
from worker.handle import Shim, ShimSpec, Started
from worker.nursery import Nursery
from worker.process import records
from worker.process.clock import boot_s
from worker.process.identity import LINUX
from worker.process.records import SpecRecord

__all__ = ["LaunchError", "Shim", "ShimSpec", "Shims", "Started", "boot_s"]

_ASSIGNMENT = re.compile(r"[1-9][0-9]*\.[1-9][0-9]*")
_LISTENING_LIMIT_S = 15.0
_CLEARING_LOOKS = 250
_LOOK_EVERY_S = 0.02
_TRIES = 2


class LaunchError(Exception):
    """No shim could be made. Nothing was executed, and nothing of it is left."""


class _StillBorn(Exception):
    """A shim was asked for, and does not live."""

    def __init__(self, shim: Shim, why: str) -> None:
        super().__init__(why)
        self.shim = shim


class Shims:
    """All shims of one worker, under its state directory, on which the caller holds the lock.

    `environ` is the shims' own environment (not the jobs'), `code` the package that they run a copy of;
    `cgroups`: use them where they can be used.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        environ: Mapping[str, str] | None = None,
        code: Path = Path(__file__).parent,
        cgroups: bool = True,
    ) -> None:
        self._state = state_dir.absolute()
        self._assignments = self._state / "assignments"
        self._nursery = Nursery(self._state, code, environ or {})
        self._cgroups = cgroups
        self._bell = _Bell(self._state / "bell")
        self._groups: str | None = None

    def start(self) -> None:
        """Get everything ready. Blocks (a tenth of a second); called before the worker has threads."""
        for directory in (self._state, self._assignments):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bell.open()
        self._nursery.start()
        if LINUX and self._cgroups:
            self._groups = usable_groups("jobd-" + hashlib.sha256(os.fsencode(self._state)).hexdigest()[:12])

    @property
    def supervision(self) -> list[str]:
        """How whole trees are killed here: tried at the start, not guessed."""
        if not LINUX:
            return ["process_group"]
        return ["subreaper", "cgroup_kill"] if self._groups else ["subreaper"]

    @property
    def zygote(self) -> int | None:
        """Its pid, while there is one."""
        return self._nursery.pid

    async def launch(self, spec: ShimSpec) -> Shim:
        """A shim that is prepared and listens; it executes nothing before `go`.

        Raises FileExistsError if there is one of this assignment, LaunchError if none can be made. Cancelled, it
        leaves none behind that waits for a go: it is closed, and its records say that nothing was executed.
        """
        with anyio.CancelScope(shield=True):
            shim = await self._prepared(spec)
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except asyncio.CancelledError:
            shim.close()
            raise
        return shim

    async def _prepared(self, spec: ShimSpec) -> Shim:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._bell.awaited(spec.name) as rung:  # from before the request: it may ring at once
                    shim = await asyncio.to_thread(self._request, spec)
                    await self._listening(shim, rung)
            except _StillBorn as error:
                shim = error.shim
                await self._cleared(shim)
                if not tries_left:
                    raise LaunchError(str(error)) from None
                await asyncio.to_thread(self._nursery.restart)
            else:
                return shim
        raise AssertionError("unreachable")

    async def _cleared(self, shim: Shim) -> None:
        """What a shim left that died at its birth: perhaps a child at its gate, and its group."""
        for _ in range(_CLEARING_LOOKS):
            if await asyncio.to_thread(shim.final) is not None:
                break
            await anyio.sleep(_LOOK_EVERY_S)
        await asyncio.to_thread(shim.remove)

    def found(self) -> list[Shim]:
        """Every assignment's directory that is there, its shim alive or dead: what a new worker starts from."""
        shims = []
        for directory in sorted(self._assignments.iterdir()):
            if directory.name.startswith("."):  # half made or half deleted
                shutil.rmtree(directory, ignore_errors=True)
            elif _ASSIGNMENT.fullmatch(directory.name) and (shim := Shim.at(directory)):
                shims.append(shim)
        return shims

    @property
    def bell(self) -> AsyncIterator[str]:
        """Names (`42.1`) of assignments with news, as shims ring. Never ends.

        A name may be missing, or come twice: it wakes, and files tell. Look at everything now and then.
        """
        return self._bell.rung()

    async def aclose(self) -> None:
        """Let go of the zygote and the bell. Shims go on."""
        self._bell.close()
        await asyncio.to_thread(self._nursery.close)

    def _request(self, spec: ShimSpec) -> Shim:
        """Make the directory whole, under its lock, and hand the lock over with the request.

        From here to the shim's end someone holds it: we, the socket, the zygote, the shim.
        """
        directory = self._assignments / spec.name
        draft = self._assignments / f".new-{spec.name}-{uuid.uuid4().hex}"
        draft.mkdir(mode=0o700)
        record = self._record(spec)
        try:
            (draft / records.SPEC).write_bytes(records.encode(record))
            (draft / records.SPEC).chmod(0o600)
            os.mkfifo(draft / records.CTL, 0o600)
            lock = os.open(draft / records.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise LaunchError(f"no directory for the assignment could be made: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _rename_to_new(draft, directory)
            self._nursery.request(directory, lock)
        finally:
            os.close(lock)
        return Shim(directory, spec, record)

    def _record(self, spec: ShimSpec) -> SpecRecord:
        return SpecRecord(
            proto=records.PROTO,
            job=spec.job,
            attempt=spec.attempt,
            token=spec.token,
            argv=spec.argv,
            env=spec.env,
            cwd=spec.cwd,
            umask=spec.umask,
            grace_s=spec.grace_s,
            linger_s=spec.linger_s,
            on_worker_lost=spec.on_worker_lost.value,
            cookie=uuid.uuid4().hex,
            bell=str(self._bell.path),
            cgroup=os.path.join(self._groups, spec.name) if self._groups else None,
            extra=spec.extra,
        )

    async def _listening(self, shim: Shim, rung: asyncio.Event) -> None:
        """It rings when it listens; without the bell, looks now and then find it out."""
        deadline = time.monotonic() + _LISTENING_LIMIT_S
        while True:
            await _within(_LOOK_EVERY_S, rung)
            if shim.listening():
                return
            if not shim.alive():
                if shim.listening():
                    return
                raise _StillBorn(shim, shim.crash() or self._nursery.complaint() or "the shim ended at once")
            if time.monotonic() > deadline:
                raise _StillBorn(shim, f"the shim does not answer after {_LISTENING_LIMIT_S:g} s")
            rung.clear()


class _Bell:
    """A FIFO that shims write their names to. Open for reading and writing: it has no end of file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rest = b""
        self._names: set[str] = set()
        self._news = asyncio.Event()
        self._waiting: dict[str, asyncio.Event] = {}

    def open(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.path, 0o600)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def close(self) -> None:
        if self._loop is not None and self._fd is not None:
            self._loop.remove_reader(self._fd)
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._loop = None

    async def rung(self) -> AsyncIterator[str]:
        self._listen()
        while True:
            await self._news.wait()
            self._news.clear()
            names, self._names = self._names, set()
            for name in names:
                yield name

    @contextlib.contextmanager
    def awaited(self, name: str) -> Iterator[asyncio.Event]:
        """Set when this one rings. It stays for `rung` too, like all others."""
        self._listen()
        event = self._waiting[name] = asyncio.Event()
        try:
            yield event
        finally:
            del self._waiting[name]

    def _listen(self) -> None:
        if self._loop is None and self._fd is not None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._fd, self._read, self._fd)

    def _read(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(fd, 65536)
        *lines, self._rest = self._rest.split(b"\n")
        for name in {line.decode("ascii", "replace") for line in lines}:
            self._names.add(name)
            self._news.set()
            if event := self._waiting.get(name):
                event.set()


async def _within(wait_s: float, event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await event.wait()


def _rename_to_new(draft: Path, directory: Path) -> None:
    try:
        draft.rename(directory)
    except OSError:  # a directory that is not empty is not replaced
        shutil.rmtree(draft, ignore_errors=True)
        raise FileExistsError(f"there is a shim of assignment {directory.name}") from None
