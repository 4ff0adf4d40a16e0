"""When a schedule is due, also where clocks are changed."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from broker.core.cron import BadSchedule, next_after


def instants(cron: str, tz: str, after: str, count: int) -> list[str]:
    """The next instants in UTC, day and time."""
    at = int(datetime.fromisoformat(after).replace(tzinfo=ZoneInfo("UTC")).timestamp() * 1000)
    found = []
    for _ in range(count):
        at = next_after(cron, tz, at)
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo("UTC")).strftime("%d %H:%M"))
    return found


def test_it_goes_by_the_clock_on_the_wall_of_its_zone() -> None:
    assert instants("0 3 * * *", "Europe/Berlin", "2026-03-27 12:00", 3) == ["28 02:00", "29 01:00", "30 01:00"]
    assert instants("0 3 * * *", "UTC", "2026-03-27 12:00", 3) == ["28 03:00", "29 03:00", "30 03:00"]


def test_a_time_that_the_clock_leaves_out_runs_once_after_the_gap() -> None:
    assert instants("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", 2) == ["29 01:00", "30 00:30"]


@pytest.mark.guarantee("G49")
def test_a_time_that_the_clock_repeats_runs_once() -> None:
    assert instants("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", 2) == ["25 00:30", "26 01:30"]


def test_what_runs_every_hour_goes_on_in_the_doubled_one() -> None:
    assert instants("30 * * * *", "Europe/Berlin", "2026-10-25 00:00", 3) == ["25 00:30", "25 01:30", "25 02:30"]


@pytest.mark.parametrize(
    ("cron", "tz", "field"),
    [
        ("* * * *", "UTC", "cron"),
        ("0 0 3 * * *", "UTC", "cron"),
        ("61 * * * *", "UTC", "cron"),
        ("0 0 30 2 *", "UTC", "cron"),
        ("@daily", "UTC", "cron"),
        ("* * * * *", "Europe/Nowhere", "tz"),
        ("* * * * *", "../../etc/passwd", "tz"),
        ("* * * * *", "", "tz"),
    ],
)
def test_what_is_no_time_is_refused_with_its_field(cron: str, tz: str, field: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        next_after(cron, tz, 0)
    assert caught.value.field == field
