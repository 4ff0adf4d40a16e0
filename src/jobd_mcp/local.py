"""This user's broker on this machine: find it, start it, stop it.

The state directory is private, and the broker in it proves with its installation id that it is the one the
directory belongs to: nobody talks to a stranger on the same path. Who may run is decided by the broker's own
lock, not here; of several that are started at once the losers exit with `LOCKED` and everybody joins the winner.
A broker in the background that is out of date (older than this program, or removed from disk) hands over to a new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Self

from broker import places
from jobd_mcp import versions
from jobd_mcp.operations import Request
from jobd_mcp.schemas import Schema, as_list, as_object
from jobd_mcp.unix_http import exchange

LOCKED = 75  # exit code of a broker that finds another one holding the state directory (EX_TEMPFAIL)
LOG_LIMIT_BYTES = 10 << 20
START_LIMIT_S = 20.0
STOP_LIMIT_S = 30.0
HAND_OVER_LIMIT_S = STOP_LIMIT_S + START_LIMIT_S
STOP_JOBS_LIMIT_S = 120.0
_ASK_LIMIT_S = 5.0
_RETRY_S = 0.03
_RESTART_AFTER_S = 0.5

# What a background process may know of whoever happened to start it. Everything else stays behind: it would
# live on in jobs, long after the shell it came from.
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR")
_PASSED_ON_PREFIXES = ("LC_", "XDG_", "JOBD_")
_KEPT_BACK = ("JOBD_TOKEN", "JOBD_URL")
_KEPT_BACK_PREFIXES = (
    "JOBD_JOB_",
    "JOBD_ARRAY_",
    "JOBD_CHECKPOINT_DIR",
    "JOBD_CHECKPOINT_GRACE",
    "JOBD_ATTEMPT",
    "JOBD_RESTARTS",
)


class LocalError(Exception):
    """The local broker can't be used as asked. The message is for people and names what to do."""


class Stranger(LocalError):
    """Something else answers where this user's broker should be."""


class StartFailed(LocalError):
    """No broker came up."""


class RunningJobs(LocalError):
    """The broker was not stopped, because jobs are running. `ids` are the first of them."""

    def __init__(self, ids: list[int], total: int, leases: Collection[int] = ()) -> None:
        shown = ", ".join(f"{id_} (a lease)" if id_ in leases else str(id_) for id_ in ids[:20])
        shown += ", …" if total > 20 else ""
        super().__init__(
            f"{total} job{'s are' if total != 1 else ' is'} running: {shown}. Leave them running with --keep-jobs, "
            "or stop them first with --stop-jobs."
        )
        self.ids = ids
        self.total = total


@dataclass(frozen=True)
class Here:
    """Where this user's broker is, or would be."""

    state: Path
    broker_socket: Path
    mcp_socket: Path

    @property
    def log(self) -> Path:
        return self.state / "broker.log"

    @property
    def url(self) -> str:
        return f"unix://{self.broker_socket}"


@dataclass(frozen=True)
class Found:
    """A broker that answered, and is the one that the state directory belongs to."""

    installation: str
    version: str
    pid: int
    restarts_worker: bool


def setting(environ: Mapping[str, str], key: str) -> str | None:
    """One text setting, from the environment over jobd.toml, without loading the settings models."""
    if text := environ.get(f"JOBD_{key.upper()}"):
        return text
    config = places.config_text(environ)
    if config is None:
        return None
    import tomllib

    try:
        value = tomllib.loads(config).get(key)
    except tomllib.TOMLDecodeError as error:
        raise LocalError(f"{places.config_file(environ)}: {error}") from None
    return value if isinstance(value, str) else None


def here(environ: Mapping[str, str]) -> Here:
    configured = setting(environ, "state_dir")
    state = places.state_dir(Path(configured) if configured else None, environ)
    return Here(state, *places.sockets(state, environ))


