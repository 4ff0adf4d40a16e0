"""Options are derived: a field of the document is an option, without anybody writing it."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.operations import operations

FIELDS = {
    "command": {"type": "string", "description": "Shell text."},
    "cpus": {"type": "number", "default": 1, "description": "Slots it takes."},
    "count": {"type": "integer"},
    "force": {"type": "boolean", "default": False},
    "preemptible": {"type": "boolean", "default": True},
    "needs": {"type": "array", "items": {"type": "string"}},
    "depends_on": {"type": "array", "items": {"type": "integer"}},
    "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Variables."},
    "resources": {"type": "object", "additionalProperties": {"type": "integer"}},
    "on_worker_lost": {"type": "string", "enum": ["requeue", "orphan"], "default": "requeue", "description": "Then."},
    "changes": {"type": "object", "additionalProperties": {}},
    "max_wall_s": {"type": "number", "description": "Longest run."},
}
[OPERATION] = operations(
    {
        "paths": {
            "/v1/jobs": {
                "post": {
                    "operationId": "job_submit",
                    "requestBody": {
                        "content": {"application/json": {"schema": {"type": "object", "properties": FIELDS}}}
                    },
                    "responses": {"200": {"description": "done"}},
                }
            }
        }
    }
)


def parsed(*words: str) -> dict[str, object]:
    """The arguments that these words mean."""
    taken: dict[str, object] = {}
    command = click.Command("submit", params=options_of(OPERATION), callback=lambda **values: taken.update(values))
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return dict(arguments_of(OPERATION, taken))


def test_what_is_not_given_is_absent_so_that_the_broker_decides() -> None:
    assert parsed() == {}


def test_every_field_is_an_option_with_its_description() -> None:
    command = click.Command("submit", params=options_of(OPERATION))
    usage = CliRunner().invoke(command, ["--help"]).output
    for name in FIELDS:
        assert f"--{name.replace('_', '-')}" in usage
    assert "Longest run." in usage
    assert "(default requeue)" in " ".join(usage.split())


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["--cpus", "0.5"], {"cpus": 0.5}),
        (["--count", "6"], {"count": 6}),
        (["--force"], {"force": True}),
        (["--no-preemptible"], {"preemptible": False}),
        (["--needs", "gpu", "--needs", "ssd"], {"needs": ["gpu", "ssd"]}),
        (["--depends-on", "1", "--depends-on", "2"], {"depends_on": [1, 2]}),
        (["--env", "A=1", "--env", "B=x=y"], {"env": {"A": "1", "B": "x=y"}}),
        (["--env", "EMPTY="], {"env": {"EMPTY": ""}}),
        (["--resources", "license=2", "--resources", "robot=1"], {"resources": {"license": 2, "robot": 1}}),
        (["--changes", '{"cpus": 2}'], {"changes": {"cpus": 2}}),
        (["--max-wall-s", "60"], {"max_wall_s": 60.0}),
    ],
)
def test_words_become_the_arguments_they_mean(words: list[str], arguments: dict[str, object]) -> None:
    assert parsed(*words) == arguments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "NOVALUE"], "NAME=VALUE"),
        (["--resources", "license=two"], "NAME=NUMBER"),
        (["--count", "many"], "not a valid integer"),
        (["--on-worker-lost", "retry"], "requeue"),
        (["--changes", "{"], "not JSON"),
    ],
)
def test_a_word_that_can_not_be_meant_is_refused_by_name(words: list[str], said: str) -> None:
    command = click.Command("submit", params=options_of(OPERATION), callback=lambda **_: None)
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert words[0] in result.output
    assert said in result.output
