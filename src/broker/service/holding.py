"""What the jobs of a project hold, kept with each delivery that begins or ends: never counted."""

from __future__ import annotations

from broker.core.order import DAY_MS
from broker.core.rows import AssignmentRow, JobRow
from broker.store.contract import Tx


def owner_of_project(project: str) -> str:
    return f"project:{project}"


def begins(tx: Tx, job: JobRow, assignment: AssignmentRow, listened: int) -> None:
    """It holds what it was given from now on."""
    _change(tx, job, assignment, listened, 1)


def ends(tx: Tx, job: JobRow, assignment: AssignmentRow, listened: int) -> None:
    """It counts as holding nothing any more: it has ended, or is queued again."""
    _change(tx, job, assignment, listened, -1)


def _change(tx: Tx, job: JobRow, assignment: AssignmentRow, listened: int, sign: int) -> None:
    gpus = len(assignment.given.gpus or ()) if assignment.given is not None else 0
    hold(tx, owner_of_project(job.project), sign * round(assignment.cpus * 1000), sign * gpus, listened)


def hold(tx: Tx, owner: str, millicpus: int, gpus: int, listened: int) -> None:
    """So much more, or less. With nothing: what is held until now is added up."""
    day, into_day = divmod(tx.now_ms, DAY_MS)
    tx.run("use", owner=owner, millicpus=millicpus, gpus=gpus, listened=listened, day=day, into_day=into_day)
