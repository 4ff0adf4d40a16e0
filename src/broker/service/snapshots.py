"""The code of jobs: put once per content, named by jobs, fetched by workers, gone when no job needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import ValidationError

from broker.core import arrays
from broker.service.context import Broker, Caller
from broker.service.rows import unknown_job
from broker.snapshots import archive, git
from broker.snapshots.files import Upload
from broker.store.contract import Tx
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.snapshots import GitState, Snapshot, SnapshotKept

UNNAMED_S = 86_400
"""So long what nobody names is kept: a submit may be about to."""


async def put(broker: Broker, sha256: str, pieces: AsyncIterator[bytes]) -> SnapshotKept:
    """Keep what comes, if it is what its name says. Whatever interrupts it leaves nothing."""
    upload = await anyio.to_thread.run_sync(broker.snapshots.begin)
    try:
        async for piece in pieces:
            await anyio.to_thread.run_sync(upload.write, piece)
        if upload.sha256 != sha256:
            raise Refused(
                ProblemCode.BAD_CHECKSUM,
                f"what came has the sha256 {upload.sha256}, not {sha256}; nothing is kept",
                field="sha256",
                retryable=True,
            )
        return await _keep(broker, upload)
    finally:
        upload.discard()


async def _keep(broker: Broker, upload: Upload) -> SnapshotKept:
    async with broker.snapshots.changing:
        size = await anyio.to_thread.run_sync(upload.keep)
        sha256 = upload.sha256
        await broker.store.run(lambda tx: tx.run("keep_snapshot", sha256=sha256, size=size, now=tx.now_ms))
    return SnapshotKept(sha256=sha256, size=size)


async def known(broker: Broker, sha256: str, *, field: str = "sha256") -> SnapshotKept:
    """It is there, and stays for a day at least. Refused: `unknown_snapshot`."""
    if not await anyio.to_thread.run_sync(broker.snapshots.path(sha256).exists):  # as after a restore
        raise unknown(sha256, field)
    row = await broker.store.run(lambda tx: tx.one("use_snapshot", sha256=sha256, now=tx.now_ms))
    if row is None:
        raise unknown(sha256, field)
    return SnapshotKept(sha256=sha256, size=row["size"])


async def file_of(broker: Broker, sha256: str) -> Path:
    await known(broker, sha256)
    return broker.snapshots.path(sha256)


def unknown(sha256: str, field: str) -> Refused:
    return Refused(
        ProblemCode.UNKNOWN_SNAPSHOT,
        f"there is no snapshot {sha256}",
        field=field,
        hint="put it first, or submit with snapshot=copy where the directory is",
    )


async def taken(broker: Broker, caller: Caller, spec: JobSpec) -> JobSpec:
    """`spec` with the name of what is kept: what the submitter put, or what is taken here, of the broker's own user."""
    if spec.snapshot is None:
        return spec
    check(caller, spec)
    kind, sha256 = parted(spec.snapshot)
    if sha256 is None:
        sha256 = await _take(broker, kind, spec.cwd or "")
    else:
        await known(broker, sha256, field="snapshot")
        if kind == "git" and await _git(broker, sha256) is None:
            raise Refused(
                ProblemCode.INVALID_SPEC, f"snapshot {sha256} is not what git says of a directory", field="snapshot"
            )
    return spec.model_copy(update={"snapshot": f"{kind}:{sha256}"})


def check(caller: Caller, spec: JobSpec) -> None:
    """Refused: nobody could take it. The directory of a caller on another machine, or of another user, is not here."""
    if spec.snapshot is None or parted(spec.snapshot)[1] is not None:
        return
    if caller.token is not None:
        why, hint = "the broker can't see the directory of a caller with a token", "submit it with job, which takes it"
    elif spec.cwd is None:
        why, hint = "it is of cwd, and none is given", "give cwd"
    elif not Path(spec.cwd).expanduser().is_absolute():
        why, hint = f"cwd {spec.cwd} is relative", "give an absolute cwd"
    elif arrays.is_array(spec) and "{" in spec.cwd:
        why, hint = "members have different directories", "give one cwd, and cd in the command"
    else:
        return
    raise Refused(ProblemCode.INVALID_SPEC, f"snapshot: {why}", field="snapshot", hint=hint)


def parted(word: str) -> tuple[Literal["git", "copy"], str | None]:
    kind, _, sha256 = word.partition(":")
    return "git" if kind == "git" else "copy", sha256 or None


async def _take(broker: Broker, kind: Literal["git", "copy"], cwd: str) -> str:
    """Of a directory of this machine, as the broker's user sees it; its sha256."""

    def take() -> Upload:
        directory = Path(cwd).expanduser()
        upload = broker.snapshots.begin()
        try:
            if kind == "git":
                upload.write(git.document(directory))
            else:
                archive.write(directory, upload, broker.settings.snapshot_bytes)
        except BaseException:
            upload.discard()
            raise
        return upload

    upload = await anyio.to_thread.run_sync(take)
    try:
        return (await _keep(broker, upload)).sha256
    finally:
        upload.discard()


async def of_job(broker: Broker, job: int) -> Snapshot:
    """What is kept of a job's code, the diff too. Refused: `unknown_job`; it has none."""

    def fn(tx: Tx) -> str | None:
        row = tx.one("snapshot_of_job", job=job)
        if row is None:
            raise unknown_job(tx, job)
        return None if row["snapshot"] is None else str(row["snapshot"])

    word = await broker.store.read(fn)
    if word is None:
        raise Refused(ProblemCode.UNKNOWN_SNAPSHOT, f"job {job} was submitted without a snapshot", field="job")
    return await described(broker, word)


async def described(broker: Broker, word: str) -> Snapshot:
    kind, sha256 = parted(word)
    assert sha256 is not None, "what is kept names its content"
    row = await broker.store.read(lambda tx: tx.one("snapshot", sha256=sha256))
    size = row["size"] if row is not None else None
    return Snapshot(kind=kind, sha256=sha256, size=size, git=await _git(broker, sha256) if kind == "git" else None)


async def _git(broker: Broker, sha256: str) -> GitState | None:
    try:
        text = await anyio.to_thread.run_sync(broker.snapshots.path(sha256).read_bytes)
        return GitState.model_validate_json(text)
    except (OSError, ValidationError):
        return None


async def prune(broker: Broker) -> None:
    """Remove what no job needs, and what a crash has left without a row."""
    now_ms, kept_s = broker.clock.wall_ms(), broker.settings.keep_snapshots_s
    unnamed = now_ms - UNNAMED_S * 1000
    ended = now_ms - int(kept_s * 1000) if kept_s else -(1 << 62)

    def fn(tx: Tx) -> list[str]:
        return [row["sha256"] for row in tx.all("drop_snapshots", unnamed=unnamed, ended=ended)]

    files = broker.snapshots
    async with files.changing:
        gone = await broker.store.run(fn)
        old = await anyio.to_thread.run_sync(files.older_than, unnamed / 1000)
        kept = await broker.store.read(lambda tx: [name for name in old if tx.one("snapshot", sha256=name)])
        for name in {*gone, *old} - set(kept):
            await anyio.to_thread.run_sync(files.remove, name)
