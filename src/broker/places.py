"""Where things are kept on this machine. Standard library only: clients on any platform import this."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs", "beegfs"}
)
KFD = Path("/dev/kfd")
"""AMD's runtime reaches its devices through this."""
DEVICE_NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
LONGEST_SOCKET_PATH = 100  # sun_path holds 107 bytes on Linux and 103 on macOS


def machine_id() -> str:
    """An id of this machine, 12 hex digits: homes may be shared by several machines."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text:
            return hashlib.sha256(b"jobd " + text.encode()).hexdigest()[:12]
    return hashlib.sha256(b"jobd %x %s" % (uuid.getnode(), os.uname().nodename.encode())).hexdigest()[:12]


def boot_id() -> str:
    """An id of this machine's present boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return f"{uuid.getnode():x}"  # macOS: no boot id without a child process; the machine alone must do


def machine_identity() -> str:
    """`machine:boot`: what workers register, and what says that something else is on the same machine."""
    return f"{machine_id()}:{boot_id()}"


def state_dir(configured: Path | None, environ: Mapping[str, str]) -> Path:
    """The state directory, not yet made. On a network file system: under the machine's own storage."""
    if configured is not None:
        return configured.expanduser().absolute()
    base = environ.get("XDG_STATE_HOME")
    home = Path(base) if base and os.path.isabs(base) else _home(environ) / ".local" / "state"
    chosen = home / "jobd" / machine_id()
    if file_system_of(chosen) in NETWORK_FILE_SYSTEMS:
        return Path("/var/tmp") / f"jobd-{os.getuid()}" / machine_id()
    return chosen


def config_file(environ: Mapping[str, str]) -> Path:
    if environ.get("JOBD_CONFIG"):
        return Path(environ["JOBD_CONFIG"]).expanduser().absolute()
    base = environ.get("XDG_CONFIG_HOME")
    home = Path(base) if base and os.path.isabs(base) else _home(environ) / ".config"
    return home / "jobd" / "jobd.toml"


def config_text(environ: Mapping[str, str]) -> str | None:
    """The text of jobd.toml; None where there is none. A file named by JOBD_CONFIG must exist."""
    path = config_file(environ)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if environ.get("JOBD_CONFIG"):
            raise
        return None


def sockets(state: Path, environ: Mapping[str, str]) -> tuple[Path, Path]:
    """broker.sock and mcp.sock of this state directory; in the runtime directory where the path is too long."""
    if len(os.fsencode(state / "broker.sock")) <= LONGEST_SOCKET_PATH:
        return state / "broker.sock", state / "mcp.sock"
    runtime = environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.path.isdir(runtime) else Path("/tmp") / f"jobd-{os.getuid()}"
    directory = base / ("jobd-" + hashlib.sha256(os.fsencode(state)).hexdigest()[:12])
    return directory / "broker.sock", directory / "mcp.sock"


def private_directory(path: Path) -> Path:
    """Make `path` for this user alone, and refuse one that is a link or somebody else's."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    info = path.lstat()
    if path.is_symlink() or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
        raise PermissionError(f"{path} is a link or belongs to another user; remove it or set JOBD_STATE_DIR")
    path.chmod(0o700)
    return path


def file_system_of(path: Path) -> str:
    """Type of the file system that `path` is or would be on; "" where it can't be told."""
    if not sys.platform.startswith("linux"):
        return ""
    while not path.exists() and path != path.parent:
        path = path.parent
    target, best, kind = str(path.resolve()), "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if (target == point or target.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, name
    return kind


def _home(environ: Mapping[str, str]) -> Path:
    """HOME, else the password database's word, else a private directory: an empty environment must work."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path.home()
    except RuntimeError:
        return Path("/var/tmp") / f"jobd-{os.getuid()}"


def visible_devices(uuids: Sequence[str], *, rocm: bool) -> dict[str, str]:
    """By which names a process is told its devices; without any it sees none. `rocm`: AMD's runtime may be asked here.

    That goes by uuids, and HIP above it by numbers among what is left: an empty list would mean all to it, and it takes
    CUDA's name where its own is not set.
    """
    cuda, rocr, hip = DEVICE_NAMES
    named = ",".join(uuids)
    if not rocm:
        return {cuda: named}
    return {cuda: named, rocr: named, hip: ",".join(str(number) for number in range(len(uuids))) or "-1"}
