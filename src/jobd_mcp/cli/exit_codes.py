"""What `job run`, `job wait` and `job submit --wait` exit with: the job's own code, where it has one."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from jobd_mcp.cli.failure import OWN_FAILURE
from jobd_mcp.schemas import Schema, as_list, as_object

TIME_LIMIT = 124
LIMITS = ("max_wall", "idle_timeout", "first_output_timeout", "gpu_idle_timeout")
LAUNCH_FAILED = 127
STOPPED = 130


def exit_code(job: Schema) -> int:
    """Of a job that has ended, in full detail. A signal is 128 + its number, as in a shell."""
    own = job.get("exit_code")
    reason = as_object(job.get("reason")).get("code")
    match job.get("state"):
        case "completed":
            return 0
        case "cancelled" | "preempted":
            return STOPPED
        case "scheduling_timeout":
            return TIME_LIMIT
        case "failed" if reason in LIMITS:
            return TIME_LIMIT
        case "failed" if isinstance(own, int):
            return own
        case "failed" if reason == "launch_failed":
            return LAUNCH_FAILED
        case "failed":
            return _of_signal(job)
        case _:
            return OWN_FAILURE


def needs_detail(ended: Schema) -> bool:
    """Whether the short answer does not tell the exit code: which signal it was stands with the delivery."""
    return ended.get("state") == "failed" and not isinstance(ended.get("exit_code"), int)


def first_bad(codes: Iterable[int]) -> int:
    """The first code that is not zero; 0 if there is none."""
    return next((code for code in codes if code), 0)


def _of_signal(job: Schema) -> int:
    deliveries = as_list(job.get("assignments"))
    name = as_object(deliveries[-1]).get("signal") if deliveries else None
    known = {member.name: member.value for member in signal.Signals}
    number = known.get(name) if isinstance(name, str) else None
    return 128 + number if number else OWN_FAILURE
