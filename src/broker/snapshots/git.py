"""Questions to git. Its settings come from the directory's owner, and programs that these name are not started."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from broker.wire.problems import ProblemCode, Refused
from broker.wire.snapshots import GitState

MOST_DIFF_BYTES = 256 << 10
MOST_UNTRACKED = 200
LONGEST_S = 60
QUIET = (
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=false",
)


def document(directory: Path) -> bytes:
    """What git says of `directory`, as the text that is kept. Refused: it is in no repository."""
    state = state_of(directory)
    return json.dumps(state.model_dump(exclude_none=True), sort_keys=True, separators=(",", ":")).encode()


def state_of(directory: Path) -> GitState:
    """Commit, branch, remote, and all that differs from the commit."""
    if _line(directory, "rev-parse", "--is-inside-work-tree") != "true":
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"snapshot: {directory} is in no git repository",
            field="snapshot",
            hint="snapshot=copy keeps a copy of any directory",
        )
    commit = _line(directory, "rev-parse", "--verify", "--quiet", "HEAD")
    against = ["HEAD"] if commit else ["--cached"]
    diff = _output(directory, "diff", *against, "--no-ext-diff", "--no-textconv", "--no-color", most=MOST_DIFF_BYTES)
    names = listed(directory, "--others")
    remote = _line(directory, "remote", "get-url", "origin")
    return GitState(
        commit=commit,
        branch=_line(directory, "symbolic-ref", "--short", "--quiet", "HEAD"),
        remote=without_credentials(remote) if remote else None,
        dirty=bool(diff or names),
        diff=diff[:MOST_DIFF_BYTES].decode(errors="replace") or None,
        diff_cut=len(diff) > MOST_DIFF_BYTES or None,
        untracked=[os.fsencode(name).decode(errors="replace") for name in names[:MOST_UNTRACKED]] or None,
        untracked_more=max(0, len(names) - MOST_UNTRACKED) or None,
    )


def listed(directory: Path, *which: str, index: Path | None = None) -> list[str]:
    """Names below `directory`, sorted, without what .gitignore leaves out. `index`: of a repository made for the
    question, where there is none."""
    around = (f"--git-dir={index}", f"--work-tree={directory}") if index is not None else ()
    said = _output(directory, "ls-files", "-z", "--exclude-standard", *which, before=around)
    return sorted({os.fsdecode(name) for name in said.split(b"\0") if name}, key=os.fsencode)


def has_repository(directory: Path) -> bool:
    return _line(directory, "rev-parse", "--is-inside-work-tree") == "true"


def make_repository(directory: Path) -> None:
    _output(directory, "init", "--quiet", "--bare", "--template=", str(directory))


def without_credentials(remote: str) -> str:
    """An address without user, password and query, where such may stand; git@host:path stays."""
    if "://" not in remote:
        return remote
    parts = urlsplit(remote)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _line(directory: Path, *words: str) -> str | None:
    """One line, or None where git has no answer."""
    done = _run(directory, (), words)
    return done.stdout.decode(errors="replace").strip() or None if done.returncode == 0 else None


def _output(directory: Path, *words: str, before: tuple[str, ...] = (), most: int | None = None) -> bytes:
    done = _run(directory, before, words, most)
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise _refused(directory, why[-1] if why else f"git ended with {done.returncode}")
    return done.stdout


def _run(
    directory: Path, before: tuple[str, ...], words: tuple[str, ...], most: int | None = None
) -> subprocess.CompletedProcess[bytes]:
    """`most`: so many bytes are wanted; of more, one beyond them is returned."""
    command = ["git", *QUIET, *before, *words]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        if most is None:
            return subprocess.run(
                command, cwd=directory, env=environ, capture_output=True, timeout=LONGEST_S, check=False
            )
        with subprocess.Popen(
            command, cwd=directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None, "it was asked for"
            said = process.stdout.read(most + 1)
            if len(said) > most:
                process.kill()
                return subprocess.CompletedProcess(command, 0, said, b"")
            return subprocess.CompletedProcess(command, process.wait(LONGEST_S), said, b"")
    except FileNotFoundError:
        raise _refused(directory, "git is not installed there") from None
    except subprocess.TimeoutExpired:
        raise _refused(directory, f"git did not answer within {LONGEST_S} s") from None
    except OSError as error:
        raise _refused(directory, error.strerror or str(error)) from None


def _refused(directory: Path, why: str) -> Refused:
    return Refused(
        ProblemCode.INVALID_SPEC,
        f"snapshot: {directory} can't be looked at: {why}",
        field="snapshot",
        hint="it is taken where the submit is made: by job there, or by a broker on the same machine",
    )
