"""A worker's copies: fetched once, checked each time, unpacked for each job; without one a job is refused, never failed."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from broker.client import Unreachable
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from worker.admission import Ground, Refusal, admit
from worker.copies import Copies


def archive(**files: str) -> tuple[str, bytes]:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    return hashlib.sha256(target.getvalue()).hexdigest(), target.getvalue()


class Source:
    """A broker that has these, and counts how often it is asked."""

    def __init__(self, **kept: bytes) -> None:
        self.kept, self.asked = kept, 0

    async def fetch(self, sha256: str) -> bytes:
        self.asked += 1
        if sha256 not in self.kept:
            raise Refused(ProblemCode.UNKNOWN_SNAPSHOT, f"there is no snapshot {sha256}")
        return self.kept[sha256]


async def refusal(copies: Copies, sha256: str, tmp_path: Path) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await copies.into(sha256, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    return caught.value


async def test_many_jobs_of_one_copy_fetch_it_once_and_have_a_directory_each(tmp_path: Path) -> None:
    sha256, data = archive(a="1")
    source = Source(**{sha256: data})
    copies = Copies(tmp_path / "copies", source.fetch, 1 << 20, "h")
    await asyncio.gather(*(copies.into(sha256, tmp_path / "jobs" / str(job)) for job in range(5)))
    (tmp_path / "jobs" / "0" / "a").write_text("changed by its job")
    await copies.into(sha256, tmp_path / "jobs" / "5")
    assert source.asked == 1
    assert (tmp_path / "jobs" / "5" / "a").read_text() == "1"


async def test_one_that_the_broker_has_not_is_a_refusal_with_a_reason(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "copies", Source().fetch, 1 << 20, "h")
    refused = await refusal(copies, "0" * 64, tmp_path)
    assert refused.code == "snapshot_missing"
    assert "there is no snapshot" in str(refused)


async def test_a_broker_that_is_away_is_a_refusal_with_a_reason(tmp_path: Path) -> None:
    async def away(sha256: str) -> bytes:
        raise Unreachable("nobody answers")

    refused = await refusal(Copies(tmp_path / "copies", away, 1 << 20, "h"), "0" * 64, tmp_path)
    assert refused.code == "snapshot_unreachable"


@pytest.mark.guarantee("G48")
async def test_bytes_that_are_not_what_was_asked_for_are_never_unpacked(tmp_path: Path) -> None:
    sha256, _ = archive(a="right")
    source = Source(**{sha256: archive(a="wrong")[1]})
    refused = await refusal(Copies(tmp_path / "copies", source.fetch, 1 << 20, "h"), sha256, tmp_path)
    assert refused.code == "snapshot_damaged"
    assert not (tmp_path / "copies").exists()


@pytest.mark.guarantee("G48")
async def test_a_kept_one_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    sha256, data = archive(a="1")
    source = Source(**{sha256: data})
    copies = Copies(tmp_path / "copies", source.fetch, 1 << 20, "h")
    await copies.into(sha256, tmp_path / "first")
    (tmp_path / "copies" / sha256).write_bytes(data[:700])
    await copies.into(sha256, tmp_path / "second")
    assert source.asked == 2
    assert (tmp_path / "second" / "a").read_text() == "1"


async def test_the_longest_unused_goes_first_where_there_is_no_room(tmp_path: Path) -> None:
    (first, a), (second, b), (third, c) = (archive(a=text) for text in "123")
    source = Source(**{first: a, second: b, third: c})
    copies = Copies(tmp_path / "copies", source.fetch, 2 * len(a), "h")
    for n, sha256 in enumerate((first, second, first, third)):
        await copies.into(sha256, tmp_path / str(n))
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {first, third}


async def test_a_file_in_the_place_of_the_cache_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "copies").touch()
    sha256, data = archive(a="1")
    refused = await refusal(Copies(tmp_path / "copies", Source(**{sha256: data}).fetch, 1 << 20, "h"), sha256, tmp_path)
    assert refused.code == "snapshot_not_written"


async def test_a_job_that_runs_in_a_copy_needs_no_cwd_here(tmp_path: Path) -> None:
    ground = Ground(host="h", login={"HOME": str(tmp_path), "PATH": "/bin"}, state=tmp_path)
    spec = JobSpec(command="true", cwd="/no/such/place", snapshot="copy:" + "0" * 64)
    assert (await admit(spec, ground)).cwd is None
    with pytest.raises(Refusal) as caught:
        await admit(spec.model_copy(update={"snapshot": "git:" + "0" * 64}), ground)
    assert caught.value.code == "cwd_missing"
