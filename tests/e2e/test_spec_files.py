"""Files and scripts are submitted by the real command: as they are, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.installation import Installation

SLURM = """#!/bin/bash
#SBATCH --job-name=fit
#SBATCH --time=5 --cpus-per-task=1
#SBATCH --array=3,5%1
#SBATCH --output=fit_%a.txt
#SBATCH --partition=long
echo "member $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $1, $(basename "$0")"
"""


@pytest.mark.guarantee("G47")
def test_a_script_of_slurm_runs_as_it_is_and_what_is_lost_of_it_is_said(up: Installation, tmp_path: Path) -> None:
    script = tmp_path / "fit.sh"
    script.write_text(SLURM)
    made = up.good("submit", "--json", str(script), "here")
    assert "ignored: line 6: --partition=long has no equivalent" in made.err
    array = made.json()["array"]
    script.write_text("#!/bin/bash\nexit 9\n")
    assert up.job("wait", "--array", str(array)).code == 0
    assert "member 5 of 2, here, fit.sh" in up.good("logs", str(int(str(array)) + 1)).text


@pytest.mark.guarantee("G47")
def test_strict_refuses_what_would_be_lost_and_submits_nothing(up: Installation, tmp_path: Path) -> None:
    script = tmp_path / "fit.sh"
    script.write_text(SLURM)
    before = up.good("list", "--json").json()["total"]
    refused = up.job("submit", "--strict", str(script))
    assert refused.code == 125
    assert "--partition=long" in refused.err
    script.write_text("#!/bin/bash\n#JOBD --gpsu 1\ntrue\n")
    assert f"{script}, line 2: #JOBD" in up.job("submit", str(script)).err
    assert up.good("list", "--json").json()["total"] == before


@pytest.mark.guarantee("G47")
def test_a_file_is_submitted_whole_or_not_at_all_and_the_command_line_wins(up: Installation, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("name: of the file\njobs:\n- command: exit 0\n- command: exit 3\n  name: three\n")
    assert up.job("submit", "--wait", str(jobs)).code == 3
    listed = json.loads(up.good("list", "--json", "--limit", "2").out)
    assert [job["name"] for job in listed["jobs"]] == ["three", "of the file"]

    jobs.write_text("jobs:\n- command: exit 0\n- command: exit 3\n  gpsu: 1\n")
    refused = up.job("submit", str(jobs))
    assert (refused.code, up.good("list", "--json").json()["total"]) == (125, listed["total"])
    assert f"{jobs}, job 2 (line 3): gpsu: there is no such field" in refused.err
    assert "did you mean gpus" in refused.err

    one = tmp_path / "one.toml"
    one.write_text('command = "exit 4"\nname = "one"\n')
    assert up.job("submit", "--wait", "--name", "other", str(one)).code == 4
    assert up.good("list", "--json", "--limit", "1").json()["jobs"][0]["name"] == "other"
    assert up.job("preview", str(one)).code == 0
    assert up.job("run", str(one)).code == 4


def test_one_word_that_is_no_such_file_is_shell_text_as_ever(up: Installation, tmp_path: Path) -> None:
    (tmp_path / "true").write_text("not this one")
    assert up.job("submit", "--wait", "true", cwd=tmp_path).code == 0


def test_stats_tell_what_really_ran(up: Installation) -> None:
    for value in range(3):
        job = up.good("submit", "--wait", "--json", "--ram-gb", "1", f"sleep 0.2; echo stats-{value}").json()
    told = up.good("stats", str(job["jobs"][0]["id"])).text
    assert "3 completed, 0 failed" in told
    assert "asks: cpus 1" in told
    assert up.job("stats", "999999").code == 125
