"""Results, progress and artifacts with real processes, as people and programs see them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.jobs import JobSpec
from support.fleet import Fleet
from support.installation import Installation
from support.terminal import InTerminal
from support.waiting import eventually, eventually_sync

QUICK = {"lease_s": "30", "sweep_s": "0.3", "heartbeat_s": "0.3", "poll_s": "2"}


@pytest.mark.guarantee("G44")
@pytest.mark.guarantee("G45")
def test_a_job_leaves_a_result_and_files_and_they_are_fetched_with_their_checksums(
    up: Installation, tmp_path: Path
) -> None:
    command = (
        'echo "0.5 half way" >> $JOBD_PROGRESS_FILE; echo \'{"loss": 0.25, "best": null}\' > $JOBD_RESULT_FILE; '
        "mkdir $JOBD_ARTIFACTS_DIR/models; head -c 3000000 /dev/urandom > $JOBD_ARTIFACTS_DIR/models/best.bin; "
        "sha256sum < $JOBD_ARTIFACTS_DIR/models/best.bin; echo done > '$JOBD_ARTIFACTS_DIR/a b.txt'; "
        'echo done > "$JOBD_ARTIFACTS_DIR/a b.txt"'
    )
    job = str(up.submit(command))
    assert up.job("wait", job).code == 0
    eventually_sync(lambda: up.good("artifacts", job, "--json").json()["complete"])

    known = up.good("status", "--json", job).json()
    assert known["result"] == {"loss": 0.25, "best": None}
    assert known["progress"] == {"fraction": 0.5, "message": "half way"}
    assert known["artifacts"] == "2"
    shown = up.good("status", job).text
    assert "50 % half way" in shown
    assert '{"loss": 0.25, "best": null}' in shown

    into = tmp_path / "here"
    listed = up.good("artifacts", job, "--fetch", str(into)).text
    assert "models/best.bin" in listed
    assert (into / "a b.txt").read_text() == "done\n"
    digest = hashlib.sha256((into / "models" / "best.bin").read_bytes()).hexdigest()
    assert up.good("logs", "--raw", job).text.split()[0] == digest
    assert sorted(path.name for path in into.rglob("*")) == ["a b.txt", "best.bin", "models"]


def test_a_job_that_left_no_files_says_so_and_a_wrong_name_is_an_error(up: Installation) -> None:
    job = str(up.submit("true"))
    up.job("wait", job)
    assert "It left no files." in up.good("artifacts", job).text
    assert up.job("artifacts", "99999").code == 125


def test_what_is_no_result_is_a_warning_on_a_job_that_completed(up: Installation) -> None:
    job = str(up.submit("echo '{' > $JOBD_RESULT_FILE; ln -s /etc/passwd $JOBD_ARTIFACTS_DIR/passwd"))
    assert up.job("wait", job).code == 0
    known = up.good("status", "--json", job).json()
    assert (known["state"], "result" in known) == ("completed", False)
    assert len(known["warnings"]) == 2
    assert "not valid JSON" in known["warnings"][0]
    assert known["warnings"][1] == "artifact passwd is not kept: a link"


def test_the_list_the_status_and_a_wait_show_a_bar(installation: Installation) -> None:
    installation.settings["JOBD_HEARTBEAT_S"] = "0.2"
    installation.good("up")
    gate = installation.directory / "gate"
    steps = f"echo 0.29 'epoch 3' >> $JOBD_PROGRESS_FILE; until [ -e {gate} ]; do sleep 0.05; done"
    job = str(installation.submit(steps))
    waiting = InTerminal([installation.program, "wait", job], installation.environ, installation.directory, 120)
    try:
        waiting.until(lambda screen: "29 % epoch 3" in screen.text)
        for words in (("list",), ("status", job), ("top", "--once")):
            assert "29 % epoch 3" in installation.good(*words).text, words
    finally:
        gate.touch()
        assert waiting.ended() == 0
        waiting.close()


async def test_progress_is_seen_while_the_job_runs_and_makes_no_events(fleet: Fleet, tmp_path: Path) -> None:
    fleet.settings |= QUICK
    await fleet.start_broker()
    await fleet.start_worker("w1")
    async with fleet.client() as client:
        steps = f"for i in 1 2 3 4 5 6 7; do echo 0.$i step $i >> $JOBD_PROGRESS_FILE; done; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        job = (await client.job_submit(JobSpec(command=steps))).id
        assert job is not None

        async def told() -> bool:
            view = await client.job_get(job)
            return view.progress is not None and view.progress.message == "step 7"

        await eventually(told)
        assert (await client.job_list()).jobs[0].progress is not None
        (tmp_path / "go").touch()
        await client.job_wait([job])
        events = [event.type.value for event in (await client.job_events(job=job)).events]
    assert events == ["job_submitted", "job_assigned", "assignment_acked", "job_started", "job_completed"]


async def here(client: BrokerClient, job: int) -> int:
    return len((await client.job_artifacts(job)).artifacts)


@pytest.mark.guarantee("G45")
@pytest.mark.parametrize("who", ["broker", "worker"])
async def test_files_arrive_whole_when_the_one_that_sends_or_keeps_them_is_killed(
    fleet: Fleet, who: str, tmp_path: Path
) -> None:
    fleet.settings |= QUICK
    await fleet.start_broker()
    await fleet.start_worker("w1")
    command = "for i in $(seq 40); do head -c 2500000 /dev/urandom > $JOBD_ARTIFACTS_DIR/$i; done; cd $JOBD_ARTIFACTS_DIR; sha256sum *"
    async with fleet.client() as client:
        job = (await client.job_submit(JobSpec(command=command))).id
        assert job is not None
        await client.job_wait([job])

        async def some() -> bool:
            return await here(client, job) > 0

        await eventually(some)
        before = await here(client, job)
        if who == "broker":
            fleet.kill_broker()
            await fleet.start_broker()
        else:
            fleet.kill_worker("w1")
            await fleet.start_worker("w1")

        async def complete() -> bool:
            return (await client.job_artifacts(job)).complete

        await eventually(complete, within_s=60)
        files = {file.name: file.sha256 for file in (await client.job_artifacts(job)).artifacts}
        said = b"".join([part async for part in client.job_output(job)]).decode()
        view = await client.job_get(job)
    assert before <= 40
    assert files == {name: digest for digest, name in (line.split() for line in said.splitlines())}
    assert (view.state.value, view.artifacts) == ("completed", "40")
    assert json.loads(view.model_dump_json())["id"] == job
