"""From a prepared shim to the job's own program: fork, get everything ready, wait at a gate, exec.

The child does all that can fail before it says `ready`, so that what comes after the gate is the exec alone. It
looks at its deadline as the last thing before: a child that was frozen at the gate does not start late.

Named tuples, here and in the shim: importing dataclasses would make each fork larger by a third.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import Final, Literal, NamedTuple, NoReturn, get_args

from worker.process import cgroup, signals
from worker.process.clock import boot_s
from worker.process.kernel import die_with_parent, fork_into

# What the child says before it execs: nothing more means that exec succeeded (the pipe closes with it).
Said = Literal["ready", "late", "cwd", "setup", "exec", "interpreter"]

_SAID: Final[dict[bytes, Said]] = {said.encode(): said for said in get_args(Said)}
_GATE = struct.Struct("<d")
_OOM_SCORE = 300  # of 1000: when memory runs out the job goes first, not what looks after it
_LONGEST_PATH_SAID = 1000


class Program(NamedTuple):
    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: str
    umask: int
    group: str | None  # to be joined

    def candidates(self) -> list[bytes]:
        """Where the program may lie: itself if it names a directory, else along the job's own PATH."""
        name = self.argv[0]
        if b"/" in name:
            return [name]
        path = self.env.get(b"PATH") or os.fsencode(os.defpath)
        return [os.path.join(directory or b".", name) for directory in path.split(b":")]


class Child(NamedTuple):
    """The shim's ends: `gate` to release, `status` to hear, `out` and `err` to read. All but `gate` never block."""

    pid: int
    gate: int
    status: int
    out: int
    err: int

    def release(self, deadline_s: float) -> None:
        """Let it exec if the boot clock does not stand beyond `deadline_s`."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.gate, _GATE.pack(deadline_s))


class Word(NamedTuple):
    said: Said
    errno: int = 0
    path: str = ""


def read_word(line: bytes) -> Word:
    said, number, path = line.split(b"\t", 2)
    return Word(_SAID[said], int(number), os.fsdecode(path))


def start_child(program: Program, lock: int) -> Child:
    """Fork a child that gets ready and waits at the gate. Raises OSError (no memory, too many processes)."""
    pipes: list[int] = []
    try:
        for _ in range(4):
            pipes += os.pipe()
        gate_r, gate_w, status_r, status_w, out_r, out_w, err_r, err_w = pipes
        parent = os.getpid()
        pid, inside = _fork(program.group)
    except OSError:
        for fd in pipes:
            os.close(fd)
        raise
    if pid == 0:
        if inside:
            program = program._replace(group=None)
        _child(program, _Ends(gate_r, status_w, out_w, err_w), parent, unwanted=(lock, gate_w))
    for fd in (gate_r, status_w, out_w, err_w):
        os.close(fd)
    for fd in (status_r, out_r, err_r):
        os.set_blocking(fd, False)
    return Child(pid, gate_w, status_r, out_r, err_r)


def _fork(group: str | None) -> tuple[int, bool]:
    """The child's pid, and whether it is in `group` already."""
    if group is not None:
        with contextlib.suppress(OSError):  # before Linux 5.7, or forbidden: it joins by itself
            return fork_into(group), True
    return os.fork(), False


class _Ends(NamedTuple):
    """The child's ends of the four pipes."""

    gate: int
    status: int
    out: int
    err: int


def _child(program: Program, ends: _Ends, parent: int, unwanted: tuple[int, ...]) -> NoReturn:
    try:
        die_with_parent()
        if os.getppid() == parent:
            for fd in unwanted:  # the lock: held means that the shim lives, not its child
                os.close(fd)
            if _is_ready(program, ends):
                gate = os.read(ends.gate, _GATE.size)
                if len(gate) == _GATE.size:
                    _exec(program, ends.status, _GATE.unpack(gate)[0])
    finally:
        os._exit(127)


def _is_ready(program: Program, ends: _Ends) -> bool:
    step: Said = "setup"
    status = ends.status
    try:
        _become_a_job(program, ends.out, ends.err)
        step = "cwd"
        os.chdir(program.cwd)
    except OSError as error:
        _say(status, step, error.errno or errno.EIO)
        return False
    os.umask(program.umask)
    _say(status, "ready")
    return True


def _become_a_job(program: Program, out: int, err: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, target)
    with contextlib.suppress(OSError):
        _offer_to_the_oom_killer()
    if program.group is not None:
        with contextlib.suppress(OSError):  # the walk over descendants still finds it
            cgroup.join(program.group)
    signals.restore()


def _offer_to_the_oom_killer() -> None:
    fd = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    try:
        if int(os.read(fd, 16)) < _OOM_SCORE:
            os.write(fd, b"%d" % _OOM_SCORE)
    finally:
        os.close(fd)


def _exec(program: Program, status: int, deadline_s: float) -> None:
    """As execvp looks: a program that is there and can't be executed says more than one that is not there."""
    worst: tuple[int, bytes] = (errno.ENOENT, program.argv[0])
    for path in program.candidates():
        if boot_s() > deadline_s:
            _say(status, "late")
            return
        try:
            os.execve(path, program.argv, program.env)
        except OSError as error:
            number = error.errno or errno.EIO
        if number in (errno.ENOENT, errno.ENOTDIR):
            if number == errno.ENOENT and os.path.exists(path):
                _say(status, "interpreter", number, path)
                return
            if b"/" in program.argv[0]:
                worst = (number, path)
        elif number == errno.EACCES:
            worst = (number, path)
        else:
            _say(status, "exec", number, path)
            return
    _say(status, "exec", *worst)


def _say(status: int, said: Said, number: int = 0, path: bytes = b"") -> None:
    os.write(status, b"%s\t%d\t%s" % (said.encode(), number, path[:_LONGEST_PATH_SAID]))
