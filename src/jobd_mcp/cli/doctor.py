"""`job doctor`: the commonest faults of a set-up, each with the line that mends it. Changes nothing."""

from __future__ import annotations

import email.utils
import importlib.metadata
import json
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from broker import places
from jobd_mcp import local
from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import Connection, connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.faults import Fault
from jobd_mcp.cli.operation_command import JSON_FLAG
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import as_list, as_object

LITTLE_SPACE_BYTES = 1 << 30
TOO_LITTLE_SPACE_BYTES = 100 << 20
CLOCK_TOLERANCE_S = 5.0

Verdict = Literal["ok", "warning", "fault"]
_MARKS: Mapping[Verdict, tuple[str, str]] = {"ok": ("ok", "green"), "warning": ("??", "yellow"), "fault": ("!!", "red")}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. Where it is not well, `code` names the fault, and `fix` what to do about it."""

    about: str
    verdict: Verdict
    said: str
    code: Fault | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Machine:
    """What is asked of this machine."""

    file_system_of: Callable[[Path], str] = places.file_system_of
    free_bytes: Callable[[Path], int] = lambda directory: shutil.disk_usage(directory).free
    now_s: Callable[[], float] = time.time


@dataclass(frozen=True)
class Examined:
    """What the checks look at. `at` is None where a URL names a broker elsewhere."""

    environ: Mapping[str, str]
    at: local.Here | None
    url: str | None
    machine: Machine


def doctor_command() -> click.Command:
    def call(as_json: bool) -> int:
        findings = list(examine(os.environ))
        if as_json:
            click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
        else:
            for line in (line for finding in findings for line in _lines(finding)):
                click.echo(line)
            found = sum(finding.code is not None for finding in findings)
            click.echo(f"{found} fault{'s' * (found != 1)} found" if found else "nothing is wrong")
        return 1 if any(finding.verdict == "fault" for finding in findings) else 0

    return click.Command(
        "doctor",
        callback=call,
        params=[click.Option(["--json", JSON_FLAG], is_flag=True, help="Print the findings as JSON.")],
        help=(
            "Look for the commonest set-up faults, and say how to mend each. Changes nothing. Exits 1 if it finds one "
            "that keeps jobs from running."
        ),
        short_help="Look for set-up faults.",
    )


def examine(environ: Mapping[str, str], machine: Machine | None = None) -> Iterator[Finding]:
    """All findings, in the order in which a person would mend them."""
    settings = list(_settings(environ))
    yield from settings
    if any(finding.verdict == "fault" for finding in settings):
        return
    url = local.setting(environ, "url")
    examined = Examined(environ, None if url else local.here(environ), url, machine or Machine())
    for check in CHECKS:
        yield from check(examined)


def _settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Every setting, of every program, is read as the programs read it."""
    from broker.wire.settings import ALL, ConfigurationError, load

    source = places.config_file(environ)
    try:
        text = places.config_text(environ)
        for model in ALL:
            load(model, environ, text, str(source))
    except ConfigurationError as error:
        fix = "correct it; docs/configuration.md lists every setting"
        yield Finding("settings", "fault", str(error), Fault.SETTING_WRONG, fix)
    except OSError as error:
        fix = "correct JOBD_CONFIG, or unset it"
        yield Finding("settings", "fault", f"{source}: {error.strerror}", Fault.SETTING_WRONG, fix)
    else:
        yield Finding("settings", "ok", f"read from {source}" if text is not None else f"no file at {source}: defaults")


def _python(_: Examined) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _scripts(_: Examined) -> Iterator[Finding]:
    """An older package of another name brings a script of the same name: which one runs?"""
    own = Path(sys.executable).parent
    for name in ("job", "jobd-mcp"):
        found = shutil.which(name)
        if found is None:
            fix = f"add {own} to PATH, or give clients {own / name}"
            yield Finding(name, "warning", "is not in PATH", Fault.SCRIPT_MISSING, fix)
        elif (own / name).exists() and not os.path.samefile(found, own / name):
            fix = f"uninstall the package that owns {found}, or give clients {own / name}"
            yield Finding(name, "warning", f"PATH finds {found}, not {own / name}", Fault.SCRIPT_OF_ANOTHER, fix)
        else:
            yield Finding(name, "ok", found)
    try:
        other = importlib.metadata.version("jobd")
    except importlib.metadata.PackageNotFoundError:
        return
    fix = "pip uninstall jobd, then pip install --force-reinstall jobd-mcp"
    said = f"jobd {other} is installed beside jobd-mcp; their scripts collide"
    yield Finding("packages", "warning", said, Fault.SCRIPT_OF_ANOTHER, fix)


def _shell(_: Examined) -> Iterator[Finding]:
    found = shutil.which("bash")
    if found:
        yield Finding("shell", "ok", f"commands run by {found}")
    else:
        said = "bash is not in PATH; commands run by sh"
        yield Finding("shell", "warning", said, Fault.SHELL_MISSING, "install bash, or use argv")


def _state_directory(examined: Examined) -> Iterator[Finding]:
    if examined.at is None:
        return
    state = examined.at.state
    kind = examined.machine.file_system_of(state)
    if kind in places.NETWORK_FILE_SYSTEMS:
        fix = "set JOBD_STATE_DIR to a directory on this machine's own disk"
        said = f"{state} is on {kind}, where locks can't be trusted"
        yield Finding("state directory", "fault", said, Fault.STATE_ON_NETWORK, fix)
        return
    existing = state
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fix = "set JOBD_STATE_DIR to one that can"
        yield Finding("state directory", "fault", f"{existing} can't be written", Fault.STATE_NOT_WRITABLE, fix)
        return
    if existing == state and (fault := _not_private(state)):
        fix = f"chmod 700 {state}, if it is yours"
        yield Finding("state directory", "fault", fault, Fault.STATE_NOT_PRIVATE, fix)
        return
    yield Finding("state directory", "ok", f"{state}" + (f" on {kind}" if kind else ""))
    yield _space(examined.machine.free_bytes(existing))


