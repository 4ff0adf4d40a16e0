"""The protocol's official conformance suite against the real server, whole, with a baseline of what fails and why.

The suite can't send a credential, so it goes through a proxy that adds one; everything else is the server as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.conformance import Suite, Verdict

BASELINE = Path(__file__).with_name("baseline.yml")

# They pass whole, whatever the baseline says.
PROMISED = (
    "completion-complete",
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
    "server-session-lifecycle",
    "caching",
    "sep-2164-resource-not-found",
    "http-header-validation",
)
# Of these checks the suite says itself that they can't be made without a tool of its own.
FIXTURES_OF_STATELESS = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}


@pytest.fixture(scope="module")
def suite(server) -> Suite:
    return Suite(server.open_url)


@pytest.fixture(scope="module")
def whole(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verdict]:
    """One run of every scenario, shared by the tests that look at it."""
    return suite.run(tmp_path_factory.mktemp("suite") / "all", "--suite", "all", "--expected-failures", str(BASELINE))


def test_nothing_fails_but_what_the_baseline_names_and_all_that_it_names_fails(whole: Verdict) -> None:
    assert whole.code == 0, whole.said[-4000:]
    assert len(whole.checks) >= 60


@pytest.mark.parametrize("scenario", PROMISED)
def test_a_promised_scenario_passes_whole(whole: Verdict, scenario: str) -> None:
    statuses = list(whole.checks[scenario].values())
    assert set(statuses) <= {"SUCCESS", "INFO", "SKIPPED"}
    assert statuses.count("SUCCESS") >= 2  # the first is the form of the messages, which every scenario looks at


def test_the_stateless_protocol_passes_but_for_the_suites_own_fixtures(whole: Verdict) -> None:
    checks = whole.checks["server-stateless"]
    failed = {check for check, status in checks.items() if status not in ("SUCCESS", "INFO", "SKIPPED")}
    assert failed == FIXTURES_OF_STATELESS
    assert len([status for status in checks.values() if status == "SUCCESS"]) >= 17


def test_a_regression_and_a_stale_entry_each_fail_the_run(suite: Suite, tmp_path: Path) -> None:
    nothing, stale = tmp_path / "nothing.yml", tmp_path / "stale.yml"
    nothing.write_text("server: []\n")
    stale.write_text("server:\n  - ping\n")
    regression = suite.run(tmp_path / "a", "--scenario", "logging-set-level", "--expected-failures", str(nothing))
    assert regression.code == 1, regression.said
    passes = suite.run(tmp_path / "b", "--scenario", "ping", "--expected-failures", str(stale))
    assert passes.code == 1, passes.said


def test_every_entry_of_the_baseline_says_why() -> None:
    entries = [line for line in BASELINE.read_text().splitlines() if line.lstrip().startswith("-")]
    assert entries
    assert not [line for line in entries if not re.fullmatch(r"  - [\w:.-]+ # \S.*", line)]
    named = {line.split()[1].partition(":")[0] for line in entries}
    assert not named & set(PROMISED)
