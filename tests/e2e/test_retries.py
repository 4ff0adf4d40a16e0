"""Retries, holds and changes with real processes, and by the commands of people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.installation import Installation


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B87")
def test_a_command_that_fails_twice_succeeds_at_its_third_start(up: Installation, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    command = f"echo $JOBD_ATTEMPT $JOBD_RESTARTS >> {starts}; test $JOBD_RESTARTS = 2"

    done = up.job("submit", "--wait", "--retries", "4", "--retry-delay-s", "0.05", command)

    assert done.code == 0
    assert starts.read_text().split("\n") == ["1 0", "2 1", "3 2", ""]


@pytest.mark.guarantee("G50")
@pytest.mark.trial("B88")
def test_each_member_of_an_array_starts_as_often_as_it_may(up: Installation, tmp_path: Path) -> None:
    command = f"echo {{i}} >> {tmp_path}/starts; exit 3"

    done = up.job("submit", "--wait", "--count", "5", "--retries", "2", "--retry-delay-s", "0", command)

    assert done.code == 3
    assert sorted((tmp_path / "starts").read_text().split()) == sorted(list("01234") * 3)


@pytest.mark.guarantee("G51")
def test_a_held_job_is_changed_released_and_runs_with_what_it_was_given(up: Installation) -> None:
    job = str(up.good("submit", "--json", "--hold", "--max-wall-s", "100", "sleep 30").json()["id"])
    assert "on hold" in up.good("status", job).text

    changed = up.good("update", job, "--max-wall-s", "0.2", "--priority", "5", "--release").text
    assert up.job("wait", job).code == 124

    assert "changed" in changed
    full = json.loads(up.good("status", "--json", "--detail", "full", job).out)
    assert (full["reason"]["code"], full["spec"]["max_wall_s"], full["sources"]["max_wall_s"]) == (
        "max_wall",
        0.2,
        "update",
    )
    refused = up.job("update", job, "--priority", "1")
    assert refused.code != 0
    assert "already_terminal" in refused.err


@pytest.mark.guarantee("G51")
def test_a_job_that_is_not_to_start_yet_starts_by_itself_later(up: Installation) -> None:
    done = up.job("submit", "--wait", "--not-before", "0.3", "true")

    assert done.code == 0
