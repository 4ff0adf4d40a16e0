"""The code of a job: put once, checked, kept while a job needs it, and what git says of a directory."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from broker.service import retention
from broker.wire.jobs import CancelRequest, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import Outcome

DAY_S = 86_400


def git(directory: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory with a file that is ignored and one that is not."""
    directory = tmp_path / "code"
    directory.mkdir()
    (directory / "main.py").write_text("print(1)\n")
    (directory / ".gitignore").write_text("data/\n")
    (directory / "data").mkdir()
    (directory / "data" / "big").write_text("x" * 1000)
    return directory


@pytest.fixture
def repository(code: Path) -> Path:
    git(code, "init", "-q", "-b", "trunk")
    git(code, "add", "-A")
    git(code, "commit", "-q", "-m", "first")
    git(code, "remote", "add", "origin", "https://me:secret@example.org/code.git?token=1")
    return code


async def refusal(bench, **fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await bench.submit(**fields)
    return caught.value


@pytest.mark.guarantee("G48")
async def test_git_records_commit_branch_diff_and_untracked_names_without_credentials(bench, repository: Path) -> None:
    (repository / "main.py").write_text("print(2)\n")
    (repository / "new.py").touch()
    job = await bench.submit(cwd=str(repository), snapshot="git")

    said = (await bench.client.job_snapshot(job)).git
    assert said is not None
    assert (said.branch, said.remote, said.untracked) == ("trunk", "https://example.org/code.git", ["new.py"])
    assert (said.dirty, len(said.commit or "")) == (True, 40)
    assert "-print(1)" in (said.diff or "")
    assert "+print(2)" in (said.diff or "")
    full = await bench.client.job_get(job, detail="full")
    assert full.snapshot is not None
    assert full.snapshot.git == said.model_copy(update={"diff": None})


async def test_a_clean_tree_is_said_to_be_clean_and_one_without_a_commit_has_none(bench, code: Path) -> None:
    git(code, "init", "-q", "-b", "trunk")
    first = (await bench.client.job_snapshot(await bench.submit(cwd=str(code), snapshot="git"))).git
    git(code, "add", "-A")
    git(code, "commit", "-q", "-m", "first")
    second = (await bench.client.job_snapshot(await bench.submit(cwd=str(code), snapshot="git"))).git
    assert first is not None
    assert second is not None
    assert (first.commit, first.dirty) == (None, True)
    assert (second.dirty, second.diff, second.remote) == (False, None, None)


async def test_a_large_diff_is_cut_and_says_so(bench, repository: Path) -> None:
    (repository / "main.py").write_text("line\n" * 100_000)
    said = (await bench.client.job_snapshot(await bench.submit(cwd=str(repository), snapshot="git"))).git
    assert said is not None
    assert said.diff_cut
    assert len(said.diff or "") == 256 << 10


async def test_git_of_a_directory_that_is_no_repository_is_refused(bench, code: Path) -> None:
    refused = await refusal(bench, cwd=str(code), snapshot="git")
    assert (refused.code, refused.field) == (ProblemCode.INVALID_SPEC, "snapshot")
    assert "copy" in (refused.hint or "")
    assert (await bench.client.job_list()).total == 0


@pytest.mark.parametrize(
    "fields", [{}, {"cwd": "relative"}, {"cwd": "/tmp/{i}", "count": 2}, {"cwd": "/nowhere/at/all"}]
)
async def test_what_can_not_be_copied_is_refused_and_nothing_is_kept(bench, fields: dict[str, object]) -> None:
    refused = await refusal(bench, snapshot="copy", **fields)
    assert (refused.code, refused.field) == (ProblemCode.INVALID_SPEC, "snapshot")
    assert (await bench.client.job_list()).total == 0
    assert not list((bench.directory / "snapshots").glob("*"))


async def test_a_preview_says_what_a_submit_would_refuse_and_takes_nothing(bench, code: Path) -> None:
    bad = await bench.client.job_preview({"command": "true", "snapshot": "copy"})
    good = await bench.client.job_preview({"command": "true", "snapshot": "copy", "cwd": str(code)})
    assert [error.field for error in bad.errors or []] == ["snapshot"]
    assert good.valid
    assert not (bench.directory / "snapshots").exists()


@pytest.mark.guarantee("G48")
async def test_the_same_content_is_kept_once_whatever_its_times_are(bench, code: Path) -> None:
    first = await bench.submit(cwd=str(code), snapshot="copy")
    os.utime(code / "main.py", (1, 1))
    (code / "data" / "more").write_text("ignored")
    second = await bench.submit(cwd=str(code), snapshot="copy")
    said = [(await bench.client.job_snapshot(job)).sha256 for job in (first, second)]
    assert said[0] == said[1]
    assert [file.name for file in (bench.directory / "snapshots").iterdir()] == [said[0]]


async def test_one_that_is_too_large_is_refused_with_the_largest_files(make_bench, code: Path) -> None:
    bench = await make_bench(snapshot_mb=0.1)
    (code / "weights.bin").write_bytes(b"w" * 200_000)
    refused = await refusal(bench, cwd=str(code), snapshot="copy")
    assert refused.code is ProblemCode.PAYLOAD_TOO_LARGE
    assert "weights.bin (0.2 MB)" in refused.detail
    assert ".gitignore" in (refused.hint or "")
    assert not list((bench.directory / "snapshots").iterdir())


@pytest.mark.guarantee("G48")
async def test_what_is_not_what_its_name_says_is_refused_and_leaves_nothing(bench) -> None:
    sha256 = hashlib.sha256(b"right").hexdigest()
    with pytest.raises(Refused) as caught:
        await bench.client.snapshot_put(sha256, b"wrong")
    assert caught.value.code is ProblemCode.BAD_CHECKSUM
    assert not list((bench.directory / "snapshots").iterdir())
    assert (await refusal(bench, snapshot=f"copy:{sha256}")).code is ProblemCode.UNKNOWN_SNAPSHOT

    kept = await bench.client.snapshot_put(sha256, b"right")
    assert kept.size == 5
    assert await bench.client.snapshot_get(sha256) == b"right"


async def test_a_body_larger_than_a_snapshot_may_be_leaves_nothing(make_bench) -> None:
    bench = await make_bench(snapshot_mb=0.001)
    data = b"x" * 5000
    with pytest.raises(Refused) as caught:
        await bench.client.snapshot_put(hashlib.sha256(data).hexdigest(), data)
    assert caught.value.code is ProblemCode.PAYLOAD_TOO_LARGE
    assert "JOBD_SNAPSHOT_MB" in (caught.value.hint or "")
    assert not list((bench.directory / "snapshots").iterdir())


async def test_what_git_said_must_be_what_git_says(bench) -> None:
    sha256 = hashlib.sha256(b"no json").hexdigest()
    await bench.client.snapshot_put(sha256, b"no json")
    assert (await refusal(bench, snapshot=f"git:{sha256}")).field == "snapshot"


@pytest.mark.guarantee("G48")
async def test_a_copy_is_kept_while_a_live_job_names_it_and_goes_afterwards(make_bench, code: Path) -> None:
    bench = await make_bench(keep_snapshots_s=DAY_S, keep_jobs_s=100 * DAY_S)
    job = await bench.submit(cwd=str(code), snapshot="copy")
    sha256 = (await bench.client.job_snapshot(job)).sha256
    bench.clock.pass_s(50 * DAY_S)
    await retention.prune(bench.broker)
    assert await bench.client.snapshot_get(sha256)

    await bench.client.job_cancel(CancelRequest(job=[job]))
    bench.clock.pass_s(DAY_S / 2)
    await retention.prune(bench.broker)
    assert (bench.directory / "snapshots" / sha256).exists()
    bench.clock.pass_s(3 * DAY_S)
    await retention.prune(bench.broker)
    assert not list((bench.directory / "snapshots").iterdir())
    said = await bench.client.job_snapshot(job)
    assert (said.sha256, said.size) == (sha256, None)
    with pytest.raises(Refused) as caught:
        await bench.client.snapshot_get(sha256)
    assert caught.value.code is ProblemCode.UNKNOWN_SNAPSHOT


async def test_what_git_said_is_kept_as_long_as_the_job(make_bench, repository: Path) -> None:
    bench = await make_bench(keep_snapshots_s=DAY_S, keep_jobs_s=100 * DAY_S)
    job = await bench.submit(cwd=str(repository), snapshot="git")
    await bench.client.job_cancel(CancelRequest(job=[job]))
    bench.clock.pass_s(50 * DAY_S)
    await retention.prune(bench.broker)
    assert (await bench.client.job_snapshot(job)).git is not None


async def test_what_nobody_ever_named_goes_after_a_day(bench) -> None:
    sha256 = hashlib.sha256(b"x").hexdigest()
    await bench.client.snapshot_put(sha256, b"x")
    await retention.prune(bench.broker)
    assert (bench.directory / "snapshots" / sha256).exists()
    bench.clock.pass_s(2 * DAY_S)
    await retention.prune(bench.broker)
    assert not (bench.directory / "snapshots" / sha256).exists()


async def test_a_worker_that_knows_no_copies_is_given_none(bench, code: Path) -> None:
    await bench.registered(protocol=2)
    job = await bench.submit(cwd=str(code), snapshot="copy")
    explained = await bench.client.job_explain(job)
    assert not any(one.fits for one in explained.placement or [])
    assert "snapshot copies" in str(explained.placement)


async def test_the_delivery_names_the_copy(bench, code: Path) -> None:
    worker = await bench.registered()
    job = await bench.submit(cwd=str(code), snapshot="copy")
    delivery = await worker.running()
    assert delivery.spec.copied == (await bench.client.job_snapshot(job)).sha256
    await worker.finish(delivery, Outcome.EXITED, exit_code=0)


async def test_of_several_jobs_the_one_whose_code_can_not_be_had_is_named(bench, code: Path) -> None:
    specs = [JobSpec(command="true", cwd=str(code), snapshot="copy"), JobSpec(command="true", snapshot="copy")]
    with pytest.raises(Refused) as caught:
        await bench.client.job_submit_many(specs)
    assert caught.value.field == "jobs.1.snapshot"
