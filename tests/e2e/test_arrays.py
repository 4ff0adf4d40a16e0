"""Arrays with real processes: what starts when, measured by the processes themselves; and the commands of people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.wire.jobs import JobSpec
from support.installation import Installation

MEMBERS, AT_ONCE = 24, 3


def most_at_once(directory: Path) -> int:
    """How many of these ran at the same instant, at most: each wrote when it began and when it ended."""
    steps = []
    for file in directory.iterdir():
        began, ended = map(int, file.read_text().split())
        steps += [(began, 1), (ended, -1)]
    alive = most = 0
    for _, step in sorted(steps):
        alive += step
        most = max(most, alive)
    return most


@pytest.mark.guarantee("G41")
@pytest.mark.trial("B95")
async def test_no_more_processes_live_at_once_than_may_on_however_many_workers(fleet, tmp_path: Path) -> None:
    await fleet.start_broker()
    for name in ("anna", "berta", "carla"):
        await fleet.start_worker(name)
    command = "began=$(date +%s%N); sleep 0.1; echo $began $(date +%s%N) > {i}"
    async with fleet.client() as client:
        said = await client.job_submit(JobSpec(command=command, cwd=str(tmp_path), count=MEMBERS, max_parallel=AT_ONCE))
        waited = await client.job_wait(array=said.array)

    assert waited.counts == {"completed": MEMBERS}
    assert len(list(tmp_path.iterdir())) == MEMBERS
    assert most_at_once(tmp_path) == AT_ONCE


def test_a_sweep_by_command_and_one_line_for_it_in_the_list(up: Installation) -> None:
    said = up.good(
        "submit", "--json", "--name", "s-{lr}", "--sweep", "lr=0.10,1e-3", "--sweep", "seed=1,2",
        "--max-parallel", "2", "echo {lr} {seed} {i} $JOBD_ARRAY_INDEX",
    ).json()  # fmt: skip
    array, last = said["array"], int(str(said["ids"]).partition("..")[2])
    assert said["count"] == 4
    assert up.job("wait", "--array", str(array)).code == 0

    assert up.good("logs", "--raw", str(last)).out == b"1e-3 2 3 3\n"
    assert up.good("logs", "--raw", str(array)).out == b"0.10 1 0 0\n"
    listed = up.good("list").text
    assert f"{array}..{last}" in listed
    assert "4 completed" in listed
    of_array = json.loads(up.good("list", "--json", "--array", str(array)).out)
    assert [job["values"] for job in of_array["jobs"]][-1] == {"lr": "0.10", "seed": "1"}


def test_bad_words_for_a_sweep_are_refused_with_their_field(up: Installation) -> None:
    assert "NAME=VALUE" in up.job("submit", "--sweep", "lr", "true").err
    refused = up.job("submit", "--sweep", "i=1,2", "true")
    assert (refused.code, "sweep.i" in refused.err) == (125, True)
    assert "one job" in up.job("run", "--sweep", "a=1,2", "true").err


def test_one_array_after_another_and_member_by_member(up: Installation) -> None:
    first = up.good("submit", "--json", "--count", "2", "sleep 2; exit {i}").json()["array"]
    each = up.good("submit", "--json", "--count", "2", "--depends-on-each", str(first), "true").json()["array"]
    every = up.good(
        "submit", "--json", "--depends-on-array", str(first), "--dependency-policy", "any_exit", "true"
    ).json()
    assert up.job("wait", "--array", str(each)).code == 130
    assert up.job("wait", str(every["id"])).code == 0
    assert [up.state_of(int(str(each)) + n) for n in range(2)] == ["completed", "cancelled"]


def test_a_line_for_each_job_and_none_is_submitted_if_one_is_wrong(up: Installation, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text('{"command": "exit 0"}\n\n{"argv": ["sh", "-c", "exit 3"], "name": "three"}\n')
    assert up.job("submit", "--wait", "--file", str(jobs), "--name", "all").code == 3
    listed = json.loads(up.good("list", "--json", "--limit", "2").out)
    assert [job["name"] for job in listed["jobs"]] == ["all", "all"]  # the command line wins over the file

    jobs.write_text('{"command": "true"}\n\n{"command": "true", "max_paralel": 3}\n')
    refused = up.job("submit", "--file", str(jobs))
    assert refused.code == 125
    assert f"{jobs}, line 3: max_paralel" in refused.err
    assert "max_parallel" in refused.err
    jobs.write_text('{"command": "true"}\nmake all\n')
    assert "line 2: not JSON" in up.job("submit", "--file", str(jobs)).err
    after = json.loads(up.good("list", "--json").out)
    assert after["total"] == listed["total"]
