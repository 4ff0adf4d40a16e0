"""What a project or a token may have at once, and in a day. Pure: what it has, and what is asked for, in; what is short out."""

from __future__ import annotations

from dataclasses import dataclass

from broker.wire.projects import Quota


@dataclass(frozen=True, slots=True)
class Has:
    """What an owner has: jobs that wait and that run, the GPUs that they ask for, and GPU-hours of this day."""

    queued: int = 0
    queued_gpus: int = 0
    running: int = 0
    gpus: int = 0
    gpu_hours: float = 0.0


_WHAT = {
    "queued": ("job that waits", "jobs that wait"),
    "running": ("job that runs", "jobs that run"),
    "gpus": ("GPU at once", "GPUs at once"),
}


@dataclass(frozen=True, slots=True)
class Over:
    """A limit that is in the way. `need`: how much more is asked for; None: the day's are used up."""

    field: str
    limit: float
    have: float
    need: float | None

    def said_of(self, owner: str) -> str:
        """As `project train may have 4 GPUs at once: it has 3, and this needs 2`."""
        if self.need is None:
            return f"{owner} may use {self.limit:g} GPU-hours a day: it has used {self.have:.1f} since midnight UTC"
        one, many = _WHAT[self.field]
        what = one if self.limit == 1 else many
        return f"{owner} may have {self.limit:g} {what}: it has {self.have:g}, and this needs {self.need:g}"


def denies(quota: Quota, has: Has, count: int, gpus: int) -> Over | None:
    """What forbids to accept `count` jobs of so many GPUs each. Where a quota denies, what is accepted never waits for
    it: so what waits already counts as well."""
    found = _over("queued", quota.queued, has.queued, count)
    if found is not None or quota.when_over == "hold":
        return found
    everything = Has(0, 0, has.running + has.queued, has.gpus + has.queued_gpus, has.gpu_hours)
    return _holds(quota, everything, count, gpus)


def holds(quota: Quota, has: Has, gpus: int) -> Over | None:
    """What keeps one job of so many GPUs from a start, whatever `when_over` says: a limit is one."""
    return _holds(quota, has, 1, gpus)


def _holds(quota: Quota, has: Has, count: int, gpus: int) -> Over | None:
    found = _over("running", quota.running, has.running, count)
    if found is None and gpus:
        found = _over("gpus", quota.gpus, has.gpus, count * gpus)
    hours = quota.gpu_hours_per_day
    if found is None and gpus and hours is not None and has.gpu_hours >= hours:
        found = Over("gpu_hours_per_day", hours, has.gpu_hours, None)
    return found


def _over(field: str, limit: int | None, have: int, need: int) -> Over | None:
    return Over(field, limit, have, need) if limit is not None and have + need > limit else None
