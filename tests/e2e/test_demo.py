"""The demonstration shows what it says, and leaves nothing."""

from __future__ import annotations

import pytest

from support.installation import Installation
from support.processes import processes_of


@pytest.mark.serial
def test_the_demonstration_shows_a_job_that_survives_the_death_of_a_machine_and_leaves_nothing(
    installation: Installation,
) -> None:
    place = installation.directory / "demo"
    shown = installation.good("demo", "--directory", str(place)).text
    assert "state=completed exit_code=0" in shown
    assert "epoch 3 of 3" in shown
    assert "resumed after step" in shown
    assert "assignment 2.1: expired on" in shown
    assert "assignment 2.2: succeeded on" in shown
    for event in ("assignment_expired", "job_requeued", "job_completed"):
        assert event in shown
    assert not place.exists()
    assert not processes_of(installation.directory)


def test_the_demonstration_refuses_a_directory_that_exists(installation: Installation) -> None:
    refused = installation.job("demo", "--directory", str(installation.directory))
    assert refused.code == 125
    assert "exists" in refused.err
    assert installation.directory.exists()
