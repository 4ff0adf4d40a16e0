"""What runs, whoever wraps it in what: the same thing has the same fingerprint, another thing has not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.fingerprint import LENGTH, exact, fingerprint, similar
from broker.wire.jobs import JobSpec


def of(command: str, **fields: object) -> str:
    return fingerprint(JobSpec.model_validate({"command": command, **fields}))


@pytest.mark.parametrize(
    "wrapped",
    [
        "python train.py --lr 0.1",
        "python3.11 -u train.py --lr 0.1",
        "bash -c 'python train.py --lr 0.1'",
        'bash -lc "nohup python train.py --lr 0.1"',
        "env -u HOME WANDB_MODE=offline CUDA_LAUNCH_BLOCKING=1 python train.py --lr 0.1",
        "OMP_NUM_THREADS=4 nice -n 10 python train.py --lr 0.1",
        "time -v timeout -k 5 3600 stdbuf -oL python train.py --lr 0.1",
        "cd /data/a && source venv/bin/activate && python train.py --lr 0.1 > log.txt 2>&1",
        "export A=1; set -e\nmkdir -p out\npython train.py --lr 0.1",
        "conda run -n torch python train.py --lr 0.1",
        "uv run --with torch train.py --lr 0.1",
        "conda activate torch && train.py --lr 0.1",
    ],
)
def test_wrappers_and_preparations_are_not_what_runs(wrapped: str) -> None:
    assert of(wrapped) == of("train.py --lr 0.1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("python train.py --lr 0.1", "python train.py --lr 0.2"),
        ("python train.py --lr=1e-3 model=small", "python train.py --lr=3E-4 model=large"),
        ("python train.py --data imagenet -n 3", "python train.py --data cifar -n 12"),
        ("python /a/train.py run_1.yaml", "python /b/c/train.py run_22.yaml"),
        ("python -m bench.main --size 10", "python -m bench.main --size 20"),
        ("sleep 30", "sleep 300"),
    ],
)
def test_runs_that_differ_in_values_are_similar_and_not_the_same(one: str, other: str) -> None:
    assert similar(of(one)) == similar(of(other))
    assert exact(of(one)) != exact(of(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("python train.py", "python evaluate.py"),
        ("python train.py --lr 0.1", "python train.py --lr 0.1 --resume"),
        ("torchrun --standalone train.py", "torchrun --standalone evaluate.py"),
        ("python -m bench.main", "python -m bench.other"),
        ("python -c 'import a'", "python -c 'import b'"),
        ("make all", "make test"),
        ("cd a", "cd b"),
    ],
)
def test_other_programs_are_not_similar(one: str, other: str) -> None:
    assert similar(of(one)) != similar(of(other))


def test_neither_project_nor_requirements_nor_environment_count_and_the_directory_only_exactly() -> None:
    one = of("train.py", project="a", gpus=1, env={"SEED": "1"}, name="x")
    assert one == of("train.py", project="b", cpus=4, env={"SEED": "2"})
    elsewhere = of("train.py", cwd="/other")
    assert similar(elsewhere) == similar(one)
    assert elsewhere != one


def test_argv_is_its_words() -> None:
    argv = JobSpec(argv=["bash", "-c", "python train.py --lr 0.1"])
    assert fingerprint(argv) == of("train.py --lr 0.1")
    assert similar(fingerprint(JobSpec(argv=["train.py", "a b"]))) != similar(of("train.py a b"))


def test_long_commands_are_told_apart_by_their_ends_too() -> None:
    text = "echo " + "a" * 5000
    assert of(text + "b") != of(text + "c")


@given(st.text(min_size=1, max_size=200).filter(lambda text: text.strip() and "\0" not in text))
def test_whatever_the_text_it_has_a_fingerprint_of_two_levels(text: str) -> None:
    try:
        spec = JobSpec(command=text)
    except ValueError:
        return  # a lone surrogate
    key = fingerprint(spec)
    assert (len(similar(key)), len(exact(key)), key[LENGTH]) == (LENGTH, LENGTH, ".")
