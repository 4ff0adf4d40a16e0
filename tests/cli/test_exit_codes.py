"""What a shell is told of a job's end."""

from __future__ import annotations

import pytest

from broker.core.states import TERMINAL
from broker.wire.states import LimitCode
from jobd_mcp.cli.colours import OF_STATE
from jobd_mcp.cli.exit_codes import LIMITS, exit_code, first_bad, needs_detail
from jobd_mcp.cli.waiting import BAD_ENDS


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({"state": "completed", "exit_code": 0}, 0),
        ({"state": "failed", "exit_code": 3}, 3),
        ({"state": "failed", "exit_code": 126}, 126),
        ({"state": "failed", "assignments": [{"signal": "SIGKILL"}]}, 137),
        ({"state": "failed", "assignments": [{"signal": "SIGTERM"}, {"signal": "SIGSEGV"}]}, 139),
        ({"state": "failed", "reason": {"code": "launch_failed", "message": "no such file"}}, 127),
        ({"state": "cancelled"}, 130),
        ({"state": "cancelled", "exit_code": 0}, 130),
        ({"state": "preempted", "exit_code": 0}, 130),
        ({"state": "orphaned"}, 125),
        ({"state": "scheduling_timeout"}, 124),
        ({"state": "failed", "exit_code": 0, "reason": {"code": "max_wall", "message": "ran"}}, 124),
        ({"state": "failed", "reason": {"code": "idle_timeout", "message": "silent"}}, 124),
        ({"state": "failed", "exit_code": 1, "reason": {"code": "first_output_timeout", "message": "silent"}}, 124),
        ({"state": "failed", "exit_code": 0, "reason": {"code": "gpu_idle_timeout", "message": "idle"}}, 124),
    ],
)
def test_a_job_exits_with_its_own_code_where_it_has_one(job: dict[str, object], code: int) -> None:
    assert exit_code(job) == code


def test_a_signal_needs_the_details_and_a_plain_exit_does_not() -> None:
    assert needs_detail({"state": "failed", "reason": {"code": "signal"}})
    assert not needs_detail({"state": "failed", "exit_code": 1})
    assert not needs_detail({"state": "cancelled"})


def test_of_several_jobs_the_first_that_is_not_zero_counts() -> None:
    assert first_bad([0, 0, 7, 130]) == 7
    assert first_bad([0, 0]) == 0


@pytest.mark.trial("B75")
def test_every_end_but_one_is_bad_and_all_have_a_colour() -> None:
    assert set(BAD_ENDS) == {state.value for state in TERMINAL} - {"completed"}
    assert {state.value for state in TERMINAL} <= OF_STATE.keys()
    assert set(LIMITS) == {code.value for code in LimitCode}
