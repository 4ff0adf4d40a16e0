"""Which failures to start speak against a machine, and which against the job."""

from __future__ import annotations

import pytest

from broker.core.launching import MOST_KEPT, Failure, Fault, counted, fault_of, with_one_more
from broker.wire.workers import Final, Outcome


def command(what: str, project: str = "p") -> Failure:
    return Failure(Fault.COMMAND, what, project, "")


def machine(job: int, project: str = "p") -> Failure:
    return Failure(Fault.MACHINE, f"job {job}", project, "")


def of(*failures: Failure) -> int:
    kept: list[Failure] = []
    for one in failures:
        kept = with_one_more(kept, one)
    return counted(kept)


@pytest.mark.parametrize(
    ("outcome", "code", "fault"),
    [
        (Outcome.REFUSED, "launcher_failed", Fault.MACHINE),
        (Outcome.NEVER_EXECUTED, "shim_failed", Fault.MACHINE),
        (Outcome.LAUNCH_FAILED, "launch_failed", Fault.COMMAND),
        (Outcome.REFUSED, "cwd_missing", None),
        (Outcome.REFUSED, "gpu_busy", None),
        (Outcome.REFUSED, "disk_full", None),
        (Outcome.NEVER_EXECUTED, "closed", None),
        (Outcome.EXITED, None, None),
        (Outcome.STOPPED, None, None),
    ],
)
def test_whose_fault_an_end_may_be(outcome: Outcome, code: str | None, fault: Fault | None) -> None:
    assert fault_of(Final(outcome=outcome, reason_code=code)) is fault


def test_each_job_that_no_process_could_be_made_for_counts_once() -> None:
    assert of(machine(1), machine(2), machine(2), machine(3)) == 3


def test_commands_of_one_project_speak_against_that_project() -> None:
    typos = [command(f"./train --lr {n}") for n in range(20)]
    assert of(*typos) == 0
    assert of(*typos, command("./other", "q")) == 21
    assert of(command("pyhton x", "p"), command("pyhton x", "q")) == 0  # the same mistake, made twice


def test_no_more_is_kept_than_is_needed() -> None:
    kept: list[Failure] = []
    for job in range(MOST_KEPT + 50):
        kept = with_one_more(kept, machine(job))
    assert len(kept) == MOST_KEPT and kept[-1] == machine(MOST_KEPT + 49)
