"""What a job's process is given: its program, its environment, its directories.

The base is the *login* environment of the worker's user, never the environment that the worker was started with:
under systemd, ssh, cron or an agent's client a job sees the same, and no credential of ours leaks into it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.places import KFD, visible_devices
from broker.wire.jobs import JobSpec
from worker.outbox import Outbox

LOGIN_LIMIT_S = 5.0
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What a program needs to find itself, its user's files and its libraries. Everything else of a login environment is
# either about a terminal (TERM, LS_COLORS, PS1), about one session (SSH_*, DISPLAY, XDG_SESSION_ID), or a secret that
# somebody exports in a profile: a job that needs one asks for it.
ALLOWED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_STATE_HOME"),
        # Libraries, compilers and the modules systems of clusters.
        *("LD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "PKG_CONFIG_PATH", "MODULEPATH"),
        *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDNN_PATH", "ROCM_PATH", "JAVA_HOME", "OMP_NUM_THREADS"),
        # Where tool chains and their caches live: without them every job downloads its models and wheels again.
        *(
            "CONDA_EXE",
            "MAMBA_EXE",
            "MAMBA_ROOT_PREFIX",
            "PYENV_ROOT",
            "NVM_DIR",
            "CARGO_HOME",
            "RUSTUP_HOME",
            "GOPATH",
        ),
        *("HF_HOME", "TORCH_HOME", "UV_CACHE_DIR", "PIP_CACHE_DIR", "NLTK_DATA", "WANDB_DIR"),
        # The way out of this network.
        *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
ALLOWED_PREFIXES = ("LC_",)


class NoShell(Exception):
    """This machine has neither bash nor sh."""


@dataclass(frozen=True)
class Places:
    """The directories of one delivery."""

    scratch: Path
    checkpoints: Path
    cwd: Path
    """Where the process starts: the one asked for, else the scratch directory."""
    outbox: Outbox
    """Where it leaves what its submitter is to have."""
    kfd: Path = KFD
    """Where AMD's devices are reached, if there are any."""


@dataclass(frozen=True)
class Identity:
    """What a process is told about itself."""

    job: int
    attempt: int
    restarts: int
    array_index: int | None = None
    gpus: tuple[str, ...] = ()
    """The devices that it was given, by uuid."""


