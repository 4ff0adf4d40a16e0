"""Backup and restore by the real commands: while jobs run, over databases that exist or are damaged, and interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from broker import backup
from broker.app import open_broker, run_broker
from broker.client import BrokerClient
from broker.state import DATABASE_NAME, RESTORED_NAME, state_lock
from broker.store.contract import StoreUnusable
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec, Submission
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings
from broker.wire.states import JobState, Scope
from broker.wire.workers import VerdictWord
from support.fleet import Fleet, ended, output_of, submit
from support.folding import differences_in
from support.installation import JOB, Ended
from support.processes import processes_of
from support.scripted_worker import ScriptedWorker
from support.waiting import eventually

QUICK = {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.3", "poll_s": "2"}


@pytest.fixture
async def quick(fleet: Fleet) -> Fleet:
    fleet.settings |= QUICK
    await fleet.start_broker()
    return fleet


def job(fleet: Fleet, *words: str, umask: int = 0o022) -> Ended:
    """`job WORDS` on the fleet's broker's state directory."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(fleet.directory), "JOBD_STATE_DIR": str(fleet.state)}
    done = subprocess.run(
        [str(JOB), *words],
        env=environ,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
        umask=umask,
        timeout=90,
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode())


def good(fleet: Fleet, *words: str) -> dict[str, object]:
    done = job(fleet, *words, "--json")
    assert done.code == 0, done.err
    return done.json()


def until(path: Path, then: str) -> str:
    return f"echo up; while [ ! -e {path} ]; do sleep 0.05; done; {then}"


async def state_of(client: BrokerClient, id_: int) -> JobState:
    return (await client.job_get(id_)).state


# ---- backup


@pytest.mark.guarantee("G28")
async def test_a_backup_in_a_storm_is_whole_private_and_has_all_that_was_accepted_before(quick: Fleet) -> None:
    async with quick.client() as client:
        await quick.start_worker()
        before = [await submit(client, "true") for _ in range(20)]
        over = asyncio.Event()

        async def storm() -> int:
            count = 0
            while not over.is_set():
                await submit(client, f"echo {count}", env={"MARK": "x" * 2000})
                count += 1
            return count

        storms = [asyncio.create_task(storm()) for _ in range(4)]
        for n in range(3):
            file = quick.directory / f"backup-{n}"
            told = await asyncio.to_thread(good, quick, "backup", str(file))

            assert told["file"] == str(file) and told["bytes"] == file.stat().st_size
            assert told["logs_included"] is False
            assert file.stat().st_mode & 0o777 == 0o600
            with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as copied:
                assert copied.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                ids = {row[0] for row in copied.execute("SELECT id FROM jobs")}
                assert len(ids) == told["jobs"] and ids >= set(before)
            assert differences_in(file) == []
        over.set()
        assert sum(await asyncio.gather(*storms)) > 20
    assert {path.name for path in quick.directory.glob("backup-*")} == {"backup-0", "backup-1", "backup-2"}


@pytest.mark.guarantee("G28")
async def test_a_backup_replaces_nothing_follows_no_link_and_needs_a_database(quick: Fleet, tmp_path: Path) -> None:
    file, link = tmp_path / "backup", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "planted.part").symlink_to(tmp_path / "elsewhere")

    for target in (file, link):
        done = job(quick, "backup", str(target))
        assert (done.code, "exists already" in done.err) == (1, True)
    assert job(quick, "backup", str(tmp_path / "planted")).code == 0
    assert job(quick, "backup", str(tmp_path / "no" / "such" / "place")).code == 1
    assert file.read_text() == "mine" and not (tmp_path / "elsewhere").exists()
    empty = Fleet(tmp_path / "empty")
    empty.directory.mkdir()
    assert "there is no database" in job(empty, "backup", str(tmp_path / "b")).err


# ---- restore


