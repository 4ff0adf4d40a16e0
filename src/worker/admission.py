"""The last look before a process is made: does what the job asks for exist on this machine?

A refusal is no failure of the job: nothing was executed, no retry is used, and another machine may have it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker.wire.jobs import JobSpec
from broker.wire.machines import FOREIGN_MB, Given, Gpu, GpuHealth, GpuShare
from broker.wire.workers import Final, Outcome
from worker.environment import NoShell, conda_directory, expanded, program
from worker.patience import OutOfPatience, within
from worker.probe.machine import free_mb

CHECK_LIMIT_S = 10.0
LEAST_FREE_MB = 64.0  # below this neither records nor output can be relied on


@dataclass(frozen=True)
class Admitted:
    """What was asked for, as it is on this machine."""

    argv: list[str]
    cwd: Path | None
    """None: the scratch directory, or a copy in it."""
    tools: Path | None
    """Directory of the venv or conda environment."""


@dataclass(frozen=True)
class Ground:
    """What admission knows of the machine it stands on."""

    host: str
    login: Mapping[str, str]
    state: Path


class Sight(Protocol):
    """How devices and memory are looked at: `probe.watch.Watch` is one."""

    async def devices_now(self) -> list[Gpu]: ...
    def ram_now_gb(self) -> float | None: ...


class Refusal(Exception):
    """Not here, or not now. The message names what is missing, and the host."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def final(self) -> Final:
        return Final(outcome=Outcome.REFUSED, reason_code=self.code, reason=str(self)[:2000])


async def admit(spec: JobSpec, ground: Ground, limit_s: float = CHECK_LIMIT_S) -> Admitted:
    """`spec` as it is on this machine. Raises Refusal, also when the file system doesn't answer in time."""
    if spec.cwd is None and spec.venv is None and spec.conda is None:
        return _look(spec, ground)  # our own directory and /bin alone: nothing here can hang
    try:
        return await within(limit_s, lambda: _look(spec, ground))
    except OutOfPatience as error:
        raise Refusal(
            "file_system_unresponsive", f"the files that the job names could not be looked at on {ground.host}: {error}"
        ) from None


async def look_at_given(given: Given, sight: Sight | None, host: str) -> None:
    """Are the devices and the memory that the broker counted with there right now? Raises Refusal."""
    if given.gpus:
        gpus = {gpu.uuid: gpu for gpu in (await sight.devices_now() if sight is not None else ())}
        for share in given.gpus:
            _device(share, gpus.get(share.uuid), host)
    available_gb = sight.ram_now_gb() if sight is not None else None
    if given.ram_gb and available_gb is not None and available_gb < given.ram_gb:
        raise Refusal(
            "ram_short", f"{given.ram_gb:g} GiB of RAM are asked for, and {available_gb:g} available on {host}"
        )


def _device(share: GpuShare, gpu: Gpu | None, host: str) -> None:
    if gpu is None or gpu.health is not GpuHealth.OK:
        state = "not there" if gpu is None else f"{gpu.health.value}: {gpu.why or 'it does not say why'}"
        raise Refusal("gpu_lost", f"{share.uuid} on {host} is {state}")
    if share.mb is not None:
        if gpu.free_mb is None or gpu.free_mb < share.mb:
            free = "it does not say how much" if gpu.free_mb is None else f"{gpu.free_mb} MiB"
            raise Refusal("gpu_busy", f"{share.mb} MiB of GPU {gpu.index} on {host} are asked for; free: {free}")
        return
    if gpu.used_mb > FOREIGN_MB:
        raise Refusal("gpu_busy", f"GPU {gpu.index} on {host} is asked for alone; {gpu.used_mb} MiB of it are used")


def has_room(state: Path) -> bool:
    """Whether there is room for another job's records and output."""
    return free_mb(state) >= LEAST_FREE_MB


def _look(spec: JobSpec, ground: Ground) -> Admitted:
    if not has_room(ground.state):
        raise Refusal("disk_full", f"less than {LEAST_FREE_MB:g} MiB are free under {ground.state} on {ground.host}")
    home = ground.login.get("HOME", "/")
    said = expanded(spec.cwd, home) if spec.cwd is not None else None
    cwd = _directory(said, ground.host) if said is not None and spec.copied is None else None
    try:
        argv = program(spec)
    except NoShell as error:
        raise Refusal("launcher_failed", f"{error} on {ground.host}") from None
    return Admitted(argv, cwd, _tools(spec, ground, said or Path(home)))


def _directory(path: Path, host: str) -> Path:
    try:
        info = path.stat()
    except PermissionError:
        raise Refusal("cwd_forbidden", f"cwd {path} can't be reached by the worker's user on {host}") from None
    except (OSError, ValueError) as error:
        raise Refusal("cwd_missing", f"cwd {path} does not exist on {host} ({_why(error)})") from None
    if not stat.S_ISDIR(info.st_mode):
        raise Refusal("cwd_not_directory", f"cwd {path} is not a directory on {host}")
    if not os.access(path, os.X_OK):
        raise Refusal("cwd_forbidden", f"cwd {path} can't be entered by the worker's user on {host}")
    return path


def _tools(spec: JobSpec, ground: Ground, cwd: Path) -> Path | None:
    if spec.venv is not None:
        path = expanded(spec.venv, ground.login.get("HOME", "/")) if spec.venv.startswith("~") else cwd / spec.venv
        if not (path / "bin").is_dir():
            raise Refusal("venv_missing", f"venv {path} does not exist on {ground.host} (no directory {path / 'bin'})")
        return path
    if spec.conda is not None:
        found = conda_directory(spec.conda, ground.login)
        if found is None:
            raise Refusal("conda_missing", f"conda environment {spec.conda} was not found on {ground.host}")
        return found
    return None


def _why(error: OSError | ValueError) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