def find(at: Here) -> Found | None:
    """The broker that answers here; None if nobody does. Raises Stranger for anybody else."""
    try:
        _require_private(at.broker_socket.parent)
        status, answer = exchange(at.broker_socket, Request("GET", "/v1/whoami"), _ASK_LIMIT_S)
    except OSError:
        return None
    who = as_object(answer)
    expected = _installation(at)
    if status != 200 or expected is None or who.get("installation") != expected:
        raise Stranger(
            f"what answers on {at.broker_socket} is not the broker of {at.state}. "
            "Stop that program, or choose another directory with JOBD_STATE_DIR."
        )
    pid = who.get("pid")
    return Found(
        installation=expected,
        version=str(who.get("version")),
        pid=pid if isinstance(pid, int) else 0,
        restarts_worker=who.get("restarts_worker") is True,
    )


def ensure(at: Here, environ: Mapping[str, str], limit_s: float = START_LIMIT_S) -> Found:
    """The broker here; started, with one worker, if none answers. Any number may call this at once.

    One that is out of date is replaced first, if it may be; else it is used as it is, and stderr says so.
    """
    found = find(at) or _started(at, environ, time.monotonic() + limit_s)
    return found if _out_of_date(found) is None else _succeeded(at, environ)


def _started(at: Here, environ: Mapping[str, str], deadline: float) -> Found:
    """A broker where none answered."""
    while True:
        beginning = _log_size(at)
        with _Start(at, environ) as attempt:
            found = _await_answer(at, attempt, deadline)
            if found is not None:
                _await_mcp(at, found, deadline)
                return found
            if attempt.exit_code not in (LOCKED, None):
                raise StartFailed(f"the broker did not start:\n{_last_lines(at.log, beginning)}")
        if time.monotonic() > deadline:
            raise StartFailed(
                f"no broker answers on {at.broker_socket} in time, though one was started or holds the lock. "
                f"See {at.log}."
            )
        found = _settled(at, deadline)
        if found is not None:
            return found


def _await_mcp(at: Here, found: Found, deadline: float) -> None:
    """Its MCP socket comes a moment after its own."""
    while not at.mcp_socket.exists() and alive(found.pid) and time.monotonic() < deadline:
        time.sleep(_RETRY_S)


def _succeeded(at: Here, environ: Mapping[str, str]) -> Found:
    """A broker of this program in the place of the one that is out of date; that one itself where it can't be replaced.

    The successor loads everything and reads its settings before it asks the other to end: one that can't start leaves
    the other at work. Jobs go on in their shims meanwhile.
    """
    deadline = time.monotonic() + HAND_OVER_LIMIT_S
    with _alone(at, deadline):
        found = find(at)
        if found is None:  # it was ended by somebody else
            return _started(at, environ, deadline)
        reason = _out_of_date(found)
        if reason is None:
            return found
        try:
            if not found.restarts_worker:
                raise LocalError("it was not started by job up or jobd-mcp: whoever runs it restarts it")
            require_broker(found.pid)
            beginning = _log_size(at)
            with _Start(at, _inherited(found.pid, environ), successor_of=found.pid) as attempt:
                successor = _await_answer(at, attempt, deadline, other_than=found.pid)
            if successor is not None:
                return successor
            raise LocalError(f"its successor did not start: {_last_lines(at.log, beginning)}")
        except LocalError as error:
            sys.stderr.write(f"jobd-mcp {versions.own()}: the broker here {reason} and stays: {error}\n")
    return find(at) or _started(at, environ, deadline)


def _out_of_date(found: Found) -> str | None:
    """Why this program should run the broker here; None if the one that runs is as good, or better."""
    if versions.older_than_ours(found.version):
        return f"is of version {found.version}"
    if not found.restarts_worker or versions.newer_than_ours(found.version):
        return None
    return "was removed from disk" if _was_removed(found.pid) else None