@pytest.mark.guarantee("G28")
async def test_a_restore_takes_all_back_to_the_backup_and_no_id_is_given_twice(quick: Fleet) -> None:
    """The worker never restarts: what it has from before the backup goes on, what it has from after it is stopped."""
    go, file = quick.directory / "go", str(quick.directory / "backup")
    async with quick.client() as client:
        await quick.start_worker(slots=3)
        old = await submit(client, "echo old")
        await ended(client, old)
        await output_of(client, old)
        runs = await submit(client, until(go, "echo done; exit 6"))
        await eventually(lambda: _is(client, runs, JobState.RUNNING))
        waits = await submit(client, "echo waited", needs=["later"])
        good(quick, "backup", file)
        after = [await submit(client, f"true; exec sleep 60.{n}") for n in range(2)]
        for id_ in after:
            await eventually(lambda id_=id_: _is(client, id_, JobState.RUNNING))
        last = (await client.job_submit(JobSpec(command="true", count=7, needs=["nowhere"]))).array + 6
        cursor = (await client.job_events(limit=500)).next_cursor
        assert cursor > 0

        refused = job(quick, "restore", file, "--force")
        assert (refused.code, "a broker is running" in refused.err) == (1, True)
        quick.kill_broker()
        refused = job(quick, "restore", file)
        assert (refused.code, "--force" in refused.err) == (1, True)
        told = good(quick, "restore", file, "--force")

        assert told["next_job"] == last + 1
        replaced = Path(str(told["replaced"]))
        assert (replaced / DATABASE_NAME).exists() and replaced.stat().st_mode & 0o777 == 0o700
        await quick.start_broker()
        await eventually(lambda: _online(client), within_s=30)
        new = await submit(client, "echo new", cpus=0.1)
        assert new == last + 1
        assert (await ended(client, new)).state is JobState.COMPLETED
        assert [await state_of(client, id_) for id_ in (old, runs, waits)] == ["completed", "running", "queued"]
        assert await output_of(client, old) == b"old\n"
        go.touch()
        assert (await ended(client, runs)).exit_code == 6
        assert (await client.job_get(runs)).attempt == 1
        assert await output_of(client, runs) == b"up\ndone\n"
        await eventually(lambda: not [p for p in processes_of(quick.directory / "w1") if "sleep 60." in p.command])
        assert {job_.id for job_ in (await client.job_list(limit=100)).jobs} == {old, runs, waits, new}
        page = await client.job_events(since=cursor, limit=500)
        assert all(event.seq > cursor for event in page.events)
        assert EventType.RESTORED in {event.type for event in page.events}
        assert (await client.job_events(since=cursor - 5)).pruned_to is not None
    assert differences_in(quick.state / DATABASE_NAME) == []


async def _is(client: BrokerClient, id_: int, state: JobState) -> bool:
    return await state_of(client, id_) is state


async def _online(client: BrokerClient) -> bool:
    return any(worker.state == "online" and worker.last_seen_s < 2 for worker in (await client.worker_list()).workers)


@pytest.mark.guarantee("G28")
async def test_a_delivery_that_is_forgotten_leaves_no_bytes_to_the_next_of_its_number(short_dir: Path) -> None:
    """Queued at the time of the backup, delivered after it: 1.1 is given again, and its log begins at its beginning."""
    state, file = short_dir / "state", short_dir / "backup"
    settings, url = BrokerSettings(sweep_s=3600), f"unix://{state}/broker.sock"
    async with run_broker(settings, state, {}), BrokerClient(url) as client:
        await client.job_submit(JobSpec(command="true"))
        backup.back_up(state, file)
        worker = ScriptedWorker(client)
        await worker.register()
        old = await worker.running()
        assert await worker.write(old, b"what the first one wrote\n") == 25

    told = backup.restore(state, file, force=True)

    assert (Path(str(told.replaced)) / "logs" / "0" / "1" / "1.log").read_bytes() == b"what the first one wrote\n"
    async with run_broker(settings, state, {}), BrokerClient(url) as client:
        worker.client = client
        with pytest.raises(Refused) as refused:
            await worker.poll()  # the broker has forgotten the worker, too
        assert refused.value.code is ProblemCode.UNKNOWN_WORKER
        await worker.register()
        answer = await worker.poll()
        assert [(v.attempt, v.verdict) for v in answer.verdicts] == [(1, VerdictWord.STALE_ASSIGNMENT)]
        [new] = answer.deliveries
        assert (new.job, new.attempt) == (old.job, old.attempt) and new.token != old.token
        with pytest.raises(Refused) as refused:
            await worker.write(old, b"more\n", offset=25)
        assert refused.value.code is ProblemCode.STALE_ASSIGNMENT
        await worker.ack(new)
        await worker.start(new)
        assert await worker.write(new, b"second\n") == 7
        await worker.finish(new, final_size=7)
        assert b"".join([part async for part in client.job_output(new.job)]) == b"second\n"


@pytest.mark.guarantee("G28")
async def test_over_an_installation_that_was_begun_anew_ids_go_on_above_all_that_may_have_been_given(
    short_dir: Path,
) -> None:
    """The machine is gone, a broker was started on a new one, and then somebody remembers the backup."""
    lost, new, file = short_dir / "lost", short_dir / "new", short_dir / "backup"
    await _submitted(lost)
    backup.back_up(lost, file)
    given_since = await _submitted(lost)
    await _submitted(new)

    backup.restore(new, file, force=True)

    assert await _submitted(new) > given_since


async def _submitted(state: Path) -> int:
    async with run_broker(BrokerSettings(), state, {}), BrokerClient(f"unix://{state}/broker.sock") as client:
        return (await client.job_submit(JobSpec(command="true"))).id


@pytest.mark.guarantee("G28")
async def test_a_token_that_was_revoked_after_the_backup_stays_revoked(quick: Fleet) -> None:
    file = str(quick.directory / "backup")
    async with quick.client() as client:
        await client.token_create("t", [Scope.READ])
        good(quick, "backup", file)
        await client.token_revoke("t")
        quick.kill_broker()
        good(quick, "restore", file, "--force")
        await quick.start_broker()
        [token] = (await client.token_list()).tokens
        assert token.revoked_at is not None


