"""How a job can end, and what its process finds when it begins."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from broker.wire.workers import Outcome
from worker.process import records

SHOW = """
import json, os, signal, sys
sys.stdout.write(json.dumps({
    "env": dict(os.environ), "cwd": os.getcwd(), "fds": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "stdin": os.readlink("/proc/self/fd/0"), "umask": os.umask(0), "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
    "ignored": next(l.split()[1] for l in open("/proc/self/status") if l.startswith("SigIgn")),
    "blocked": next(l.split()[1] for l in open("/proc/self/status") if l.startswith("SigBlk")),
    "oom": int(open("/proc/self/oom_score_adj").read()), "argv": sys.argv[1:],
}))
"""


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 255])
@pytest.mark.guarantee("G16")
async def test_an_exit_code_is_the_programs_own(room, code):
    final = await room.final_of("sh", "-c", f"exit {code}")
    assert (final.outcome, final.exit_code, final.signal, final.reason_code) == (Outcome.EXITED, code, None, None)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGPIPE"])
async def test_a_signal_that_ended_it_is_named(room, name):
    final = await room.final_of("sh", "-c", f"kill -{signal.Signals[name].value} $$")
    assert (final.outcome, final.exit_code, final.signal) == (Outcome.EXITED, None, name)


async def test_its_time_and_memory_are_told(room):
    final = await room.final_of(sys.executable, "-S", "-c", "x = bytearray(64 << 20); sum(range(10**6))")
    assert final.exit_code == 0
    assert final.max_rss_mb > 64
    assert final.cpu_s > 0
    assert 0 < final.duration_s < 20


def _made(directory: Path, name: str, content: bytes, mode: int) -> str:
    path = directory / name
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        (lambda _: "/no/such/program", "ENOENT", "/no/such/program: No such file"),
        (lambda _: "no-such-program-anywhere", "ENOENT", "no-such-program-anywhere: No such file"),
        (lambda _: "/etc", "EACCES", "/etc: is a directory"),
        (lambda d: _made(d, "plain", b"#!/bin/sh\n", 0o644), "EACCES", "not executable"),
        (lambda d: _made(d, "bare", b"echo hi\n", 0o755), "ENOEXEC", "no #! line"),
        (lambda d: _made(d, "lost", b"#!/no/such/interpreter\n", 0o755), "ENOENT", "interpreter"),
        (lambda _: "/etc/passwd/program", "ENOTDIR", "Not a directory"),
    ],
    ids=["missing", "not on the path", "directory", "not executable", "no shebang", "no interpreter", "below a file"],
)
@pytest.mark.guarantee("G16")
@pytest.mark.trial("B66")
async def test_a_command_that_cannot_be_executed_is_told_from_a_program_that_failed(
    room, short_dir, program, code, words
):
    shim = await room.prepare(program(short_dir))
    shim.go(float("inf"))
    final = await room.ended(shim)
    assert (final.outcome, final.exit_code, final.reason_code) == (Outcome.LAUNCH_FAILED, None, "launch_failed")
    assert code in final.reason
    assert words in final.reason
    assert shim.started() is None


async def test_a_command_that_is_too_long_for_the_system_is_a_launch_failure(room):
    final = await room.final_of("true", "x" * (1 << 18))
    assert (final.outcome, final.exit_code) == (Outcome.LAUNCH_FAILED, None)
    assert "E2BIG" in final.reason


@pytest.mark.parametrize(
    ("cwd", "code"),
    [
        ("/no/such/directory", "cwd_missing"),
        ("/etc/passwd", "cwd_not_directory"),
        ("/etc/passwd/x", "cwd_not_directory"),
    ],
)
async def test_a_directory_that_is_not_there_is_a_refusal_and_nothing_is_executed(room, cwd, code):
    shim = await room.run("true", cwd=cwd)
    final = await room.ended(shim)
    assert (final.outcome, final.reason_code, final.exit_code) == (Outcome.REFUSED, code, None)
    assert cwd in final.reason
    assert not (shim.directory / records.START).exists()


async def test_a_directory_that_cannot_be_entered_is_a_refusal(room, short_dir):
    """A mode keeps out everybody but root; a link to itself keeps out root too."""
    closed = short_dir / "closed"
    if os.getuid() == 0:
        closed.symlink_to(closed)
    else:
        closed.mkdir(mode=0o000)
    final = await room.final_of("true", cwd=str(closed))
    assert (final.outcome, final.reason_code) == (Outcome.REFUSED, "cwd_forbidden")


@pytest.mark.trial("B59")
async def test_a_job_finds_its_own_world_and_nothing_of_ours(closed_room, short_dir):
    closed_room.open(environ={"SECRET": "of the worker"})
    env = {"PATH": "/usr/bin:/bin", "GREETING": "grüß dich \U0001f44b", "EMPTY": ""}
    shim = await closed_room.run(
        sys.executable, "-I", "-S", "-c", SHOW, "a b", "", "'*'", "ü", env=env, cwd=str(short_dir), umask=0o027
    )
    assert (await closed_room.ended(shim)).exit_code == 0
    seen = json.loads(shim.out.read_bytes())
    assert seen["env"].pop("JOBD_JOB_COOKIE") == shim.id
    seen["env"].pop("LC_CTYPE", None)  # Python's own doing
    assert seen["env"] == env
    assert seen["argv"] == ["a b", "", "'*'", "ü"]
    assert (seen["cwd"], seen["umask"]) == (str(short_dir), 0o027)
    assert (seen["fds"], seen["stdin"]) == ([0, 1, 2], "/dev/null")
    assert seen["leader"]
    # SIGPIPE and SIGXFSZ are Python's own doing; 32 and 33 belong to the C library, and nobody can set them.
    others = ~sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ, 32, 33))
    assert int(seen["ignored"], 16) & others == 0
    assert int(seen["blocked"], 16) == 0
    assert seen["oom"] >= 300


async def test_a_broken_pipe_ends_a_job_as_in_a_shell(room):
    """SIGPIPE is ignored in Python processes; a job must not inherit that, or `yes | head` never ends."""
    shim = await room.bash("yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert (await room.ended(shim)).exit_code == 0
    assert shim.out.read_bytes() == b"y\n141\n"


async def test_the_files_of_an_assignment_are_for_its_user_alone(room):
    shim = await room.run("echo", "hi")
    await room.ended(shim)
    assert shim.directory.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in shim.directory.iterdir() if path.stat().st_mode & 0o077} == set()


async def test_a_shim_shows_in_ps_as_a_shim_and_carries_no_environment(closed_room):
    closed_room.open()
    shim = await closed_room.run("sleep", "60")
    record = None
    while record is None:
        record = records.read_start(str(shim.directory))
    pid = record["shim"]["pid"]
    assert Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0jobd\0shim\0")
    assert Path(f"/proc/{pid}/comm").read_text() == "jobd-shim\n"
    assert b"PATH" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}