def _was_removed(pid: int) -> bool:
    """Whether the installation that this broker was started from is gone: a tool's cache was cleaned, an environment
    removed. Then it runs on from memory, but can start no worker."""
    try:
        arguments = _arguments(pid)
    except OSError:
        return False
    interpreter = os.fsdecode(arguments[0])
    if b"broker" not in arguments or not os.path.isabs(interpreter):
        return False
    try:
        os.lstat(f"/proc/{pid}/root{interpreter}")  # by its own root: a sandboxed client sees other files
    except FileNotFoundError:
        return alive(pid)
    except OSError:
        return False
    return False


@contextmanager
def _alone(at: Here, deadline: float) -> Iterator[None]:
    """Of several newer programs one replaces the broker; the others wait, and find it done."""
    handle = os.open(at.state / "handover.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StartFailed(
                        f"another program has been replacing the broker for too long. See {at.log}."
                    ) from None
                time.sleep(_RETRY_S)
        yield
    finally:
        os.close(handle)


def _inherited(pid: int, environ: Mapping[str, str]) -> dict[str, str]:
    """What the broker to be replaced was started with, under our own settings: a client with a bare environment must
    not take away the address that workers reach it by."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(environ)
    theirs = dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
    return {**theirs, **{name: value for name, value in environ.items() if name.startswith("JOBD_")}}


def up(environ: Mapping[str, str]) -> Found:
    """`job up`: a broker with a worker runs when this returns. A repeat changes nothing."""
    return ensure(here(environ), environ)


def down(environ: Mapping[str, str], jobs: Literal["refuse", "keep", "stop"] = "refuse") -> bool:
    """`job down`: no broker runs when this returns; False if none did.

    With running jobs it raises RunningJobs, unless they are to be kept (their shims go on, and the next broker
    takes them up again) or stopped first.
    """
    at = here(environ)
    found = find(at)
    if found is None:
        return False
    running, total, leases = _running(at)
    if running and jobs == "refuse":
        raise RunningJobs(running, total, leases)
    if running and jobs == "stop":
        _stop_jobs(at)
    require_broker(found.pid)
    with suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while alive(found.pid):
        if time.monotonic() > deadline:
            raise LocalError(f"the broker (process {found.pid}) has not ended {STOP_LIMIT_S:g} s after SIGTERM.")
        time.sleep(_RETRY_S)
    return True


def alive(pid: int) -> bool:
    """Whether this process runs; one that has ended and waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return True


class _Start:
    """One attempt to start a broker in the background: `exit_code` is None while it lives.

    The process detaches itself (a client that kills its children, and theirs, must not reach it), so it can't be
    waited for. It holds the other end of a pipe instead, and writes its exit code there as its last word.
    """

    def __init__(self, at: Here, environ: Mapping[str, str], successor_of: int | None = None) -> None:
        import subprocess

        places.private_directory(at.state)
        self.exit_code: int | None = None
        self._status, status = os.pipe()
        os.set_blocking(self._status, False)
        arguments = [sys.executable, "-I", "-m", "jobd_mcp.daemon", "jobd", "broker", "--with-worker", "--detach"]
        if successor_of is not None:
            arguments.append(f"--successor-of={successor_of}")
        with _open_log(at.log) as log:
            launched = subprocess.run(
                [*arguments, f"--status-fd={status}"],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**_private_environment(environ), "JOBD_STATE_DIR": str(at.state)},
                start_new_session=True,
                pass_fds=(status,),
            )
        os.close(status)
        if launched.returncode != 0:
            self.exit_code = launched.returncode

    def look(self) -> None:
        """Read its last word, if it has said it."""
        with suppress(BlockingIOError):
            word = os.read(self._status, 16)
            self.exit_code = int(word) if word.strip().isdigit() else 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._status)


def _await_answer(at: Here, attempt: _Start, deadline: float, other_than: int | None = None) -> Found | None:
    """The broker that answers after this attempt; None if the attempt ended, or the time is over."""
    while time.monotonic() < deadline:
        found = find(at)
        if found is not None and found.pid != other_than:
            return found
        if attempt.exit_code is None:
            attempt.look()
        if attempt.exit_code is not None:
            return None
        time.sleep(_RETRY_S)
    return None


