"""Jobs by the clock, by people's commands and with real processes."""

from __future__ import annotations

from support.installation import Installation
from support.waiting import eventually_sync


def test_a_schedule_is_added_listed_paused_and_removed(up: Installation) -> None:
    added = up.good("schedule", "add", "nightly", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--", "echo", "hi")
    assert "Europe/Berlin" in added.text
    shown = up.good("schedule", "show", "nightly", "--json").json()
    assert shown["job"]["argv"] == ["echo", "hi"]  # type: ignore[index, call-overload]
    assert "paused" in up.good("schedule", "pause", "nightly").text
    assert "paused" not in up.good("schedule", "resume", "nightly").text
    bad = up.job("schedule", "add", "bad", "--cron", "0 0 30 2 *", "--", "true")
    assert (bad.code, "(invalid_spec)" in bad.err) == (125, True)
    assert "No schedules" in up.good("schedule", "remove", "nightly").text


def test_a_broker_submits_what_is_due_and_a_worker_runs_it(installation: Installation) -> None:
    installation.good("up", extra={"JOBD_SWEEP_S": "0.2"})
    try:
        installation.good("schedule", "add", "often", "--cron", "* * * * *", "--overlap", "allow", "--", "true")
        eventually_sync(lambda: installation.ids("jobs", ["list"]), within_s=90)
        job = installation.ids("jobs", ["list"])[0]["id"]  # type: ignore[index]
        assert "nightly" not in installation.good("wait", str(job)).text
        assert installation.state_of(int(job)) == "completed"
    finally:
        installation.good("down")