@dataclass(frozen=True)
class User:
    """Whose login environment it is."""

    name: str
    home: str
    shell: str

    @classmethod
    def of_this_process(cls) -> User:
        try:
            entry = pwd.getpwuid(os.getuid())
        except KeyError:  # a container with a uid that nobody named
            return cls(str(os.getuid()), os.environ.get("HOME", "/"), "/bin/sh")
        return cls(entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh")


def login_environment(user: User, limit_s: float = LOGIN_LIMIT_S) -> dict[str, str]:
    """The login environment of a user, by the allow-list. Blocks for at most about `limit_s`; never fails.

    A profile that hangs, exits or prints costs what it sets, and no more: the password database's word is the base.
    """
    base = {
        "PATH": DEFAULT_PATH,
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": user.shell,
        "LANG": "C.UTF-8",  # a program that prints text must not die of an ASCII locale
    }
    found = _ask_login_shell(base, limit_s)
    return base | {name: value for name, value in found.items() if is_allowed(name)}


def is_allowed(name: str) -> bool:
    return name in ALLOWED or name.startswith(ALLOWED_PREFIXES)


def environment(
    login: Mapping[str, str], spec: JobSpec, who: Identity, places: Places, tools: Path | None
) -> dict[str, str]:
    """The whole environment of a job's process. `tools` is the venv's or conda environment's directory, resolved.

    What the job asked for wins over everything but the names by which a job knows itself.
    """
    env = dict(login)
    env["PYTHONUNBUFFERED"] = "1"
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if tools is not None:
        env["PATH"] = f"{tools / 'bin'}:{env.get('PATH', DEFAULT_PATH)}"
        env["VIRTUAL_ENV" if spec.venv is not None else "CONDA_PREFIX"] = str(tools)
    env |= spec.env or {}
    env |= {
        "JOBD_JOB_ID": str(who.job),
        "JOBD_ATTEMPT": str(who.attempt),
        "JOBD_RESTARTS": str(who.restarts),
        "JOBD_JOB_DIR": str(places.scratch),
        "JOBD_CHECKPOINT_DIR": str(places.checkpoints),
        "JOBD_CHECKPOINT_GRACE_S": f"{spec.checkpoint_grace_s:g}",
        "JOBD_RESULT_FILE": str(places.outbox.result),
        "JOBD_PROGRESS_FILE": str(places.outbox.progress),
        "JOBD_ARTIFACTS_DIR": str(places.outbox.artifacts),
    }
    env |= visible_devices(who.gpus, rocm=places.kfd.exists())
    if who.array_index is not None:
        env["JOBD_ARRAY_INDEX"] = str(who.array_index)
    return env


def program(spec: JobSpec) -> list[str]:
    """What is executed: `command` by a shell that reads no rc file, `argv` as it is. Raises NoShell."""
    if spec.argv is not None:
        return list(spec.argv)
    assert spec.command is not None, "a JobSpec has exactly one of command and argv"
    for bash in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
        if os.access(bash, os.X_OK):
            return [bash, "--noprofile", "--norc", "-c", spec.command]
    shell = "/bin/sh" if os.access("/bin/sh", os.X_OK) else shutil.which("sh", path=DEFAULT_PATH)
    if shell is None:
        raise NoShell("neither bash nor sh was found")
    return [shell, "-c", spec.command]


def expanded(path: str, home: str) -> Path:
    """`~` is the home of the worker's user, `~name` another's; a relative path begins in the home."""
    if path == "~" or path.startswith("~/"):
        return Path(home + path[1:])
    return Path(home, os.path.expanduser(path))


def conda_directory(name: str, login: Mapping[str, str]) -> Path | None:
    """The directory of a conda environment, given by path or by name; None where there is none."""
    home = login.get("HOME", "/")
    if "/" in name or name.startswith("~"):
        path = expanded(name, home)
        return path if (path / "bin").is_dir() else None
    for path in _conda_candidates(name, login, Path(home)):
        if (path / "bin").is_dir():
            return path
    return None


def _conda_candidates(name: str, login: Mapping[str, str], home: Path) -> list[Path]:
    """Where an environment of that name may be, in conda's own order: its roots, the user's, the register of all."""
    roots = [Path(login["MAMBA_ROOT_PREFIX"])] if login.get("MAMBA_ROOT_PREFIX") else []
    if login.get("CONDA_EXE"):
        roots.append(Path(login["CONDA_EXE"]).parent.parent)
    roots += [home / directory for directory in ("miniconda3", "miniforge3", "mambaforge", "anaconda3", "micromamba")]
    roots += [Path("/opt/conda"), Path("/opt/miniconda3"), Path("/opt/miniforge3")]
    if name == "base":
        return [root for root in roots if (root / "conda-meta").is_dir()]
    registered: list[Path] = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lines = (home / ".conda" / "environments.txt").read_text().splitlines()
        registered = [Path(line) for line in lines if Path(line).name == name]
    return [*(root / "envs" / name for root in roots), home / ".conda" / "envs" / name, *registered]


def _ask_login_shell(base: Mapping[str, str], limit_s: float) -> dict[str, str]:
    """What `env` prints in a login shell. {} where that fails.

    The answer goes to a file, not a pipe: a profile that starts a daemon would hold the pipe open for ever.
    """
    mark = uuid.uuid4().hex  # what the profile itself prints comes before it
    with tempfile.TemporaryFile() as output:
        try:
            shell = subprocess.Popen(
                [base["SHELL"], "-l", "-c", f"printf %s {mark}; env -0"],
                env=dict(base),
                cwd=base["HOME"] if os.path.isdir(base["HOME"]) else "/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return {}
        if not _ended(shell, limit_s):
            return {}
        output.seek(0)
        _, found, answer = output.read().rpartition(mark.encode())
    if not found:
        return {}
    pairs = (os.fsdecode(entry).partition("=") for entry in answer.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs if _is_text(value)}


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for the end; kill the whole session's group when it takes too long."""
    deadline = time.monotonic() + limit_s
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True


def _is_text(value: str) -> bool:
    """The specification of a shim is JSON: what is no UTF-8 can't be passed on."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
