"""Sixty stories of ten virtual minutes each, of the real broker and real workers; ten of them are told twice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.requirements import ROOT

pytestmark = pytest.mark.timeout(900)  # a box of 120 s on two cores; others may use them too

HASH_SEEDS = ("1", "2")

FOUND_BY_LONG_RUNS = {
    "a_story_with_more_work_than_time": 63,
    "output_that_only_the_broker_had_after_a_power_cut_was_called_stale": 143,
    "a_connection_was_closed_before_what_was_asked_of_it": 434,
    "a_broker_that_was_told_to_end_while_frozen_was_not_started_again": 830,
    "power_cuts_took_the_same_output_from_broker_and_worker_and_it_was_awaited_for_ever": 1336,
    "a_story_with_more_work_than_time_where_no_wake_is_heard": 3795,
    "an_end_was_counted_twice_for_a_job_that_waits_for_an_array": 2850,
}


@pytest.mark.parametrize("first", range(0, 60, 10))
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", "G6", "G8", "G9", "G10", "G12", "G14", "G15")
def test_ten_stories_end_well(first: int) -> None:
    done = simulation("--seeds", f"{first}..{first + 9}", "--first")

    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.startswith("10 seeds, 0 failed")


@pytest.mark.parametrize("seed", FOUND_BY_LONG_RUNS.values(), ids=FOUND_BY_LONG_RUNS.keys())
def test_a_story_that_failed_once_ends_well(seed: int) -> None:
    """What it tells may change with the code; the fault that it found has a test of its own, if it was the code's."""
    done = simulation("--seeds", str(seed))

    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_story_told_twice_is_the_same_story() -> None:
    told = [simulation("--seeds", "0..9", "--digests", hash_seed=seed).stdout for seed in HASH_SEEDS]

    digests = [[line for line in text.splitlines() if line.startswith("digest")] for text in told]
    assert len(digests[0]) == 10
    assert digests[0] == digests[1]


def test_a_story_can_be_read() -> None:
    told = simulation("--seed", "3").stdout.splitlines()

    assert told[0].split(":")[0].split() == ["0.000", "story"]
    assert any("executes 1.1" in line for line in told)
    assert told[-1].startswith("digest ")


def simulation(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """In an interpreter of its own: there all clocks are replaced."""
    planted = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([*planted, str(ROOT / "tests")]),
        "PYTHONHASHSEED": hash_seed,
    }
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
