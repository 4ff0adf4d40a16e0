"""Leases: the job that stands for one, and whether its devices are used. Pure.

A lease is a job whose process only holds. So it queues, is placed, reserved, fenced and stopped like any other, and
there is no second way to have a device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from broker.core.rows import AssignmentRow, JobRow
from broker.core.states import TERMINAL
from broker.wire.jobs import JobSpec
from broker.wire.leases import LESSEE, LeaseRequest, LeaseState, Lessee
from broker.wire.machines import Gpu
from broker.wire.states import JobState, OnPreempt, OnWorkerLost

# Told to end, it stays as long as its lessee lives: what the lessee has must not be given away under it. Its time for
# that is the grace. The shell's own words, and sleep from where every system has it.
HOLDER = """\
PATH=/usr/bin:/bin:$PATH
ends=
trap ends=1 TERM
lives() {
  [ -n "$JOBD_LESSEE" ] && IFS= read -r line 2>/dev/null </proc/"${JOBD_LESSEE%%:*}"/stat || return 1
  set -- ${line##*) }
  [ "${20}" = "${JOBD_LESSEE#*:}" ] && [ "$1" != Z ]
}
while [ -z "$ends" ] || lives; do
  if [ -z "$ends" ]; then sleep 2147483 & else sleep 0.1 & fi
  wait $!
done
exit 0"""

_SAME = ("gpus", "vram_gb", "cpus", "ram_gb", "resources", "needs", "project", "priority", "name", "preemptible")


def holder(said: LeaseRequest, worker: str) -> JobSpec:
    """The job that stands for this lease. Its process prints nothing and is never run twice: the lessee lives on,
    whatever becomes of the worker."""
    fields: dict[str, Any] = {name: value for name in _SAME if (value := getattr(said, name)) is not None}
    if said.scheduling_timeout_s is not None:
        fields["scheduling_timeout_s"] = said.scheduling_timeout_s
    if said.grace_s is not None:
        fields["checkpoint_grace_s"] = said.grace_s
    if said.lessee is not None:
        fields["env"] = {LESSEE: text_of(said.lessee)}
    return JobSpec(
        argv=["/bin/sh", "-c", HOLDER],
        worker=worker,
        on_worker_lost=OnWorkerLost.ORPHAN,
        on_preempt=OnPreempt.STOP,
        idle_timeout_s="none",
        first_output_timeout_s="none",
        **fields,
    )


def delivered(spec: JobSpec) -> JobSpec:
    """As its worker gets it. Its wall limit is the broker's alone to enforce: the lessee hears of that, and would not
    of a supervisor that stops it by itself."""
    return spec.model_copy(update={"max_wall_s": None})


def text_of(lessee: Lessee) -> str:
    return f"{lessee.pid}:{lessee.start}"


def state_of(job: JobRow, assignment: AssignmentRow | None) -> LeaseState:
    """An orphaned one is granted still: its devices stay reserved, and its holder may come back."""
    if job.state is JobState.ORPHANED:
        return LeaseState.GRANTED if assignment is not None and assignment.reserved else LeaseState.ENDED
    if job.state in TERMINAL:
        return LeaseState.ENDED
    if assignment is not None and assignment.stop is not None:
        return LeaseState.ENDING
    return LeaseState.GRANTED if job.state is JobState.RUNNING else LeaseState.WAITING


def unused(gpus: Sequence[Gpu], given: Collection[str], assignment: str) -> bool:
    """Whether nothing of the lease is on any of its devices. What can't be told counts as use."""
    mine = [gpu for gpu in gpus if gpu.uuid in given]
    if len(mine) < len(given):
        return False
    return not any(_used(gpu, assignment) for gpu in mine)


def _used(gpu: Gpu, assignment: str) -> bool:
    if gpu.processes is None:
        return True
    return any(process.job == assignment or not process.seen for process in gpu.processes)
