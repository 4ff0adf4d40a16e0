"""Tasks and questions to the client, as the official suite sees them: its scenarios ask for tools of their own, so they run
against a build of the same stack that has these."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import conformance_server
from support.conformance import Suite
from support.ports import port_that_was_free
from support.waiting import eventually_sync

TASKS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)
QUESTIONS = (
    "input-required-result-basic-elicitation",
    "input-required-result-basic-sampling",
    "input-required-result-basic-list-roots",
    "input-required-result-request-state",
    "input-required-result-multiple-input-requests",
    "input-required-result-multi-round",
    "input-required-result-missing-input-response",
    "input-required-result-non-tool-request",
    "input-required-result-result-type",
    "input-required-result-unsupported-methods",
    "input-required-result-tampered-state",
    "input-required-result-capability-check",
    "input-required-result-ignore-extra-params",
    "input-required-result-validate-input",
)
SKIPPED_BY_THE_SUITE = {"tasks-status-notifications"}


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    port = port_that_was_free()
    with subprocess.Popen([sys.executable, conformance_server.__file__, str(port)]) as server:
        try:
            eventually_sync(lambda: _answers(port), within_s=40)
            yield Suite(f"http://127.0.0.1:{port}/mcp")
        finally:
            server.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("scenario", [*TASKS, *QUESTIONS])
def test_a_scenario_passes_whole(suite: Suite, scenario: str, tmp_path: Path) -> None:
    verdict = suite.run(tmp_path / "results", "--scenario", scenario)

    assert verdict.code == 0, verdict.said[-4000:]
    [checks] = verdict.checks.values()
    left = {check: status for check, status in checks.items() if status not in ("SUCCESS", "INFO")}
    if scenario in SKIPPED_BY_THE_SUITE:
        assert set(left.values()) == {"SKIPPED"}, left
    else:
        assert not left
        assert list(checks.values()).count("SUCCESS") >= 2


def test_none_of_the_suites_scenarios_of_these_kinds_is_left_out(suite: Suite) -> None:
    assert {name for name in suite.scenarios() if name.startswith(("tasks-", "input-required-"))} == {
        *TASKS,
        *QUESTIONS,
    }
