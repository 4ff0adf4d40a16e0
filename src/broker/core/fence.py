"""The gates that every worker write passes. A stale worker changes nothing."""

from __future__ import annotations

from enum import StrEnum

from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import LIVE
from broker.wire.states import AssignmentState, JobState


class Standing(StrEnum):
    """How the assignment that a worker writes for stands."""

    LIVE = "live"  # the job's newest, and not over
    LOST = "lost"  # the job's newest, expired after an ack, and the job is lost by it
    ENDED = "ended"  # over by its own accepted final report
    STALE = "stale"  # anything else


def standing(job: JobRow, assignment: AssignmentRow) -> Standing:
    """Where a write of the assignment's rightful holder meets the tables.

    The caller has compared worker, epoch and token; a write that fails there is stale whatever this says.
    """
    if assignment.id != job.assignment:
        return Standing.ENDED if _ended_by_its_holder(assignment) else Standing.STALE
    if assignment.state in LIVE:
        return Standing.LIVE
    if assignment.state is AssignmentState.EXPIRED and job.lost_assignment == assignment.id:
        return Standing.LOST if job.state in (JobState.ORPHANED, JobState.QUEUED) else Standing.STALE
    return Standing.ENDED if _ended_by_its_holder(assignment) else Standing.STALE


def _ended_by_its_holder(assignment: AssignmentRow) -> bool:
    """Only a final report declares a final size."""
    return assignment.final_size is not None