def _not_private(directory: Path) -> str | None:
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode):
        return f"{directory} is not a directory"
    if info.st_uid != os.getuid():
        return f"{directory} belongs to another user"
    return f"{directory} can be read by others" if info.st_mode & 0o077 else None


def _space(free_bytes: int) -> Finding:
    said = f"{free_bytes / (1 << 30):.1f} GiB free"
    if free_bytes >= LITTLE_SPACE_BYTES:
        return Finding("disk", "ok", said)
    verdict: Verdict = "warning" if free_bytes >= TOO_LITTLE_SPACE_BYTES else "fault"
    return Finding("disk", verdict, said, Fault.DISK_SHORT, "make room: jobs are refused when nothing can be written")


def _broker(examined: Examined) -> Iterator[Finding]:
    found: local.Found | None = None
    if examined.at is not None:
        try:
            found = local.find(examined.at)
        except local.LocalError as error:
            yield Finding("broker", "fault", str(error), Fault.BROKER_STRANGER, Fault.BROKER_STRANGER.mended_by)
            return
        if found is None:
            said = f"none answers on {examined.at.broker_socket}"
            yield Finding("broker", "warning", said, Fault.BROKER_ABSENT, "job up")
            return
        yield _version(found.version)
        yield from _sockets(examined.at)
    try:
        connection = connect(examined.environ)
        if examined.url is not None:
            yield _version(str(as_object(connection.call(by_name()["whoami"], {}).json()).get("version")))
        yield from _clock(connection, examined.machine)
        yield from _workers(connection, examined, found)
    except Failure as failure:
        code = Fault.TOKEN_REFUSED if failure.code in ("unauthenticated", "forbidden") else Fault.URL_UNREACHABLE
        said = failure.lines()[0].removeprefix("job: ")
        yield Finding("broker", "fault", said, code, failure.hint or code.mended_by.replace("`", ""))


def _version(broker: str) -> Finding:
    own = importlib.metadata.version("jobd-mcp")
    if broker == own:
        return Finding("broker", "ok", f"answers, version {broker}")
    fix = "job down --keep-jobs && job up, where it runs: jobs go on meanwhile"
    return Finding("broker", "warning", f"version {broker} runs, this is {own}", Fault.VERSION_DIFFERS, fix)


def _sockets(at: local.Here) -> Iterator[Finding]:
    for path in (at.broker_socket, at.mcp_socket):
        if not path.exists():
            fix = "job down --keep-jobs && job up"
            yield Finding("sockets", "fault", f"{path} is missing", Fault.SOCKET_MISSING, fix)
        elif path.stat().st_mode & 0o077:
            yield Finding("sockets", "fault", f"{path} can be used by others", Fault.SOCKET_OPEN, f"chmod 600 {path}")
        else:
            yield Finding("sockets", "ok", str(path))


def _clock(connection: Connection, machine: Machine) -> Iterator[Finding]:
    before = machine.now_s()
    stamp = connection.call(by_name()["worker_list"], {}).headers.get("date")
    if stamp is None:
        return
    ahead_s = email.utils.parsedate_to_datetime(stamp).timestamp() - before
    if abs(ahead_s) > CLOCK_TOLERANCE_S:
        fix = "set both clocks by NTP; times shown here are the broker's"
        yield Finding("clock", "warning", f"the broker's clock differs by {ahead_s:.0f} s", Fault.CLOCK_DIFFERS, fix)
    else:
        yield Finding("clock", "ok", "agrees with the broker's")


def _workers(connection: Connection, examined: Examined, found: local.Found | None) -> Iterator[Finding]:
    answer = as_object(connection.call(by_name()["worker_list"], {}).json())
    known = [as_object(worker) for worker in as_list(answer.get("workers"))]
    online = [str(worker.get("name")) for worker in known if worker.get("state") == "online"]
    if online:
        yield Finding("workers", "ok", f"online: {', '.join(online)}")
        return
    closed = [f"{worker.get('name')} ({worker.get('state')})" for worker in known if worker.get("state") != "lost"]
    if closed:
        said = f"no new work for {', '.join(closed)}, so jobs wait"
        yield Finding("workers", "warning", said, Fault.WORKERS_CLOSED, "job workers resume NAME")
        return
    said, fix = "none is online, so jobs wait", "job up here, or job worker --join URL elsewhere"
    if found is not None and found.restarts_worker and examined.at is not None:
        log = examined.at.state / "worker.log"
        said, fix = f"{said}; this broker starts one itself, whose log ends with: {_last_line(log)}", f"see {log}"
    yield Finding("workers", "fault", said, Fault.WORKER_ABSENT, fix)


def _last_line(log: Path) -> str:
    """The last thing that it says about a fault."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError as error:
        return f"(its log can't be read: {error})"
    said = next((line for line in reversed(lines) if line.strip()), "(its log is empty)")
    return rendering.text(said.strip())


CHECKS: tuple[Callable[[Examined], Iterator[Finding]], ...] = (_python, _scripts, _shell, _state_directory, _broker)


def _lines(finding: Finding) -> list[str]:
    mark, colour = _MARKS[finding.verdict]
    code = f" ({finding.code})" if finding.code else ""
    lines = [f"{click.style(mark, fg=colour)}  {finding.about}: {finding.said}{code}"]
    return [*lines, f"    fix: {finding.fix}"] if finding.fix else lines
