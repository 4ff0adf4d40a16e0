"""Code goes with its job: real brokers, workers and commands, on one machine and on two."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from broker.wire.states import Scope
from support.fleet import ended, output_of, submit
from support.installation import Installation
from support.processes import processes_of
from support.waiting import eventually


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "code"
    directory.mkdir()
    (directory / "version").write_text("first\n")
    (directory / ".gitignore").write_text("secret\n")
    (directory / "secret").touch()
    return directory


@pytest.mark.guarantee("G48")
async def test_what_is_edited_after_the_submit_is_not_what_runs(fleet, code: Path) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        job = await submit(client, "cat version; ls -A; pwd", cwd=str(code), snapshot="copy")
        (code / "version").write_text("second\n")
        await fleet.start_worker("w1")
        done = await ended(client, job)
        said = (await output_of(client, job)).decode().split()
        assert done.state.value == "completed"
        assert said[:3] == ["first", ".gitignore", "version"]
        await eventually(lambda: _is_gone(Path(said[3])))


async def _is_gone(path: Path) -> bool:
    return not path.exists()


@pytest.mark.guarantee("G48")
async def test_a_worker_without_the_directory_runs_it_over_a_token_of_its_scope(
    fleet, code: Path, free_port: int
) -> None:
    await fleet.start_broker(listen=f"127.0.0.1:{free_port}")
    async with fleet.client() as operator:
        token = (await operator.token_create("laptop", [Scope.WORKER])).token
        await fleet.start_worker("laptop", url=f"http://127.0.0.1:{free_port}", token=token)
        job = await submit(operator, "cat version", cwd=str(code), snapshot="copy", count=3)
        (code / "version").unlink()
        code.rename(code.with_name("elsewhere"))
        assert [await output_of(operator, job + n) for n in range(3)] == [b"first\n"] * 3
        assert processes_of(fleet.directory / "laptop")


@pytest.mark.guarantee("G48")
async def test_a_copy_that_is_gone_is_a_refusal_that_says_so_and_the_job_waits(fleet, code: Path) -> None:
    await fleet.start_broker()
    async with fleet.client() as client:
        job = await submit(client, "cat version", cwd=str(code), snapshot="copy")
        (kept,) = (fleet.state / "snapshots").iterdir()
        lost = kept.rename(kept.with_suffix(".lost"))
        await fleet.start_worker("w1")

        async def refused() -> bool:
            return any(event.type.value == "assignment_refused" for event in (await client.job_events(job=job)).events)

        await eventually(refused)
        full = await client.job_get(job, detail="full")
        assert full.state.value == "queued"
        assert (full.assignments or [])[0].reason is not None
        assert (full.assignments or [])[0].reason.code == "snapshot_missing"
        lost.rename(kept)


def test_the_command_takes_it_here_for_a_broker_elsewhere(
    installation: Installation, code: Path, free_port: int
) -> None:
    broker = installation.start("broker", "--listen", f"127.0.0.1:{free_port}")
    try:
        listening = {"JOBD_LISTEN": f"127.0.0.1:{free_port}"}
        _until(installation, listening)
        token = str(installation.good("token", "create", "--scope", "submit", "--json").json()["token"])
        there = {
            "JOBD_URL": f"http://127.0.0.1:{free_port}",
            "JOBD_TOKEN": token,
            "JOBD_STATE_DIR": str(installation.directory / "elsewhere"),
        }
        first = installation.good("submit", "--json", "--snapshot", "copy", "--", "true", cwd=code, extra=there).json()
        again = installation.good("submit", "--json", "--snapshot", "copy", "--", "true", cwd=code, extra=there).json()
        specs = [
            installation.good("status", str(one["id"]), "--detail", "full", "--json", extra=there).json()["spec"]
            for one in (first, again)
        ]
        assert specs[0] == specs[1]
        assert len(list((installation.state / "snapshots").iterdir())) == 1
        large = {**there, "JOBD_SNAPSHOT_MB": "0.01"}
        (code / "large").write_bytes(b"l" * 100_000)
        refused = installation.job("submit", "--snapshot", "copy", "--", "true", cwd=code, extra=large)
        assert refused.code == 125
        assert "large (0.1 MB)" in refused.err
        subprocess.run(["git", "init", "-q", "-b", "trunk"], cwd=code, check=True)
        last = installation.good("submit", "--json", "--snapshot", "git", "--", "true", cwd=code, extra=there).json()
        shown = installation.good("status", str(last["id"]), "--detail", "full", "--json", extra=there).json()
        assert json.loads(json.dumps(shown))["snapshot"]["git"]["branch"] == "trunk"
    finally:
        broker.terminate()
        broker.communicate(timeout=20)


def _until(installation: Installation, listening: dict[str, str]) -> None:
    from support.waiting import eventually_sync

    eventually_sync(lambda: installation.job("workers", extra=listening).code == 0)


def test_people_see_the_commit_of_a_job(up: Installation, code: Path) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q", "-b", "trunk"], ["add", "-A"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=code, check=True)
    said = up.good("submit", "--json", "--snapshot", "git", "--", "true", cwd=code).json()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=code, check=True, capture_output=True).stdout.decode()
    assert commit.strip() in up.good("status", str(said["id"]), "--detail", "full").text
