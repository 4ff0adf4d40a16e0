"""No answer is larger than a client takes, however much there is to tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.tokens import tokens

MANY = 3000
MOST_TOKENS = 10_000  # clients cut at 25,000, or show a stub instead


@pytest.mark.trial("B17")
async def test_with_default_arguments_every_answer_is_short_and_says_how_to_go_on(connect, tmp_path: Path) -> None:
    async with connect() as client:
        big = (await client.call_tool("job_submit", {"command": "# " + "word " * 20_000})).structured_content["id"]
        many = (await client.call_tool("job_submit", {"command": "true", "count": MANY})).structured_content["array"]
        calls = [
            ("job_get", {"job": big}),
            ("job_list", {}),
            ("job_list", {"array": many}),
            ("job_events", {}),
            ("job_explain", {"job": big}),
            ("job_wait", {"array": many, "timeout_s": 0}),
            ("worker_list", {}),
            ("job_cancel", {"array": many}),
        ]
        answers = {f"{name} {arguments}": await client.call_tool(name, arguments) for name, arguments in calls}

    assert not [name for name, answer in answers.items() if answer.is_error]
    told = {name: json.dumps(answer.structured_content) for name, answer in answers.items()}
    assert {name: n for name, text in told.items() if (n := tokens(text, tmp_path)) > MOST_TOKENS} == {}
    listed = answers["job_list {}"].structured_content
    members = answers[f"job_list {{'array': {many}}}"].structured_content
    assert (listed["total"] > MANY, len(listed["jobs"]) < 10, bool(members["next_cursor"])) == (True, True, True)
    assert answers["job_events {}"].structured_content["next_cursor"]
    waited = answers[f"job_wait {{'array': {many}, 'timeout_s': 0}}"].structured_content
    assert (len(waited["pending"]), "again" in waited["next"]) == (100, True)
    cancelled = answers[f"job_cancel {{'array': {many}}}"].structured_content
    assert (len(cancelled["jobs"]), cancelled["counts"]) == (100, {"cancelled": MANY})