def _settled(at: Here, deadline: float) -> Found | None:
    """Whoever held the lock answers soon, or is on its way out and lets it go: then start again."""
    until = min(deadline, time.monotonic() + _RESTART_AFTER_S)
    while (found := find(at)) is None and time.monotonic() < until:
        time.sleep(_RETRY_S)
    return found


def _installation(at: Here) -> str | None:
    try:
        return (at.state / "installation").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _require_private(directory: Path) -> None:
    """Only this user can have put a socket here. Raises OSError where there is nothing, Stranger otherwise."""
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise Stranger(f"{directory} can be changed by other users; remove it or set JOBD_STATE_DIR.")


def require_broker(pid: int) -> None:
    """The pid came from a broker that proved who it is; but it may be of another pid namespace."""
    if not sys.platform.startswith("linux"):
        return
    try:
        arguments = _arguments(pid)
    except OSError:
        arguments = []
    if b"broker" not in arguments:
        raise LocalError(f"process {pid} is not the broker as seen from here; is it in a container? Stop it there.")


def _arguments(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _private_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if (name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES))
        and name not in _KEPT_BACK
        and not name.startswith(_KEPT_BACK_PREFIXES)
    }


def _open_log(path: Path) -> BinaryIO:
    """The background programs' log, for appending; a long one is put aside first, so two are kept at most."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > LOG_LIMIT_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "ab")


def _log_size(at: Here) -> int:
    return at.log.stat().st_size if at.log.exists() else 0


def _last_lines(log: Path, beginning: int, count: int = 15) -> str:
    """What the log says since `beginning`, its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(beginning, log.stat().st_size - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"(its log can't be read: {error})"
    return "\n".join(lines[-count:]) or f"(it wrote nothing to {log})"


def _running(at: Here) -> tuple[list[int], int, set[int]]:
    """Ids of jobs that have, or may have, a process (the first hundred), how many there are, and which are leases."""
    ids: list[int] = []
    leases: set[int] = set()
    total = 0
    for state in ("assigned", "running"):
        answer = _ask(at, Request("GET", "/v1/jobs", (("state", state), ("limit", "100"))))
        jobs = [as_object(job) for job in as_list(answer.get("jobs"))]
        ids.extend(id_ for job in jobs if isinstance(id_ := job.get("id"), int))
        leases |= {id_ for job in jobs if job.get("kind") == "lease" and isinstance(id_ := job.get("id"), int)}
        found = answer.get("total")
        total += found if isinstance(found, int) else len(jobs)
    return sorted(ids), total, leases


def _stop_jobs(at: Here) -> None:
    """Cancel what runs, and return when nothing runs any more. Jobs that take a freed place are stopped too."""
    deadline = time.monotonic() + STOP_JOBS_LIMIT_S
    asked: set[int] = set()
    while True:
        ids, _, _ = _running(at)
        if not ids:
            return
        if time.monotonic() > deadline:
            raise LocalError(
                f"jobs {', '.join(map(str, ids[:20]))} have not ended {STOP_JOBS_LIMIT_S:g} s after they were cancelled."
            )
        if new := [id_ for id_ in ids if id_ not in asked]:
            wish = {"job": new, "reason": "job down --stop-jobs", "force": True}
            _ask(at, Request("POST", "/v1/jobs/cancel", body=json.dumps(wish).encode()))
            asked.update(new)
        time.sleep(0.1)


def _ask(at: Here, request: Request) -> Schema:
    try:
        status, answer = exchange(at.broker_socket, request, 30)
    except OSError as error:
        raise LocalError(f"the broker stopped answering: {error}") from None
    if status >= 400:
        raise LocalError(f"the broker refused {request.method} {request.path}: {as_object(answer).get('detail')}")
    return as_object(answer)
