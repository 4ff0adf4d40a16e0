"""The zygote as its worker sees it: kept running, from a copy of the code that nobody else touches."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

_READY_LIMIT_S = 30.0
_SEND_LIMIT_S = 5.0
_END_LIMIT_S = 5.0
_LONGEST_COMPLAINT = 2000


class Nursery:
    """Safe to use from several threads."""

    def __init__(self, state: Path, code: Path, environ: Mapping[str, str]) -> None:
        self._state = state
        self._code = _code_of(code)  # now: a cleaned cache may take it away later, under the running worker
        self._environ = dict(environ)
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def start(self) -> None:
        """Raises RuntimeError with what it complained of if it does not come up."""
        with self._mutex:
            self._start()

    def request(self, directory: Path, lock: int) -> None:
        """Ask for a shim of `directory` that inherits `lock`. Raises OSError if the zygote is gone: `restart` it."""
        with self._mutex:
            self._send(directory, lock)

    def restart(self) -> None:
        """For one that takes requests and makes no shims. Living shims don't notice."""
        with self._mutex:
            self._end()
            self._start()

    def complaint(self) -> str:
        """The last that a zygote wrote to its standard error."""
        try:
            return self._log().read_text(encoding="utf-8", errors="replace")[-_LONGEST_COMPLAINT:].strip()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        with self._mutex:
            self._end()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _start(self) -> None:
        program = _copy_of_the_code(self._code, self._state / "bin") / "worker" / "zygote.py"
        ours, theirs = socket.socketpair()
        with theirs, self._log().open("wb") as log:
            self._process = subprocess.Popen(
                [_base_interpreter(), "-I", "-S", str(program), "jobd", "shim"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self._environ,
                cwd="/",
                start_new_session=True,  # a terminal's Ctrl-C is for the worker
            )
        self._requests = ours
        ours.settimeout(_READY_LIMIT_S)
        try:
            ready = ours.recv(16)
        except OSError:
            ready = b""
        if ready != b"ready\n":
            self._end()
            raise RuntimeError(f"the process that makes shims does not start: {self.complaint() or 'no word from it'}")
        ours.settimeout(_SEND_LIMIT_S)

    def _send(self, directory: Path, lock: int) -> None:
        if self._requests is None:
            raise ConnectionError("there is no zygote")
        socket.send_fds(self._requests, [os.fsencode(directory) + b"\n"], [lock])

    def _end(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            try:
                self._process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _log(self) -> Path:
        return self._state / "zygote.log"


def _base_interpreter() -> str:
    """Not the virtual environment's link, which an upgrade may take away."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _code_of(package: Path) -> dict[Path, bytes]:
    """What zygote and shims run."""
    sources = [
        package / "zygote.py",
        package / "shim.py",
        package / "adopting.py",
        *sorted((package / "process").glob("*.py")),
    ]
    code = {Path("worker") / source.relative_to(package): source.read_bytes() for source in sources}
    return {**code, Path("worker") / "__init__.py": b""}


def _copy_of_the_code(code: Mapping[Path, bytes], bin_dir: Path) -> Path:
    """A directory named by the hash of what it holds; made, or mended, if need be."""
    digest = hashlib.sha256(repr(sorted((str(path), text) for path, text in code.items())).encode()).hexdigest()
    copy = bin_dir / digest
    for path, text in code.items():
        _put(copy / path, text)
    return copy


def _put(path: Path, text: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == text:
            return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(text)
    draft.rename(path)
