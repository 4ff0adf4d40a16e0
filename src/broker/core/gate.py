"""Not yet: a job before its time, or on hold. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from broker.wire.jobs import Reason

FURTHEST_MS = 253_402_300_799_000  # what a date can say


def instant(when: float | str | None, now: int) -> int | None:
    """The instant that a specification names, in milliseconds; None: it has come. `now`: of the broker's clock, which
    counts seconds from its own."""
    if when is None:
        return None
    at = now + int(when * 1000) if isinstance(when, float | int) else _ms(when)
    return min(at, FURTHEST_MS) if at > now else None


def lasts_until(when: float | str | None, listened: int) -> int | None:
    """The same of what was said in seconds, in the time in which the broker listens: a clock that is set back makes no
    pause longer."""
    return listened + int(when * 1000) if isinstance(when, float | int) else None


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def holds(*, hold: bool, not_before: int | None, retried: int = 0, retries: int = 0) -> Reason | None:
    """What keeps a job from any worker that is there. A hold first: time does not end it."""
    if hold:
        return Reason(code="hold", message="on hold: job_update releases it")
    if not_before is None:
        return None
    at = datetime.fromtimestamp(not_before / 1000, UTC).isoformat(timespec="milliseconds")
    if retried:
        return Reason(code="retry_delay", message=f"it failed: retry {retried} of {retries} is not before {at}")
    return Reason(code="not_before", message=f"not before {at}")
