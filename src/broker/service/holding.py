"""What the jobs of a project, or of a token with a quota, hold, kept with each delivery that begins or ends: never counted."""

from __future__ import annotations

from broker.core.order import DAY_MS, Used
from broker.core.rows import AssignmentRow, JobRow
from broker.store.contract import Row, Tx


def owner_of_project(project: str) -> str:
    return f"project:{project}"


def owner_of_token(token: str) -> str:
    return f"token:{token}"


def begins(tx: Tx, job: JobRow, assignment: AssignmentRow, listened: int) -> None:
    """It holds what it was given from now on."""
    _change(tx, job, assignment, listened, 1)


def ends(tx: Tx, job: JobRow, assignment: AssignmentRow, listened: int) -> None:
    """It counts as holding nothing any more: it has ended, or is queued again."""
    _change(tx, job, assignment, listened, -1)


def _change(tx: Tx, job: JobRow, assignment: AssignmentRow, listened: int, sign: int) -> None:
    gpus = len(assignment.given.gpus or ()) if assignment.given is not None else 0
    millicpus = round(assignment.cpus * 1000)
    hold(tx, owner_of_project(job.project), sign * millicpus, sign * gpus, listened)
    if job.quota_token is not None:
        hold(tx, owner_of_token(job.quota_token), sign * millicpus, sign * gpus, listened)


def hold(tx: Tx, owner: str, millicpus: int, gpus: int, listened: int) -> None:
    """So much more, or less. With nothing: what is held until now is added up."""
    day, into_day = divmod(tx.now_ms, DAY_MS)
    tx.run("use", owner=owner, millicpus=millicpus, gpus=gpus, listened=listened, day=day, into_day=into_day)


def used_row(row: Row | None) -> Used:
    if row is None:
        return Used()
    return Used(
        millicpus=row["millicpus"],
        gpus=row["gpus"],
        since=row["since"],
        cpu_us=row["cpu_us"],
        gpu_ms=row["gpu_ms"],
        amount=row["amount"],
        folded_at=row["folded_at"],
        day=row["day"],
        today_gpu_ms=row["today_gpu_ms"],
    )


def read(tx: Tx, owner: str) -> Used:
    """What an owner holds and has held."""
    return used_row(tx.one("usage", owner=owner))
