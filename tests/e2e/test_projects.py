"""`job projects`, `job reload`, profiles and roots, by the real commands."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.installation import Installation
from support.waiting import eventually_sync

FILE = """
[projects.vision]
roots = ["~/vision"]
share = 3
[profiles.big]
cpus = 0.5
max_wall_s = 99
"""


@pytest.fixture
def configured(installation: Installation) -> tuple[Installation, Path]:
    file = installation.directory / "jobd.toml"
    file.write_text(FILE)
    installation.settings["JOBD_CONFIG"] = str(file)
    (Path(installation.environ["HOME"]) / "vision" / "deep").mkdir(parents=True)
    installation.good("up")
    return installation, file


@pytest.mark.guarantee("G46")
def test_the_directory_of_a_person_says_the_project_and_a_profile_what_the_job_asks_for(
    configured: tuple[Installation, Path],
) -> None:
    up, _ = configured
    inside = Path(up.environ["HOME"]) / "vision" / "deep"

    answer = up.good("submit", "--json", "--profile", "big", "--", "true", cwd=inside).json()
    full = up.good("status", str(answer["id"]), "--detail", "full", "--json").json()

    assert (full["project"], full["sources"]["project"]) == ("vision", "root")
    assert (full["spec"]["max_wall_s"], full["sources"]["max_wall_s"]) == (99, "profile big")
    assert up.job("wait", str(answer["id"])).code == 0
    refused = up.job("submit", "--profile", "bik", "--", "true")
    assert refused.code != 0 and "did you mean big?" in refused.err


@pytest.mark.guarantee("G46")
def test_an_operator_changes_a_project_and_takes_it_back(configured: tuple[Installation, Path]) -> None:
    up, _ = configured

    said = up.good("projects", "set", "vision", "--priority", "20", "--quota-running", "4", "--preemptible").text
    listed = up.good("projects").text
    [entry] = up.good("projects", "--json").json()["projects"]

    assert "priority = 20  (run time)" in said and "share = 3  (project)" in said
    assert "vision" in listed and "priority=20" in listed
    assert entry["values"]["quota"]["running"] == 4 and entry["values"]["preemptible"] is True
    back = up.good("projects", "set", "vision", "--reset", "priority", "--reset", "quota.running").text
    assert "priority = 0  (default)" in back and "preemptible = True  (run time)" in back
    nothing = up.job("projects", "set", "vision")
    assert nothing.code != 0 and "nothing to change" in nothing.err
    wrong = up.job("projects", "set", "vision", "--share", "0", "--priority", "3")
    assert wrong.code != 0 and "share" in wrong.err


@pytest.mark.guarantee("G46")
def test_a_file_is_read_again_by_command_and_by_signal(configured: tuple[Installation, Path]) -> None:
    up, file = configured
    pid = up.good("up", "--json").json()["pid"]

    file.write_text(FILE.replace("share = 3", "share = 4") + "\n[preemption]\nenabled = true\n")
    said = up.good("reload").text
    file.write_text(FILE.replace("share = 3", "shar = 5"))
    refused = up.job("reload")
    file.write_text("poll_s = 20\n" + FILE.replace("share = 3", "share = 6"))
    os.kill(pid, signal.SIGHUP)

    assert "projects" in said and "preemption" in said
    assert refused.code != 0 and "did you mean share?" in refused.err and "line 4" in refused.err
    eventually_sync(lambda: up.good("projects", "--json").json()["projects"][0]["values"]["share"] == 6)
    [event] = up.good("events", "--json", "--type", "configuration_reloaded", "--last", "1").json()["events"]
    assert event["actor"] == "SIGHUP" and event["data"]["needs_restart"] == ["poll_s"]