@pytest.mark.guarantee("G28")
async def test_a_damaged_database_is_refused_once_and_a_backup_goes_in_its_place(quick: Fleet) -> None:
    """Nobody can say which ids were given since: they go on far above."""
    file, database = str(quick.directory / "backup"), quick.state / DATABASE_NAME
    async with quick.client() as client:
        first = await submit(client, "true")
        good(quick, "backup", file)
        quick.kill_broker()
        with database.open("r+b") as damaged:
            damaged.write(os.urandom(8192))
        for suffix in ("-wal", "-shm"):
            database.with_name(database.name + suffix).unlink(missing_ok=True)

        done = job(quick, "broker")
        assert done.code == 74
        assert "is damaged" in done.err and "job restore FILE --force" in done.err and "Traceback" not in done.err
        up = job(quick, "up")
        assert up.code != 0 and "is damaged" in up.err
        assert job(quick, "backup", str(quick.directory / "b2")).code == 1
        told = good(quick, "restore", file, "--force")

        assert told["next_job"] == first + 1_000_000 + 1
        assert (Path(str(told["replaced"])) / DATABASE_NAME).exists()
        await quick.start_broker()
        assert await state_of(client, first) is JobState.QUEUED
        assert await submit(client, "true") == told["next_job"]


async def test_what_is_no_backup_is_refused_and_nothing_is_changed(quick: Fleet, tmp_path: Path) -> None:
    database = quick.state / DATABASE_NAME
    quick.kill_broker()
    before = database.read_bytes()
    text, theirs, newer, cut = (tmp_path / name for name in ("text", "theirs", "newer", "cut"))
    text.write_text("no database at all\n" * 500)
    with contextlib.closing(sqlite3.connect(theirs)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    good(quick, "backup", str(newer))
    with contextlib.closing(sqlite3.connect(newer)) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
        connection.commit()
    cut.write_bytes(before[: len(before) // 2])

    for file, said in ((text, "not a database"), (theirs, "no database of jobd"), (newer, "schema 999"), (cut, "")):
        done = job(quick, "restore", str(file), "--force")
        assert done.code == 1 and said in done.err and "Traceback" not in done.err, done.err
    assert job(quick, "restore", str(tmp_path / "absent"), "--force").code == 1
    assert database.read_bytes() == before
    assert not (quick.state / "replaced").exists() and not list(quick.state.glob("*restored*"))


class Cut(Exception):
    """The machine stops here."""


STEPS = [
    "made",
    "marked",
    f"moved {DATABASE_NAME}",
    f"moved {DATABASE_NAME}-wal",
    f"moved {DATABASE_NAME}-shm",
    "output moved",
    "done",
]


def cut_at(wanted: str) -> Callable[[str], None]:
    def at_step(step: str) -> None:
        if step == wanted:
            raise Cut(step)

    return at_step


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.guarantee("G28")
async def test_an_interrupted_restore_never_leaves_an_empty_database_and_is_finished_by_the_next(
    short_dir: Path, step: str
) -> None:
    """A broker that starts finds the old database whole, or the new one, or refuses; and no id is given twice."""
    state, file = short_dir / "state", short_dir / "backup"
    settings = BrokerSettings(sweep_s=3600)
    last = 0
    with state_lock(state):
        async with open_broker(settings, state) as broker:
            await _insert(broker)
            backup.back_up(state, file)
            last = await _insert(broker)

    with pytest.raises(Cut):
        backup.restore(state, file, force=True, at_step=cut_at(step))
    seen = await _started(settings, state)
    told = None if step == "done" else backup.restore(state, file, force=True)

    assert seen == {"made": 2, "done": 1}.get(step)
    assert await _started(settings, state) == 1
    with state_lock(state):
        async with open_broker(settings, state) as broker:
            assert await _insert(broker) == last + 1
    assert told is None or told.next_job == last + 1
    assert not list(state.glob("*restored*"))
    kept = sorted(state.glob(f"replaced/*/{DATABASE_NAME}"))
    assert len(kept) == 1


async def _insert(broker) -> int:
    from broker.service import submit as service
    from broker.service.context import Caller

    said = await service.submit(broker, Caller("me", frozenset({Scope.OPERATOR})), Submission(command="true"))
    return said.id


async def _started(settings: BrokerSettings, state: Path) -> int | None:
    """How many jobs a broker finds; None if it refuses to start."""
    with state_lock(state):
        if (state / RESTORED_NAME).exists():
            with pytest.raises(StoreUnusable, match="restore was interrupted"):
                await open_broker(settings, state).__aenter__()
            return None
        async with open_broker(settings, state) as broker:
            return sum(row["n"] for row in await broker.store.read(lambda tx: tx.all("counts", project=None)))
