"""When a schedule is due. Local times that a clock change leaves out or repeats are decided here, by the library.

A fixed time that is left out runs at the first instant after the gap, and one that is repeated runs once. What runs at
every hour or minute goes on with real time. This is what cron of Debian does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

FIELDS = 5


class BadSchedule(ValueError):
    """No instant can be told from it; `field` is to blame."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def next_after(cron: str, tz: str, at_ms: int) -> int:
    """The first instant after `at_ms`, in milliseconds. Raises BadSchedule."""
    if len(cron.split()) != FIELDS:
        raise BadSchedule("cron", "give five fields: minute, hour, day of month, month, day of week")
    try:
        zone = ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule("tz", f"{tz!r} is no time zone; give a name as Europe/Berlin or UTC") from None
    at = datetime.fromtimestamp(at_ms // 1000, UTC).astimezone(zone)
    try:
        found = next(CronSim(cron, at))
    except CronSimError as error:
        raise BadSchedule("cron", f"{cron!r}: {error}") from None
    except StopIteration:
        raise BadSchedule("cron", f"{cron!r} names no day that will come") from None
    return int(found.timestamp() * 1000)
