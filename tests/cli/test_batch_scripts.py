"""`#SBATCH` and `#JOBD` lines, as Slurm's users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobd_mcp.cli import batch_scripts, slurm
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.surface import by_name


def script(tmp_path: Path, *lines: str, first: str = "#!/bin/bash") -> batch_scripts.Script:
    file = tmp_path / "train.sh"
    file.write_text("\n".join([first, *lines, ""]))
    return batch_scripts.read(file, ["a"], by_name()["job_submit"], {"HERE": "1"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-12", 129_600),
        ("1-02:30", 95_400),
        ("1-02:30:15", 95_415),
        ("0", "none"),
        ("UNLIMITED", "none"),
        ("soon", None),
        ("1:2:3:4", None),
        ("-5", None),
    ],
)
def test_each_form_of_a_time_means_what_it_means_to_slurm(text: str, expected: object) -> None:
    assert slurm.seconds(text) == expected


def test_sizes_are_mebibytes_where_no_unit_is_given() -> None:
    assert [slurm.gibibytes(text) for text in ("512", "16G", "1T", "4096K", "1.5gb", "lots")] == [
        0.5,
        16,
        1024,
        0.003906,
        1.5,
        None,
    ]


def test_indexes_are_those_of_slurm_each_once() -> None:
    assert slurm.indexes("1,3,5-9:2,3") == [1, 3, 5, 7, 9]
    assert [slurm.indexes(text) for text in ("3-1", "a", "1-9:0", "0-99999999999", "")] == [None] * 5


def test_a_script_of_slurm_is_understood_as_it_is(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "#SBATCH --job-name=fit -t 1:00:00",
        "#SBATCH --mem 16G   # of the machine",
        "#SBATCH -c4 --gres=gpu:2 --dependency=afterany:41:42",
        "#SBATCH --array=1-9:4%2 --chdir=/data --export=NONE,HERE,X=2",
        "echo $SLURM_ARRAY_TASK_ID",
    )
    spec = found.spec
    assert (spec["name"], spec["max_wall_s"], spec["ram_gb"], spec["cpus"], spec["gpus"]) == ("fit", 3600, 16, 4, 2)
    assert (spec["depends_on"], spec["dependency_policy"], spec["cwd"]) == ([41, 42], "any_exit", "/data")
    assert (spec["sweep"], spec["max_parallel"]) == ({"SLURM_ARRAY_TASK_ID": [1, 5, 9]}, 2)
    assert (spec["env"]["HERE"], spec["env"]["X"], spec["env"]["SLURM_ARRAY_TASK_ID"]) == (
        "1",
        "2",
        "{SLURM_ARRAY_TASK_ID}",
    )
    assert spec["argv"][:2] == ["/bin/bash", "-c"]
    assert spec["argv"][3:] == [str(tmp_path / "train.sh"), "a"]
    assert found.ignored == []


def test_what_has_no_equivalent_is_named_with_its_line(tmp_path: Path) -> None:
    found = script(tmp_path, "#SBATCH -p gpu", "#SBATCH --gres=gpu:a100:1", "srun ./x $SLURM_JOB_ID")
    assert found.spec["gpus"] == 1
    assert [line.partition(" has")[0].partition(": the")[0] for line in found.ignored] == [
        "line 2: --partition=gpu",
        "line 3: --gres=gpu:a100:1",
        "SLURM_JOB_ID is not set: JOBD_JOB_ID is",
        "srun is Slurm's own program",
    ]


def test_a_silent_option_is_named_too(tmp_path: Path) -> None:
    found = script(tmp_path, "#SBATCH --mail-type=END --exclusive", "true")
    assert found.ignored == [
        "line 2: --mail-type=END has no equivalent",
        "line 2: --exclusive has no equivalent",
    ]


def test_every_option_has_a_meaning_or_is_named() -> None:
    for name in slurm._known():
        assert sum(name in known for known in (slurm._ALONE, slurm._SIZES, slurm._WITHOUT_EQUIVALENT, ("export",))) == 1
    assert set(slurm._SHORT.values()) | slurm._FLAGS <= set(slurm._known())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#SBATCH --tme=5", "did you mean --time"),
        ("#SBATCH --time", "--time needs a value"),
        ("#SBATCH --time=soon", "no time"),
        ("#SBATCH --mem=lots", "no size"),
        ("#SBATCH --array=9-1", "no array"),
        ("#SBATCH --nodes=2", "one machine"),
        ("#SBATCH -d afterok:1,afterany:2", "one policy"),
        ("#SBATCH -d afterok:1?afterok:2", "not understood"),
        ("#SBATCH --cpus-per-task=some", "no whole number"),
        ("#SBATCH train.py", "no option"),
        ("#SBATCH --comment='open", "No closing quotation"),
        ("#JOBD --gpsu 1", "--gpus"),
        ("#JOBD --gpus many", "not a valid integer"),
        ("#JOBD train.py", "unexpected extra argument"),
    ],
)
def test_a_wrong_line_is_refused_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(Failure) as refused:
        script(tmp_path, "", line)
    assert f"{tmp_path / 'train.sh'}, line 3" in refused.value.message
    assert said in f"{refused.value.message} {refused.value.hint}"


def test_own_lines_win_and_what_stands_behind_the_first_command_is_not_read_and_said(tmp_path: Path) -> None:
    found = script(
        tmp_path,
        "#JOBD --max-wall-s 30 --env A=1",
        "#SBATCH -t 60",
        "#JOBD --env B=2",
        "##SBATCH -p no",
        "true",
        "#SBATCH --mem=1G",
    )
    assert (found.spec["max_wall_s"], found.spec["env"]) == (30, {"A": "1", "B": "2"})
    assert "ram_gb" not in found.spec
    assert found.ignored == ["line 7: #SBATCH behind the first command is not read, as in Slurm"]


def test_what_can_not_be_sent_as_text_is_refused_with_another_way(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="perl can't be given"):
        script(tmp_path, "print 1;", first="#!/usr/bin/perl")
    with pytest.raises(Failure, match="line ends of DOS"):
        script(tmp_path, "true\r")
    with pytest.raises(Failure, match="at most"):
        script(tmp_path, "#" * 200_000)
    assert script(tmp_path, "print(1)", first="#!/usr/bin/env python3").spec["argv"][:2] == ["python3", "-c"]
