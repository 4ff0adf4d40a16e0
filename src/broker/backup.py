"""`python -I -m broker.backup jobd backup FILE` and `… jobd restore FILE`: what `job backup` and `job restore` become.

Exit codes: 0 done, 1 not done and nothing changed, 2 a setting is wrong.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from broker import places
from broker.state import (
    ARTIFACTS_NAME,
    DATABASE_FILES,
    DATABASE_NAME,
    LOGS_NAME,
    REPLACED_NAME,
    RESTORED_NAME,
    AlreadyRunning,
    state_lock,
)
from broker.store import backup
from broker.store.backup import NoBackup
from broker.wire.settings import BrokerSettings, ConfigurationError, load

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class BackedUp:
    file: str
    bytes: int
    jobs: int
    installation: str
    logs_included: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """`next_job`: the first id that will be given. `replaced`: where lies what was there before."""

    jobs: int
    installation: str
    backed_up_at: str | None
    next_job: int
    replaced: str | None


def back_up(state: Path, file: Path) -> BackedUp:
    """Copy the database, while the broker works or without one, to `file`, which must not exist. Raises NoBackup."""
    database = state / DATABASE_NAME
    if not database.exists():
        raise NoBackup(f"there is no database at {database}")
    if file.exists() or file.is_symlink():
        raise NoBackup(f"{file} exists already; a backup replaces nothing")
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.unlink(missing_ok=True)
    try:
        held = backup.copy(database, unfinished, now_ms=time.time_ns() // 1_000_000)
        _put(unfinished, file)
    except (OSError, sqlite3.Error) as error:
        raise NoBackup(f"{file} can't be written: {error}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return BackedUp(str(file), file.stat().st_size, held.jobs, held.installation)


def _put(unfinished: Path, file: Path) -> None:
    """Under its name only once it is whole; what was put there meanwhile is not replaced, where the disk has links."""
    try:
        os.link(unfinished, file)
    except FileExistsError:
        raise
    except OSError:
        unfinished.rename(file)
    backup.sync(file.parent)


def _nothing_between(step: str) -> None:
    """For tests: what happens after a step."""


def restore(state: Path, file: Path, *, force: bool, at_step: Callable[[str], None] = _nothing_between) -> Restored:
    """Put the backup `file` in the database's place. What was there is kept in `replaced/`, with output that the backup
    knows nothing of. A restore that was interrupted is finished, or undone, by another one; until then no broker starts.

    Raises NoBackup, with nothing changed: a broker runs; there is a database, without `force`; `file` is none of ours.
    """
    try:
        with state_lock(state):
            return _restore(state, file, force=force, at_step=at_step)
    except AlreadyRunning:
        raise NoBackup(f"a broker is running on {state}: job down --keep-jobs stops it, and leaves its jobs") from None


def _restore(state: Path, file: Path, *, force: bool, at_step: Callable[[str], None]) -> Restored:
    database, restored, made = state / DATABASE_NAME, state / RESTORED_NAME, state / f"{RESTORED_NAME}.part"
    if not file.is_file():
        raise NoBackup(f"there is no file {file}")
    if database.exists() and not force:
        raise NoBackup(f"{database} exists: --force puts {file} in its place, and keeps it in {state / REPLACED_NAME}")
    made.unlink(missing_ok=True)
    try:
        held = backup.copy(file, made)
        before = _given(state, held.installation)
        next_job = backup.go_on(made, before, _last_job(state / LOGS_NAME), time.time_ns() // 1_000_000)
        known = backup.deliveries(made)
    except NoBackup as refusal:
        made.unlink(missing_ok=True)
        raise NoBackup(f"{file} can't be restored: {refusal}") from None
    except (OSError, sqlite3.Error) as error:
        made.unlink(missing_ok=True)
        raise NoBackup(f"{file} can't be restored: {error}") from None
    at_step("made")
    made.replace(restored)  # from here on no broker starts, until it is in its place
    backup.sync(state)
    at_step("marked")
    aside = _Aside(state)
    for name in DATABASE_FILES:
        aside.move(Path(name))
        at_step(f"moved {name}")
    for output in _unknown_output(state, known):
        aside.move(output)
    at_step("output moved")
    restored.rename(database)
    backup.sync(state)
    at_step("done")
    return Restored(held.jobs, held.installation, _shown(held.backed_up_at), next_job, aside.place)


def _given(state: Path, installation: str) -> backup.Given | None:
    """What this installation has given out so far; None if nobody can say: a new one that was started in its place knows
    nothing of it. An interrupted restore has found it out, and may have moved what it knew it from."""
    for database in (state / RESTORED_NAME, state / DATABASE_NAME):
        if database.exists():
            given = backup.given_by(database)
            return given if given is not None and given.installation == installation else None
    return None


class _Aside:
    """`replaced/<time>/`, made when the first thing is put there."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._place: Path | None = None

    @property
    def place(self) -> str | None:
        return str(self._place) if self._place is not None else None

    def move(self, what: Path) -> None:
        """`what`: a path within the state directory. What is not there is not moved."""
        if not (self._state / what).exists():
            return
        if self._place is None:
            self._place = self._new()
        target = self._place / what
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._state / what).rename(target)

    def _new(self) -> Path:
        root = self._state / REPLACED_NAME
        root.mkdir(exist_ok=True, mode=0o700)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        for number in range(1000):
            place = root / (stamp if number == 0 else f"{stamp}-{number}")
            try:
                place.mkdir(mode=0o700)
            except FileExistsError:
                continue
            return place
        raise NoBackup(f"{root} is full of replaced databases")


