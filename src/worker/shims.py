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
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import anyio.lowlevel

from worker.groups import Groups, usable_groups
from worker.handle import Shim, ShimSpec, Started
from worker.nursery import Nursery
from worker.process import records
from worker.process.clock import boot_s
from worker.process.failpoint import failpoint
from worker.process.identity import LINUX
from worker.process.records import SpecRecord

__all__ = ["LaunchError", "Shim", "ShimSpec", "Shims", "Started", "boot_s"]

_ASSIGNMENT = re.compile(r"[1-9][0-9]*\.[1-9][0-9]*")
_LISTENING_LIMIT_S = 15.0
_CLEARING_LOOKS = 250
_LOOK_EVERY_S = 0.02
_TRIES = 3  # the zygote may have been killed, and the first shim of the next one too


class LaunchError(Exception):
    """No shim could be made. Nothing was executed, and nothing of it is left."""


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
        self._groups: Groups | None = None

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
        """How whole trees are killed here, and whether their memory is limited: tried at the start, not guessed."""
        if not LINUX:
            return ["process_group"]
        memory = ["cgroup_memory"] if self._groups and self._groups.memory else []
        return ["subreaper", *(["cgroup_kill"] if self._groups else []), *memory]

    @property
    def zygote(self) -> int | None:
        """Its pid, while there is one."""
        return self._nursery.pid

    def begin(self, spec: ShimSpec) -> Shim:
        """Ask for a shim; it executes nothing before `go`, and `listens` tells when it can be told.

        From here on its directory is there, for a later worker to find. Blocks for as long as the disk takes.
        Raises FileExistsError if there is one of this assignment, LaunchError if there is no room for one.
        """
        shim = Shim(self._assignments / spec.name, spec, self._record(spec))
        self._bell.expect(spec.name)
        self._request(shim)
        return shim

    async def listens(self, shim: Shim) -> None:
        """Wait until it listens; make it anew if it does not live. Raises LaunchError if none can be made: then
        nothing was executed, and nothing of it is left. To be called once.

        Cancelled, it leaves none behind that waits for a go: it is closed, and its records say so.
        """
        with anyio.CancelScope(shield=True):
            await self._made_to_listen(shim)
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except asyncio.CancelledError:
            shim.close()
            raise

    async def launch(self, spec: ShimSpec) -> Shim:
        """`begin` it, and wait until it `listens`."""
        shim = self.begin(spec)
        await self.listens(shim)
        return shim

    async def look_after_again(self, shim: Shim) -> None:
        """Another shim for an adopted process whose own was killed. Raises LaunchError or OSError, and leaves all as it is."""
        shim.complete_index()
        lock = os.open(shim.directory / records.LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):
                self._nursery.request(shim.directory, lock)
        finally:
            os.close(lock)
        try:
            await self._listening(shim)
        except LaunchError:
            await asyncio.to_thread(self._nursery.restart)
            raise

    async def _made_to_listen(self, shim: Shim) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._listening(shim)
                break
            except LaunchError:
                await self._cleared(shim)
                if not tries_left:
                    raise
                await asyncio.to_thread(self._nursery.restart)
                self._request(shim)

    async def _cleared(self, shim: Shim) -> None:
        """What a shim left that died at its birth: perhaps a child at its gate, and its group."""
        dead = shim.again()
        for _ in range(_CLEARING_LOOKS):
            if await asyncio.to_thread(dead.final) is not None:
                break
            await anyio.sleep(_LOOK_EVERY_S)
        await asyncio.to_thread(dead.remove)

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

    def _request(self, shim: Shim) -> None:
        """Make the directory whole, under its lock, and hand the lock over with the request.

        From here to the shim's end someone holds it: we, the socket, the zygote, the shim. A zygote that is gone
        lets go of it: then it is free, and `listens` sees that.
        """
        draft = self._assignments / f".new-{shim.name}-{uuid.uuid4().hex}"
        try:
            draft.mkdir(mode=0o700)
            shim.write_spec(draft)
            os.mkfifo(draft / records.CTL, 0o600)
            lock = os.open(draft / records.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise LaunchError(f"no directory for the assignment could be made: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _rename_to_new(draft, shim.directory)
            failpoint("spec_written")
            with contextlib.suppress(OSError):
                self._nursery.request(shim.directory, lock)
        finally:
            os.close(lock)

    def _record(self, spec: ShimSpec) -> SpecRecord:
        cgroup = os.path.join(self._groups.path, spec.name) if self._groups and not spec.adopt else None
        return spec.record(cookie=uuid.uuid4().hex, bell=str(self._bell.path), cgroup=cgroup)

    async def _listening(self, shim: Shim) -> None:
        """It rings when it listens; without the bell, looks now and then find it out."""
        deadline = time.monotonic() + _LISTENING_LIMIT_S
        while not shim.listening():
            if not shim.alive():
                if shim.listening() or shim.ended():
                    break
                raise LaunchError(shim.crash() or self._nursery.complaint() or "the shim ended at once")
            if time.monotonic() > deadline:
                raise LaunchError(f"the shim does not answer after {_LISTENING_LIMIT_S:g} s")
            await self._bell.rung_by(shim.name, _LOOK_EVERY_S)
        self._bell.expect_no_more(shim.name)


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

    def expect(self, name: str) -> None:
        """From now on `rung_by` knows whether this one rang; it stays for `rung` too, like all others."""
        self._listen()
        self._waiting[name] = asyncio.Event()

    def expect_no_more(self, name: str) -> None:
        self._waiting.pop(name, None)

    async def rung_by(self, name: str, wait_s: float) -> None:
        """Wait for one that is expected, if it did not ring since the last call."""
        event = self._waiting.setdefault(name, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await event.wait()
        event.clear()

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


def _rename_to_new(draft: Path, directory: Path) -> None:
    try:
        draft.rename(directory)
    except OSError:  # a directory that is not empty is not replaced
        shutil.rmtree(draft, ignore_errors=True)
        raise FileExistsError(f"there is a shim of assignment {directory.name}") from None