def _unknown_output(state: Path, known: set[tuple[int, int]]) -> list[Path]:
    """Files of output, and artifacts, that no assignment of the backup has: a number that is given again must not meet them."""
    return [
        file.relative_to(state)
        for kept in (LOGS_NAME, ARTIFACTS_NAME)
        for file in sorted((state / kept).glob("*/*/*.*"))
        if _delivery(file) not in known and _delivery(file) is not None
    ]


def _delivery(file: Path) -> tuple[int, int] | None:
    job, attempt = file.parent.name, file.stem
    return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else None


def _last_job(logs: Path) -> int:
    """The largest id that has a directory of output."""
    return max((int(place.name) for place in logs.glob("*/*") if place.name.isdecimal()), default=0)


def _shown(ms: int | None) -> str | None:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms is not None else None


def main(arguments: list[str]) -> int:
    """`jobd backup|restore FILE [--force] [--json]`"""
    words = [word for word in arguments if word not in ("--force", "--json")]
    if len(words) != 3 or words[0] != "jobd" or words[1] not in ("backup", "restore"):
        sys.stderr.write("usage: python -I -m broker.backup jobd backup|restore FILE [--force] [--json]\n")
        return EXIT_USAGE
    os.umask(0o077)
    try:
        text = places.config_text(os.environ)
        settings = load(BrokerSettings, os.environ, text, str(places.config_file(os.environ)))
        state, file = places.state_dir(settings.state_dir, os.environ), Path(words[2]).absolute()
        if words[1] == "backup":
            _say_backup(back_up(state, file), as_json="--json" in arguments)
        else:
            _say_restore(restore(state, file, force="--force" in arguments), as_json="--json" in arguments)
    except ConfigurationError as error:
        sys.stderr.write(f"job: {error}\n")
        return EXIT_USAGE
    except (NoBackup, OSError) as error:
        sys.stderr.write(f"job: {error}\n")
        return EXIT_FAILED
    return EXIT_OK


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _say_backup(done: BackedUp, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(asdict(done)))
        return
    say(f"{done.file}: {done.jobs} jobs, {done.bytes:,} bytes")
    say(
        "It has all but output and artifacts: copy logs/ and artifacts/ of the state directory beside it, if they are wanted."
    )


def _say_restore(done: Restored, *, as_json: bool) -> None:
    if as_json:
        say(json.dumps({key: value for key, value in asdict(done).items() if value is not None}))
        return
    say(
        f"restored: {done.jobs} jobs, as of {done.backed_up_at or 'an unknown time'}; new ids begin with {done.next_job}"
    )
    if done.replaced is not None:
        say(f"What was there is kept in {done.replaced}")
    say(
        "What happened after the backup is forgotten: jobs that have ended since may run again. job up starts the broker."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
